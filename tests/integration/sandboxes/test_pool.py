"""The pool with real sandboxes: room, eviction, and a running one that nobody can put to sleep."""

import asyncio
import contextlib
import hashlib
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    ImageSpec,
    PoolFull,
    Sandbox,
    SandboxGone,
    SandboxSpec,
    SandboxState,
    Tier,
    connect_sandbox,
    open_tier,
)
from sandboxes.pool.book import Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.states import Kind
from sandboxes.pool.tally import Tally
from sandboxes.snapshots import LocalStore, Snapshots, Store, TwoLevelStore
from sandboxes.snapshots.errors import StoreUnavailable

SCRIPT = """\
import json, sys, time
state = json.load(sys.stdin)
with open("log", "ab", buffering=0) as log:
    log.write(b"(")
    time.sleep(state.get("takes_s", 0))
    log.write(b")")
    print(json.dumps({"seen": state, "log": log.tell()}))
"""
STEPS = 10_000
Fill = Callable[[], contextlib.AbstractContextManager[None]]


class Node:
    """A pool over a real tier."""

    def __init__(self, root: Path, tier: Tier) -> None:
        self.root, self.tier = root, tier
        (root / "image").mkdir()
        (root / "image/take_turn.py").write_text(SCRIPT)
        (root / "image").chmod(0o755)
        self.image = ImageSpec(name="test", root=root / "image", reference="skylease/base:dev")
        self.tally = Tally()

    def begin(self, store: Store | None = None, excludes: tuple[str, ...] = (), **policy: Any) -> Pool:
        store = store or LocalStore(self.root / "store")
        self.pool = Pool(
            Ground(
                tier=self.tier,
                snapshots=Snapshots(store, self.root / "scratch"),
                excludes=excludes,
                book=Book(self.root / "pool.db"),
                policy=PoolPolicy(**policy),
                tally=self.tally,
            )
        )
        return self.pool

    def spec(self, name: str) -> SandboxSpec:
        return SandboxSpec(name=f"{name}-{os.getpid()}", epoch=1, image=self.image)

    async def up(self, name: str) -> Path:
        return await self.pool.acquire(self.spec(name))


@pytest.fixture(params=["process", "docker"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    tmp_path.chmod(0o755)
    tier = open_tier(request.param, tmp_path / "state")
    probe = await tier.probe()
    if not probe.ok:
        pytest.skip(f"{request.param}: {probe.lacks[0].why}")
    node = Node(tmp_path, tier)
    if not await tier.has_image(node.image):
        pytest.skip(f"{request.param}: skylease/base:dev is not built (make images)")
    yield node
    for entry in node.pool.book.entries(Kind.SANDBOX):
        await node.pool.destroy(entry.name)
    for slot in node.pool.book.entries(Kind.SLOT):
        await tier.destroy(slot.name)
    assert (await tier.list({}), list(await tier.slots())) == ([], [])
    node.pool.book.close()


async def test_fifty_creations_at_capacity_five(node: Node) -> None:
    node.begin(capacity=5, evict_idle_s=3600.0)
    ended = await asyncio.gather(*(node.up(f"n{n}") for n in range(50)), return_exceptions=True)
    full = [error for error in ended if isinstance(error, PoolFull)]
    assert len(await node.tier.list({})) == len([path for path in ended if isinstance(path, Path)]) == 5
    assert {(error.capacity, error.in_use) for error in full} == {(5, 5)}
    assert len(full) == 45


def tree(directory: Path) -> dict[str, str]:
    """Every file with its mode, its link or its bytes."""
    found = {}
    for folder, folders, files in os.walk(directory):
        for name in [*folders, *files]:
            path = Path(folder, name)
            told = os.readlink(path) if path.is_symlink() else ""
            if path.is_file() and not path.is_symlink():
                told = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(directory))] = f"{path.lstat().st_mode:o} {told}"
    return found


WRITE = """
mkdir -p .git/objects node_modules/x venv/bin empty; ln -s ../x venv/bin/python
printf 'a\\0b' > .git/objects/ab; head -c 3000000 /dev/urandom > big; chmod 751 big
for n in $(seq 200); do echo $n > node_modules/x/$n.js; done
"""


async def test_who_is_evicted_comes_back_with_every_byte(node: Node) -> None:
    """Its sandbox is removed, not stopped; meanwhile somebody else has its room, and its slot."""
    node.begin(capacity=1, evict_idle_s=0.0)
    directory = await node.up("a")
    name = node.spec("a").name
    async with connect_sandbox(directory, epoch=1) as sandbox:
        assert (await sandbox.exec(WRITE)).exit_code == 0
    before = tree(await node.tier.workspace(name))
    assert len(before) > 200
    other = await node.up("b")
    info = await node.tier.inspect(name)
    assert (info.state, info.leftovers, directory.exists()) == (SandboxState.DELETED, (), False)
    async with connect_sandbox(other, epoch=1) as sandbox:
        assert await sandbox.list_files() == []
    await node.up("a")
    assert tree(await node.tier.workspace(name)) == before
    assert node.tally.evictions == {"warm": 2}
    assert node.pool.stats()["resume_hits"]["local"] == 1


