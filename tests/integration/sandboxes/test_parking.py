"""A large workspace that has a disk of its own is parked on it: it wakes by being mounted, with the same
bytes, or by being unpacked if anything about the disk is not as it was.
"""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandboxes import ImageSpec, Sandbox, SandboxSpec, Tier, open_tier
from sandboxes.sleep import resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.snapshots.parking import MIN_BYTES

pytestmark = pytest.mark.root
NAME = "parked"
LOOK = "cksum < deep/er/file; find . -mindepth 1 -printf '%M %T@ %n %s %l %p\\n' | sort"
FURNISH = f"""\
head -c {MIN_BYTES + 1} /dev/zero > zeros
mkdir -p src/.git deep/er && echo one > src/.git/HEAD && echo two > deep/er/file && chmod 700 deep
ln -s /usr/bin/env out && ln deep/er/file hard && echo x > noise && chmod 000 noise; mkfifo pipe
"""


class Lot:
    """A tier, snapshots, and what a furnished sandbox looked like before it slept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        image = root / "image"
        image.mkdir()
        root.chmod(0o755)
        self.image = ImageSpec(name="plain", root=image, turn_script=None)
        self.tier: Tier = open_tier("process", root / "sandboxes")
        self.snapshots = Snapshots(LocalStore(root / "store"), root / "scratch")
        self.disk = root / "parked" / NAME / "disk"

    async def wake(self, epoch: int) -> Sandbox:
        spec = SandboxSpec(name=NAME, epoch=epoch, image=self.image)
        return (await resume(self.tier, spec, self.snapshots))[0]

    async def sleep_furnished(self) -> bytes:
        probe = await self.tier.probe()
        for lack in probe.lacks:
            if lack.what in ("disk quota", "user namespaces", "bwrap"):
                pytest.skip(lack.why)
        sandbox = await self.wake(1)
        before = await sandbox.exec(FURNISH + LOOK)
        assert before.exit_code == 0, before.stderr
        await sandbox.close()
        self.taken = await suspend(self.tier, NAME, self.snapshots)
        assert (await self.tier.inspect(NAME)).leftovers == ()
        return before.stdout

    async def end(self) -> None:
        await self.tier.destroy(NAME)
        self.snapshots.forget(NAME)
        assert list((self.root / "parked").iterdir()) == []


@pytest.fixture
def lot(tmp_path: Path) -> Lot:
    return Lot(tmp_path)


def look(tree: Path) -> bytes:
    return subprocess.run(["sh", "-c", LOOK], cwd=tree, capture_output=True, check=True).stdout


async def test_it_wakes_by_being_mounted_with_the_same_bytes(lot: Lot) -> None:
    before = await lot.sleep_furnished()
    lot.snapshots.restore(NAME, lot.root / "unpacked", index=lot.root / "i", strict=True)
    inode = lot.disk.stat().st_ino
    again = await lot.wake(2)
    assert (again.directory / "disk.ext4").stat().st_ino == inode  # it is that disk
    unpacked = await asyncio.to_thread(look, lot.root / "unpacked")
    assert (await again.exec(LOOK)).stdout == before == unpacked  # and the same either way
    assert (await again.exec("echo three >> deep/er/file && rm zeros")).exit_code == 0
    await again.close()
    assert not (await suspend(lot.tier, NAME, lot.snapshots)).is_full
    assert not lot.disk.exists()  # small by now: that is unpacked
    third = await lot.wake(3)
    assert (await third.exec("cat hard; ls")).stdout == b"two\nthree\ndeep\nhard\nnoise\nout\npipe\nsrc\n"
    await third.close()
    await lot.end()


@pytest.mark.parametrize("what", ["written to", "garbage", "another disk", "an older snapshot", "gone"])
async def test_a_disk_that_is_not_as_it_was_is_not_used(lot: Lot, what: str) -> None:
    before = await lot.sleep_furnished()
    parking, digest = lot.snapshots.parking, lot.taken.manifest.digest
    parked = lot.snapshots.parked(NAME)
    assert parked is not None
    (template,) = (lot.root / "sandboxes" / ".disks").glob("*.ext4")
    match what:
        case "written to":
            os.utime(lot.disk)
        case "garbage":  # and the note says that it is right
            os.truncate(lot.disk, 0)
            os.truncate(lot.disk, template.stat().st_size)
            parking.settle(NAME, digest, parked.uid)
        case "another disk":
            shutil.copyfile(template, lot.disk)
            parking.settle(NAME, digest, parked.uid)
        case "an older snapshot":
            parking.settle(NAME, "0" * 64, parked.uid)
        case _:
            lot.disk.unlink()
    again = await lot.wake(2)
    assert (await again.exec(LOOK)).stdout == before
    assert not lot.disk.exists()
    await again.close()
    await lot.end()


async def test_what_is_cold_is_not_parked(lot: Lot) -> None:
    await lot.sleep_furnished()
    assert lot.disk.exists()
    assert lot.snapshots.cool(NAME) > MIN_BYTES
    assert not lot.disk.exists()
    await lot.end()
