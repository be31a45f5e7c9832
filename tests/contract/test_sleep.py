"""Sleep keeps every byte and nothing else; whatever goes wrong on the way, the files are still there."""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sandboxes import Sandbox, SandboxBusy, SandboxNotFound, SandboxState
from sandboxes.sleep import is_hydrated, resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotVersion, StoreUnavailable


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(LocalStore(tmp_path / "store"), tmp_path / "scratch")


LOOK = "cksum < deep/er/file; find deep .local noise out hard -printf '%M %T@ %s %p\\n' | sort"
FURNISH = """\
mkdir -p src/.git deep/er .local/bin && echo one > src/.git/HEAD && echo two > deep/er/file && chmod 700 deep
printf '#!/bin/sh\\necho tool works\\n' > .local/bin/tool && chmod 755 .local/bin/tool
ln -s /usr/bin/env out && ln deep/er/file hard && head -c 300000 /dev/urandom > noise && chmod 000 noise
"""


async def test_nothing_is_lost_in_sleep_and_nothing_left(bench: Any, snapshots: Snapshots) -> None:
    sandbox = await bench.tier.create(bench.spec("sleeper"))
    before = await sandbox.exec(FURNISH + LOOK)
    assert before.exit_code == 0, before.stderr
    await sandbox.start_process("echo $$ > pid; exec sleep 600")
    taken = await suspend(bench.tier, "sleeper", snapshots)
    assert taken.is_full
    asleep = await bench.tier.inspect("sleeper")
    assert (asleep.state, asleep.leftovers) == (SandboxState.DELETED, ())
    again, restored = await resume(bench.again(), bench.spec("sleeper", epoch=2), snapshots)
    assert restored is not None
    assert (restored.refused, restored.manifest) == ((), taken.manifest)
    assert (await again.exec(LOOK)).stdout == before.stdout
    used = await again.exec("tool; chmod 600 noise; cat noise | wc -c; echo three > deep/er/file; cat hard")
    assert used.stdout.split() == [b"tool", b"works", b"300000", b"three"], used.stderr
    second = await suspend(bench.tier, "sleeper", snapshots)
    assert not second.is_full
    third, _ = await resume(bench.tier, bench.spec("sleeper", epoch=3), snapshots)
    assert (await third.exec("cat hard; tool")).stdout == b"three\ntool works\n"
    await bench.tier.destroy("sleeper")


async def test_a_running_turn_is_never_put_to_sleep(bench: Any, snapshots: Snapshots) -> None:
    sandbox = await bench.tier.create(bench.spec("busy"))
    line = "echo started > mark; until [ -e go ]; do sleep 0.02; done; echo done"
    running = asyncio.ensure_future(sandbox.exec(line))
    while not await sandbox.exists("mark"):
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxBusy):
        await suspend(bench.tier, "busy", snapshots)
    assert not snapshots.has("busy")
    await sandbox.write_file("go", b"")
    assert (await running).stdout == b"done\n"
    await bench.tier.destroy("busy")
    with pytest.raises(SandboxNotFound):
        await suspend(bench.tier, "busy", snapshots)


class FullStore(LocalStore):
    """A store whose disk is full."""

    def put(self, digest: str, source: Path) -> None:
        raise StoreUnavailable(str(self.root), "No space left on device")


async def test_when_the_files_cannot_be_kept_the_sandbox_stays(bench: Any, tmp_path: Path) -> None:
    sandbox = await bench.tier.create(bench.spec("kept"))
    await sandbox.write_file("precious", b"p")
    with pytest.raises(StoreUnavailable, match="No space left"):
        await suspend(bench.tier, "kept", Snapshots(FullStore(tmp_path / "full"), tmp_path / "scratch"))
    assert await sandbox.read_file("precious") == b"p"
    await bench.tier.destroy("kept")


async def test_what_cannot_be_read_leaves_no_sandbox_and_no_lie(
    bench: Any, snapshots: Snapshots, tmp_path: Path
) -> None:
    """A damaged snapshot gives way to the one before it; one of another format version does not."""
    sandbox = await bench.tier.create(bench.spec("damaged"))
    taken = []
    for epoch, content in ((2, b"old"), (3, b"new")):
        await sandbox.write_file("file", content)
        taken.append((await suspend(bench.tier, "damaged", snapshots)).manifest)
        if content == b"old":
            sandbox, _ = await resume(bench.tier, bench.spec("damaged", epoch=epoch), snapshots)
    raw = json.dumps({**json.loads(taken[-1].to_bytes()), "version": 2}).encode()
    newest = hashlib.sha256(raw).hexdigest()
    snapshots.store.put_bytes(newest, raw)
    head = snapshots.store.advance("damaged", 3, newest)
    with pytest.raises(SnapshotVersion, match="version 2, this is 1"):
        await resume(bench.tier, bench.spec("damaged", epoch=4), snapshots)
    assert (await bench.tier.inspect("damaged")).leftovers == ()
    assert snapshots.store.head("damaged") == head

    def damage(digest: str) -> None:
        os.truncate(tmp_path / "store" / "blobs" / digest[:2] / digest, 20)

    damage(newest)
    damage(taken[1].digest)
    again, restored = await resume(bench.tier, bench.spec("damaged", epoch=4), snapshots)
    assert await again.read_file("file") == b"old"
    assert restored is not None
    assert [digest for digest, _ in restored.refused] == [newest, taken[1].digest]
    await bench.tier.destroy("damaged")
    damage(taken[0].layers[0].digest)
    with pytest.raises(SnapshotCorrupt):
        await resume(bench.tier, bench.spec("damaged", epoch=5), snapshots)
    assert (await bench.tier.inspect("damaged")).leftovers == ()


async def test_a_cancelled_sleep_is_finished(bench: Any, snapshots: Snapshots) -> None:
    sandbox = await bench.tier.create(bench.spec("cancelled"))
    await sandbox.write_file("file", b"kept")
    work = asyncio.ensure_future(suspend(bench.tier, "cancelled", snapshots))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    if (await bench.tier.inspect("cancelled")).state is SandboxState.DELETED:
        sandbox, restored = await resume(bench.tier, bench.spec("cancelled", epoch=2), snapshots)
        assert restored is not None
    assert await sandbox.read_file("file") == b"kept"
    await bench.tier.destroy("cancelled")


async def test_only_what_was_handed_out_counts_as_whole(bench: Any, snapshots: Snapshots) -> None:
    made: Sandbox = await bench.tier.create(bench.spec("half"))
    assert not is_hydrated(made.directory)
    await bench.tier.destroy("half")
    made, restored = await resume(bench.tier, bench.spec("half"), snapshots)
    assert (is_hydrated(made.directory), restored) == (True, None)
    await bench.tier.destroy("half")
