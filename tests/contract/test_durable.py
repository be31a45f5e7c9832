"""An agent's /data outlives its sandbox, its lease and its node; one sandbox at a time writes it."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sandboxes import DataInUse, Sandbox, SandboxSpec, SandboxState, Tier, connect_sandbox
from sandboxes.durable import DurableData
from sandboxes.pool.book import Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.tally import Tally
from sandboxes.sleep import ALIVE
from sandboxes.snapshots import LocalStore, Snapshots

ALICE = "did:plc:alice"
SHEET = os.urandom(3000)
WRITE = (
    "mkdir -p /data/memory && cat > /data/character.json && echo m > /data/memory/one && chmod 600 /data/m*/*"
)


class Node:
    """A node with its own directory, and a store that it shares with others."""

    def __init__(self, bench: Any, root: Path, store: Path) -> None:
        self.bench, self.root = bench, root
        root.mkdir()
        self.tier: Tier = bench.tier_over(root / "sandboxes")
        self.snapshots = Snapshots(LocalStore(store), root / "scratch")
        self.data = DurableData(root, self.snapshots, is_alive=self._lives)
        self.pool = Pool(
            Ground(
                tier=self.tier,
                snapshots=self.snapshots,
                book=Book(root / "pool.db"),
                policy=PoolPolicy(),
                tally=Tally(),
                prepare=self._prepare,
                left=self.data.let_go,
            )
        )

    async def _lives(self, name: str) -> bool:
        return (await self.tier.inspect(name)).state in ALIVE

    async def _prepare(self, spec: SandboxSpec) -> None:
        await self.data.hold(ALICE, spec.name)

    async def acquire(self, name: str, epoch: int = 1) -> Sandbox:
        spec = self.bench.spec(name, epoch=epoch, data_dir=self.data.directory(ALICE))
        return connect_sandbox(await self.pool.acquire(spec), epoch=epoch)

    async def close(self) -> None:
        for info in await self.tier.list({}):
            await self.pool.destroy(info.name)


@pytest.fixture
async def nodes(bench: Any, tmp_path: Path) -> Any:
    if bench.tier.name == "unsafe":
        pytest.skip("unsafe has no /data")
    made = [Node(bench, tmp_path / name, tmp_path / "store") for name in ("here", "there")]
    yield made
    for node in made:
        await node.close()


async def write(sandbox: Sandbox, content: bytes) -> None:
    done = await sandbox.exec(WRITE, stdin=content)
    assert done.exit_code == 0, done.stderr_text
    await sandbox.close()


async def read(sandbox: Sandbox) -> bytes:
    async with sandbox:
        assert (
            await sandbox.exec("find /data/memory/one -printf '%m '; cat /data/memory/one")
        ).stdout == b"600 m\n"
        return await sandbox.read_file("/data/character.json")


async def test_byte_equal_after_sleep_after_a_kill_and_on_the_next_node(nodes: list[Node]) -> None:
    here, there = nodes
    await write(await here.acquire("first"), SHEET)
    assert await here.pool.suspend("first", 0)
    assert await read(await here.acquire("first")) == SHEET

    pid = (await here.tier.inspect("first")).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while (await here.tier.inspect("first")).state in ALIVE:
        await asyncio.sleep(0.01)
    assert await read(await here.acquire("first")) == SHEET

    await here.pool.destroy("first")
    assert await read(await there.acquire("second")) == SHEET
    await write(await there.acquire("second"), SHEET[::-1])
    assert await there.pool.suspend("second", 0)  # asleep there, it holds nothing
    assert await read(await here.acquire("third")) == SHEET[::-1]  # what is here is older


async def test_one_living_sandbox_of_an_agent_has_it(nodes: list[Node]) -> None:
    here, _ = nodes
    await write(await here.acquire("first"), SHEET)
    with pytest.raises(DataInUse) as refused:
        await here.acquire("second")
    assert (refused.value.owner, refused.value.holder) == (ALICE, "first")
    assert (await here.tier.inspect("second")).state is SandboxState.DELETED
    again = await asyncio.gather(*(here.acquire(f"at-once-{n}") for n in range(3)), return_exceptions=True)
    assert {type(one) for one in again} == {DataInUse}
    await here.pool.suspend("first", 0)
    assert await read(await here.acquire("second")) == SHEET
    with pytest.raises(DataInUse):
        await here.acquire("first")
    await here.pool.destroy("second")
    assert await read(await here.acquire("first")) == SHEET


async def test_who_lost_it_to_another_node_overwrites_nothing(nodes: list[Node]) -> None:
    here, there = nodes
    await write(await here.acquire("first"), b"kept")
    await here.pool.suspend("first", 0)
    await write(await here.acquire("first"), b"of a node that is cut off")
    await write(await there.acquire("second"), b"newest")
    await there.pool.destroy("second")
    await here.pool.destroy("first")
    assert await read(await there.acquire("third")) == b"newest"
    assert await there.pool.suspend("third", 0)
    assert await read(await here.acquire("fourth")) == b"newest"
    (aside,) = (here.root / "data-held").glob("*.superseded")
    assert (aside / "character.json").read_bytes() == b"of a node that is cut off"
