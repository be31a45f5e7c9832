"""The host is killed wherever it changes something on the way, on every tier: no leak, no loss.

Acquire, snapshot, sleep, wake, evict, destroy: each is done once to learn the places in our code at which a
file, a process, a mount, a container or a row of the book changes. Then it is done again, killed before one
place after the other: some of them, or all (HYPOTHESIS_PROFILE=thorough). After each kill another host takes
over; the book agrees with what is there, what was written is there, and nothing that nobody knows.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from sandboxes import ImageNotBuilt, Limits, Sandbox, SandboxState, connect_sandbox, sleep
from sandboxes.pool.book import Book
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.states import Kind
from sandboxes.tiers import stage
from sandboxes.tiers.docker_disk import WorkspaceDisks
from sandboxes.tiers.docker_engine import Engine
from sandboxes.tiers.docker_tier import DockerTier
from tests.killing import killed_before, places, some_of

ORDER = SandboxOrder(
    name="first",
    lease_id="did:plc:alice::catan-1",
    epoch=1,
    agent_did="did:plc:alice",
    environment_id="catan-1",
    environment_type="catan",
)
OTHER = replace(ORDER, name="second", lease_id="did:plc:bob::catan-1", agent_did="did:plc:bob")
UNSEEN = (  # changes of which the interpreter tells nobody
    (Book, ("move_all", "note")),
    (Sandbox, ("_ask",)),
    (Engine, ("create", "start", "kill", "remove")),
    (WorkspaceDisks, ("hide",)),
    (stage, ("mount_disk",)),
)
KILLS = {"process": 8, "docker": 5}  # of each verb, if it is not a thorough run; thrice for sleep and wake
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
pytestmark = pytest.mark.timeout(3600 if IS_THOROUGH else 300)


class World:
    """A node's directory, and hosts over it as one process after the other would make them."""

    def __init__(self, root: Path, tier_name: str) -> None:
        self.root, self.capacity = root, 4
        self.tier = make_tier(tier_name, root / "sandboxes")  # it keeps nothing but what this machine offers

    def let_go(self) -> None:
        """Have no connection that a child would share with us."""
        if isinstance(self.tier, DockerTier):
            self.tier._engine.close()

    def host(self, *, slots: int = 0) -> Host:
        config = HostConfig(
            node_id="here",
            root=self.root,
            images=shipped("images"),
            limits=Limits(),
            slots=self.capacity,
            pool=PoolPolicy(evict_idle_s=0.0, warm_slots=slots),
        )
        return Host(config, self.tier)

    async def write(self, content: bytes) -> Host:
        """Have the files of the first one, and its agent's /data, say this; made if it is not there."""
        host = self.host()
        async with connect_sandbox(await host.create(ORDER), epoch=1) as sandbox:
            await sandbox.write_file("memo", content)
            await sandbox.write_file("/data/character.json", content)
        return host

    async def take_over(self) -> Host:
        """Begin anew: the book has what lives, and nothing is there that it does not have."""
        host = self.host()
        await host._pool.start()
        await self.tier.sweep()  # as a host does at start, and now and then
        live = {entry.name for entry in host._pool.book.entries() if entry.is_live}
        assert {info.name for info in await self.tier.list({})} == live
        assert len(live) <= self.capacity
        assert list(await self.tier.slots()) == []
        for name in {ORDER.name, OTHER.name} - live:
            info = await self.tier.inspect(name)
            assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
        assert os.listdir(self.root / "sandboxes" / ".trash") == []
        return host

    async def end(self) -> None:
        """Every lease is over: nothing is left."""
        host = self.host()
        for order in (ORDER, OTHER):
            await host.destroy(order.name)
        self.capacity = 0
        await self.take_over()
        assert list((self.root / "snapshots").glob("parked/*")) == []
        heads = os.listdir(self.root / "snapshots" / "store" / "heads")
        assert [head for head in heads if not head.startswith("data-")] == []
        with contextlib.closing(sqlite3.connect(self.root / "pool.db")) as book:
            assert book.execute("select count(*) from entries").fetchone() == (0,)
        assert str(self.root) not in Path("/proc/mounts").read_text()


async def read(host: Host, order: SandboxOrder = ORDER) -> tuple[bytes | None, bytes | None]:
    """Return what the one file says, and the agent's /data; None: there is none."""
    async with connect_sandbox(await host.create(order), epoch=1) as sandbox:
        files = [file.path for file in await sandbox.list_files()]
        assert files in ([], ["memo"])
        has_data = await sandbox.exists("/data/character.json")
        data = await sandbox.read_file("/data/character.json") if has_data else None
        return await sandbox.read_file("memo") if files else None, data