@pytest.mark.root
async def test_a_full_store_and_the_last_copy(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Whose files cannot be kept stays awake; whose copy here is the only one keeps that."""
    with small_disk(node.root / "far") as fill:
        await check_full_store(node, fill, caplog)


async def check_full_store(node: Node, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
    far = LocalStore(node.root / "far")
    store = TwoLevelStore(LocalStore(node.root / "near", is_copy=True), far)
    pool = node.begin(store, ("not/there",), capacity=2, max_asleep=0)
    name = node.spec("a").name
    async with connect_sandbox(await node.up("a"), epoch=1) as sandbox:
        await sandbox.write_file("memo", os.urandom(300_000))
        memo = await sandbox.read_file("memo")
    with fill():
        with pytest.raises(StoreUnavailable, match="No space left"):
            await pool.stop(name)
        assert (await node.tier.inspect(name)).state in (SandboxState.WARM, SandboxState.WAITING)
        assert await read(node, "a") == memo
    await pool.stop(name)
    assert ["not/there"] in [list(getattr(record, "paths", ())) for record in caplog.records]

    for blob in list(far.blobs()):
        far.remove(blob.digest, 1 << 62)
    with fill():
        await pool.tick()
    assert pool.stats()["not_evicted"] == {"not kept": 1}
    assert await read(node, "a") == memo
    await pool.stop(name)
    await pool.tick()
    assert list(store.near.blobs()) == []
    assert await read(node, "a") == memo
    hits = pool.stats()["resume_hits"]
    assert (hits["local"], hits["store"]) == (1, 1)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Fill]:
    """Give a directory a disk of its own; yields what fills it as long as a block."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=True)

    @contextlib.contextmanager
    def fill() -> Iterator[None]:
        filler = place / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(4 << 20))
        yield
        filler.unlink()

    try:
        yield fill
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def read(node: Node, name: str) -> bytes:
    async with connect_sandbox(await node.up(name), epoch=1) as sandbox:
        return await sandbox.read_file("memo")


async def test_a_slot_becomes_a_sandbox_that_has_slept(node: Node) -> None:
    """Asked for, it is up in no time, with its files; and the next one finds nothing of it."""
    if (why := await node.tier.can_warm()) is not None:
        pytest.skip(why)
    pool = node.begin(capacity=4, warm_slots=1, evict_idle_s=0.0)
    async with connect_sandbox(await node.up("a"), epoch=1) as sandbox:
        await sandbox.write_file("memo", b"kept")
    await pool.stop(node.spec("a").name)
    for name, content in (("a", b"kept"), ("b", None)):
        async with asyncio.timeout(30):
            while not any(slot.state is SandboxState.WARM for slot in pool.book.entries(Kind.SLOT)):
                await pool._slots.tend()
                await asyncio.sleep(0.05)
        async with connect_sandbox(await node.up(name), epoch=1) as sandbox:
            files = {file.path: await sandbox.read_file(file.path) for file in await sandbox.list_files()}
            assert files == ({} if content is None else {"memo": content})
            assert (await sandbox.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}, "log": 2}
    assert node.tally.slot_hits == 2


@pytest.mark.timeout(300)
async def test_who_runs_never_dies(node: Node) -> None:
    """Agents take turns, a third one now and then on two places, against the sweep, sleep and eviction.

    10,000 steps in any order, of which a seventh are turns and the others what would put them to rest.

    What a turn writes at its begin and at its end is counted, so one that was cut or lost would be seen.
    """
    pool = node.begin(capacity=2, evict_idle_s=0.0, nap_after_s=1e-9, wait_s=60.0)
    chance = random.Random(20261122)
    names = ("a", "b", "c")
    turns = dict.fromkeys(names, 0)
    lines: dict[str, Sandbox] = {}

    async def message(name: str, takes_s: float) -> None:
        """Whoever has no sandbox gets one: somebody else's place, if nobody is there at work."""
        while True:
            try:
                if name not in lines:
                    lines[name] = connect_sandbox(await node.up(name), epoch=1)
                result = await lines[name].turn({"takes_s": takes_s}, turn=turns[name] + 1)
                break
            except SandboxGone:  # it slept before the turn began
                await lines.pop(name).close()
        turns[name] += 1
        assert result.action == {"seen": {"takes_s": takes_s}, "log": 2 * turns[name]}, result

    at_work: dict[str, asyncio.Task[None]] = {}
    for _ in range(STEPS):
        (name,) = chance.choices(names, (50, 50, 1))
        full_name = node.spec(name).name
        match chance.randrange(1_000):
            case number if number < 150:
                if name in at_work:
                    await at_work.pop(name)
                at_work[name] = asyncio.create_task(message(name, chance.choice((0, 0, 0.001, 0.01))))
                await asyncio.sleep(0)
            case number if number < 300:
                await pool._repair.watch()
            case 300:
                await pool.suspend(full_name, 0)
            case 301:
                await pool._room._evict_one()
            case _:
                await pool._upkeep._rest()
    await asyncio.gather(*at_work.values())
    assert min(turns["a"], turns["b"]) > 200
    assert pool.stats()["died"] == 0
    told = pool.stats()["transitions"]
    # The turns had opponents: sandboxes froze and slept, and were thawed and woken by turns.
    assert {"running > warm", "warm > waiting", "waiting > suspending", "suspending > cold"} <= set(told)
    for sandbox in lines.values():
        await sandbox.close()


@pytest.mark.parametrize("node", ["process"], indirect=True)
async def test_a_death_behind_our_back(node: Node) -> None:
    pool = node.begin(capacity=2)
    name = node.spec("a").name
    async with connect_sandbox(await node.up("a"), epoch=1) as sandbox:
        await sandbox.write_file("memo", b"kept")
    await pool.stop(name)
    await node.up("a")
    pid = (await node.tier.inspect(name)).pid
    assert pid is not None
    os.kill(pid, 9)
    deadline = time.monotonic() + 20
    while pool.book.get(name).state is not SandboxState.COLD:  # type: ignore[union-attr]
        await pool.tick()
        assert time.monotonic() < deadline
    async with connect_sandbox(await node.up("a"), epoch=1) as sandbox:
        assert await sandbox.read_file("memo") == b"kept"
    assert pool.stats()["died"] == 1
