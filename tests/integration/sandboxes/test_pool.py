"""The pool with real sandboxes: room, eviction, and a running one that nobody can put to sleep."""

import asyncio
import hashlib
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    ImageSpec,
    PoolFull,
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
from sandboxes.pool.states import Cause, Kind
from sandboxes.pool.tally import Tally
from sandboxes.snapshots import LocalStore, Snapshots

SCRIPT = "import json, sys\nprint(json.dumps({'seen': json.load(sys.stdin)}))\n"
STEPS = 10_000


class Node:
    """A pool over a real tier."""

    def __init__(self, root: Path, tier: Tier) -> None:
        self.root, self.tier = root, tier
        (root / "image").mkdir()
        (root / "image/take_turn.py").write_text(SCRIPT)
        (root / "image").chmod(0o755)
        self.image = ImageSpec(name="test", root=root / "image", reference="skylease/base:dev")
        self.tally = Tally()

    def begin(self, **policy: Any) -> Pool:
        self.pool = Pool(
            Ground(
                tier=self.tier,
                snapshots=Snapshots(LocalStore(self.root / "store"), self.root / "scratch"),
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


@pytest.mark.parametrize("node", ["process"], indirect=True)
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
            assert (await sandbox.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}}
    assert node.tally.slot_hits == 2


@pytest.mark.parametrize("node", ["process"], indirect=True)
async def test_who_runs_never_dies(node: Node) -> None:
    """Messages against naps, sleep and eviction, in any order, without a pause between: 10,000 steps."""
    pool = node.begin(capacity=2, evict_idle_s=0.0)
    chance = random.Random(20261122)
    names = ("a", "b")
    marks = dict.fromkeys(names, 0)
    slept = 0

    def count(before: Any, cause: Cause, after: Any, _: float) -> None:
        nonlocal slept
        slept += cause is Cause.KEPT

    pool.book.observe(count)
    sandboxes = {name: connect_sandbox(await node.up(name), epoch=1) for name in names}

    async def message(name: str) -> None:
        """A command that takes a moment: it ends, and what it wrote is there."""
        while True:
            try:
                result = await sandboxes[name].exec(f"cat n; sleep 0.002; echo {marks[name] + 1} > n")
                break
            except SandboxGone:  # asleep: before it began, never while it ran
                await sandboxes[name].close()
                sandboxes[name] = connect_sandbox(await node.up(name), epoch=1)
        assert result.exit_code == 0
        assert result.stdout == (b"%d\n" % marks[name] if marks[name] else b"")
        marks[name] += 1

    running: dict[str, asyncio.Task[None]] = {}
    for step in range(STEPS):
        name = chance.choice(names)
        full_name = node.spec(name).name
        if step % 40 == 0 and (name not in running or running[name].done()):
            if name in running:
                await running[name]
            running[name] = asyncio.create_task(message(name))
        busy = {name for name, task in running.items() if not task.done()}
        match chance.randrange(600):
            case 0 | 3 | 4 | 5 if busy:  # while it runs
                await pool._demotion.nap(full_name)
            case 1 if busy:
                await pool.suspend(full_name, 0)
            case 2 if busy:
                await pool._room._evict_one()
            case _:
                entry = pool.book.get(full_name)
                if entry is not None and not pool._ground.is_taken(full_name):
                    pool._demotion.look(entry)
                await asyncio.sleep(0)
    await asyncio.gather(*running.values())
    assert min(marks.values()) > 20
    assert slept > 0, "nothing was put to sleep: the messages had no opponent"
    for sandbox in sandboxes.values():
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
