"""Dozing with real swap: what is frozen gives its memory back, and goes on as if nothing had been."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sandboxes import ImageSpec, SandboxInfo, SandboxSpec, Tier, connect_sandbox, open_tier
from sandboxes.pool.book import Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.pageout import page_out, why_no_doze
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.tally import Tally
from sandboxes.runner.tree import descendants
from sandboxes.snapshots import LocalStore, Snapshots

pytestmark = pytest.mark.optional  # swap is the host's; where there is none and no zram, nothing can doze

ZRAM: Final = Path("/sys/block/zram0")
MIB: Final = 2**20
HELD: Final = 24 * MIB  # in the memory of a process inside
HOLDER: Final = f"""
import hashlib, os, time
held = os.urandom({HELD})
print("holds", hashlib.sha256(held).hexdigest(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
print("still", hashlib.sha256(held).hexdigest(), flush=True)
"""
ECHO: Final = "import json, sys\nprint(json.dumps({'seen': json.load(sys.stdin)}))\n"


@pytest.fixture(scope="module", autouse=True)
def swap() -> Iterator[None]:
    """The host's own swap, or a zram device that nobody uses."""
    if not why_no_doze():
        yield
        return
    if os.geteuid() != 0 or not ZRAM.is_dir() or (ZRAM / "disksize").read_text().strip() != "0":
        pytest.skip(f"{why_no_doze()}, and no zram device that is free")
    (ZRAM / "disksize").write_text(str(256 * MIB))
    try:
        subprocess.run(["mkswap", "/dev/zram0"], check=True, capture_output=True)
        subprocess.run(["swapon", "/dev/zram0"], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", "/dev/zram0"], check=True, capture_output=True)
    finally:
        (ZRAM / "reset").write_text("1")


def resident(info: SandboxInfo) -> int:
    """What a sandbox has in memory, in bytes; what it shares with others is divided among them."""
    assert info.pid is not None
    total = 0
    for pid in (info.pid, *descendants(info.pid)):
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return total


@pytest.mark.parametrize("tier_name", ["process", "docker", "gvisor"])
async def test_who_dozes_gives_its_memory_back_and_goes_on(tier_name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    image = ImageSpec(name="test", root=tmp_path / "image", reference="skylease/base:dev")
    image.root.mkdir(mode=0o755)
    (image.root / "take_turn.py").write_text(ECHO)
    tier = open_tier(tier_name, tmp_path / "state")
    probe = await tier.probe()
    if not probe.ok:
        pytest.skip(f"{tier_name}: {probe.lacks[0].why}")
    if not await tier.has_image(image):
        pytest.skip(f"{tier_name}: {image.reference} is not built (make images)")
    name = f"dozer-{os.getpid()}"
    pool = dozing_pool(tier, tmp_path)
    try:
        directory = await pool.acquire(SandboxSpec(name=name, epoch=1, image=image))
        async with connect_sandbox(directory, epoch=1) as sandbox:
            process = await sandbox.start_process(["python3", "-uc", HOLDER])
            held = (await process.wait_for_log(r"holds (\w{64})", timeout=20)).split()[-1]
            awake = resident(await tier.inspect(name))
            await doze(pool)
            assert pool.stats()["dozing"] == 1
            assert awake - resident(await tier.inspect(name)) > HELD

            result = await sandbox.turn({"number": 7}, turn=1)
            assert result.action == {"seen": {"number": 7}}
            await pool.tick()
            assert (pool.stats()["dozing"], pool.stats()["resume_hits"]["doze"]) == (0, 1)
            await sandbox.write_file("go", b"")
            told = await process.wait_for_log(r"still (\w{64})", timeout=20)
            assert told.split()[-1] == held
    finally:
        await pool.destroy(name)


def dozing_pool(tier: Tier, root: Path) -> Pool:
    """A pool whose idle ones doze at the second look."""
    return Pool(
        Ground(
            tier=tier,
            snapshots=Snapshots(LocalStore(root / "store"), root / "scratch"),
            book=Book(root / "pool.db"),
            policy=PoolPolicy(capacity=1, nap_after_s=0.2, doze_after_s=0.4),
            tally=Tally(),
            page_out=page_out,
        )
    )


async def doze(pool: Pool) -> None:
    """Look after the pool until somebody dozes."""
    async with asyncio.timeout(20):
        while not pool.stats()["dozing"]:
            await asyncio.sleep(0.1)
            await pool.tick()
