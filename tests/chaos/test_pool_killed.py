"""The host is killed before and after each thing that its pool writes down: no leak, no loss.

Sleeping and waking are killed at finer steps in test_sleep_killed.py.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from sandboxes import Limits, SandboxState, connect_sandbox
from sandboxes.pool.book import Book
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.states import Kind

ORDER = SandboxOrder(
    name="first",
    lease_id="did:plc:alice::catan-1",
    epoch=1,
    agent_did="did:plc:alice",
    environment_id="catan-1",
    environment_type="catan",
)
OTHER = replace(ORDER, name="second", lease_id="did:plc:bob::catan-1", agent_did="did:plc:bob")
CAPACITY = 1


def host_over(root: Path, *, capacity: int = CAPACITY, slots: int = 0) -> Host:
    return Host(
        HostConfig(
            node_id="here",
            root=root,
            images=shipped("images"),
            limits=Limits(),
            slots=capacity,
            pool=PoolPolicy(evict_idle_s=0.0, warm_slots=slots),
        ),
        make_tier("process", root / "sandboxes"),
    )


def killed_at(step: int, work: Callable[[], Awaitable[Any]]) -> int:
    """Do some work in a child that kills itself before (even) or after (odd) a write of its pool's book."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    count = 0
    real = Book.move_all

    def counted(book: Book, moves: Any) -> Any:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(book, moves)
        if count + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 2
        return done

    code = 1
    try:
        Book.move_all = counted  # type: ignore[method-assign,assignment]
        asyncio.run(work())  # type: ignore[arg-type]
        code = 0
    finally:
        os._exit(code)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path

    async def end() -> None:
        host = host_over(tmp_path)
        for order in (ORDER, OTHER):
            await host.destroy(order.name)
        tier = make_tier("process", tmp_path / "sandboxes")
        await tier.sweep()
        for order in (ORDER, OTHER):
            info = await tier.inspect(order.name)
            assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
        assert (await tier.list({}), list(await tier.slots())) == ([], [])

    asyncio.run(end())
    assert os.listdir(tmp_path / "snapshots" / "store" / "heads") == []
    assert os.listdir(tmp_path / "sandboxes" / ".trash") == []
    assert sqlite3.connect(tmp_path / "pool.db").execute("select count(*) from entries").fetchone() == (0,)


async def write(root: Path, content: bytes, order: SandboxOrder = ORDER) -> None:
    async with connect_sandbox(await host_over(root).create(order), epoch=1) as sandbox:
        await sandbox.write_file("memo", content)


async def check(root: Path, order: SandboxOrder, content: bytes | None) -> None:
    """What is there is in the book and no more than there is room for; `order` has these files, and works."""
    host = host_over(root)
    directory = await host.create(order)
    async with connect_sandbox(directory, epoch=1) as sandbox:
        files = {file.path: await sandbox.read_file(file.path) for file in await sandbox.list_files()}
        assert files == ({} if content is None else {"memo": content})
    living = [info for info in await host._tier.list({}) if info.state is not SandboxState.FAILED]
    assert [info.name for info in living] == [order.name]
    assert [entry.name for entry in host._pool.book.entries() if entry.is_live] == [order.name]


def at_every_step(
    root: Path, prepare: Callable[[], Any], work: Callable[[], Any], after: Callable[[], Any]
) -> None:
    """Kill the work at one step after the other, until it comes to its end; look what is there each time."""
    step, codes = 0, []
    while 0 not in codes:
        asyncio.run(prepare())
        codes.append(killed_at(step, work))
        asyncio.run(after())
        step += 1
        assert step < 40, "it never comes to its end"
    assert len(codes) > 2
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.timeout(300)
def test_evicting_one_for_another(root: Path) -> None:
    """Put to sleep, destroyed, room taken, made: who gives way keeps its files, the other starts empty."""

    async def prepare() -> None:
        await host_over(root).destroy(OTHER.name)
        await write(root, b"of the first")

    async def after() -> None:
        await check(root, OTHER, None)
        await check(root, ORDER, b"of the first")

    at_every_step(root, prepare, lambda: host_over(root).create(OTHER), after)


@pytest.mark.timeout(300)
def test_filling_and_claiming_a_slot(root: Path) -> None:
    async def prepare() -> None:
        await host_over(root).destroy(OTHER.name)
        await write(root, b"of the first")

    async def fill_and_claim() -> None:
        host = host_over(root, capacity=3, slots=1)
        await host.create(ORDER)
        pool = host._pool
        pool._slots.take(await host._spec(ORDER))  # it is asked for, and there is none
        pool._slots._recipes = {
            key: replace(r, asked_at=r.asked_at - 60) for key, r in pool._slots._recipes.items()
        }
        await pool._slots.tend()
        assert len(pool.book.entries(Kind.SLOT)) == 1
        await host.create(OTHER)
        assert pool.stats()["slot_hits"] == 1

    async def after() -> None:
        """No slot of the dead one is left, and none was handed out dirty."""
        host = host_over(root)
        await host.suspend(ORDER.name, 0)
        assert list(await host._tier.slots()) == []
        await check(root, OTHER, None)
        await check(root, ORDER, b"of the first")

    at_every_step(root, prepare, fill_and_claim, after)


@pytest.mark.timeout(300)
def test_destroying(root: Path) -> None:
    """Ended again after the kill, nothing of it is left, and the next one starts empty."""

    async def after() -> None:
        await host_over(root).destroy(ORDER.name)
        await check(root, ORDER, None)

    async def prepare() -> None:
        await write(root, b"of the one before")
        assert await host_over(root).suspend(ORDER.name, 0)
        await host_over(root).create(ORDER)

    at_every_step(root, prepare, lambda: host_over(root).destroy(ORDER.name), after)