@pytest.fixture(params=["process", "docker"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    tmp_path.chmod(0o755)
    world = World(tmp_path, request.param)
    probe = asyncio.run(world.tier.probe())
    if not probe.ok:
        pytest.skip(f"{request.param}: {probe.lacks[0].why}")
    try:
        asyncio.run(world.host().image(ORDER.environment_type))
    except ImageNotBuilt as error:
        pytest.skip(f"{request.param}: {error}")
    yield world
    asyncio.run(world.end())


Prepare = Callable[[bytes], Awaitable[Host]]  # gets what to write; returns the host that does the verb
Verb = Callable[[Host], Awaitable[object]]
# Gets the host that took over, what was written, and whether the verb came to its end after all.
After = Callable[[Host, bytes, bool], Awaitable[None]]


def at_the_places(world: World, prepare: Prepare, verb: Verb, after: After, times: int = 1) -> None:
    """Kill a verb at some places, and look what is there each time."""

    async def look(content: bytes, is_done: bool) -> None:
        await after(await world.take_over(), content, is_done)

    world.let_go()
    found = places(lambda: prepare(b"unharmed"), verb, UNSEEN)
    asyncio.run(look(b"unharmed", True))
    chosen = found if IS_THOROUGH else some_of(found, times * KILLS[world.tier.name])
    killed = 0
    for number, place in enumerate(chosen):
        content = b"before place %d" % number
        world.let_go()
        code = killed_before(place, partial(prepare, content), verb, UNSEEN)
        assert code in (0, -signal.SIGKILL), place  # 0: not every run comes there
        killed += code != 0
        try:
            asyncio.run(look(content, code == 0))
        except BaseException as error:
            error.add_note(f"{'killed' if code else 'not killed'} at {place}")
            raise
    assert killed > len(chosen) // 2


async def keeps_all(host: Host, content: bytes, _: bool) -> None:
    assert await read(host) == (content, content)


def test_acquire(world: World) -> None:
    """A new one is there whole and empty, or not at all; the agent's /data as it was."""
    asyncio.run(world.write(b"of one before"))

    async def prepare(_: bytes) -> Host:
        host = world.host()
        await host.destroy(ORDER.name)
        return host

    async def after(host: Host, _: bytes, __: bool) -> None:
        assert await read(host) == (None, b"of one before")

    at_the_places(world, prepare, lambda host: host.create(ORDER), after)


def test_snapshot(world: World) -> None:
    """Taken for a fork: who is copied lives on untouched, the copy is whole or not there."""
    asyncio.run(world.write(b"to be copied"))
    pid = asyncio.run(world.tier.inspect(ORDER.name)).pid

    async def prepare(content: bytes) -> Host:
        host = await world.write(content)
        await host.destroy(OTHER.name)
        return host

    async def after(host: Host, content: bytes, is_done: bool) -> None:
        await keeps_all(host, content, is_done)
        assert (await world.tier.inspect(ORDER.name)).pid == pid
        memo, _ = await read(host, OTHER)
        assert memo == content or (memo is None and not is_done)

    at_the_places(world, prepare, lambda host: host.fork(ORDER.name, OTHER), after)


@pytest.mark.parametrize("way", ["unpacked", "parked"])
def test_sleep_and_wake(world: World, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files come back out of the snapshot, or on the disk that they were on."""
    if way == "parked":
        monkeypatch.setattr(sleep, "MIN_BYTES", 0)

    async def sleep_and_wake(host: Host) -> None:
        await host.put_to_sleep(ORDER.name)
        await host.create(ORDER)

    at_the_places(world, world.write, sleep_and_wake, keeps_all, 3 if way == "unpacked" else 1)


def test_evict(world: World) -> None:
    """Who gives way keeps its files, the other starts empty; never are there two."""
    world.capacity = 1

    async def prepare(content: bytes) -> Host:
        await world.host().destroy(OTHER.name)
        return await world.write(content)

    async def after(host: Host, content: bytes, is_done: bool) -> None:
        assert await read(host, OTHER) == (None, None)
        await keeps_all(host, content, is_done)

    at_the_places(world, prepare, lambda host: host.create(OTHER), after)


def test_destroy(world: World) -> None:
    """Ended again after the kill, nothing of it is left but the agent's /data, and the next one is empty."""

    async def prepare(content: bytes) -> Host:
        host = await world.write(content)
        await sleep.keep(world.tier, ORDER.name, host._snapshots)
        return host

    async def after(host: Host, content: bytes, _: bool) -> None:
        await host.destroy(ORDER.name)
        assert (await host.list(), await host.kept()) == ([], [])
        assert await read(host) == (None, content)

    at_the_places(world, prepare, lambda host: host.destroy(ORDER.name), after)


def test_slot(world: World) -> None:
    """Filled and claimed: no slot of the dead one is left, and none is handed out dirty."""
    if why := asyncio.run(world.tier.can_warm()):
        pytest.skip(why)

    async def prepare(content: bytes) -> Host:
        await world.host().destroy(OTHER.name)
        await world.write(content)
        host = world.host(slots=1)
        await host._pool.start()  # which ends the slots of others
        return host

    async def fill_and_claim(host: Host) -> None:
        pool = host._pool
        pool._slots.take(await host._spec(OTHER))  # it is asked for, and there is none
        pool._slots._recipes = {
            key: replace(recipe, asked_at=recipe.asked_at - 60)
            for key, recipe in pool._slots._recipes.items()
        }
        await pool._slots.tend()
        assert len(pool.book.entries(Kind.SLOT)) == 1
        await host.create(OTHER)
        assert pool.stats()["slot_hits"] == 1

    async def after(host: Host, content: bytes, is_done: bool) -> None:
        assert await read(host, OTHER) == (None, None)
        await keeps_all(host, content, is_done)

    at_the_places(world, prepare, fill_and_claim, after)
