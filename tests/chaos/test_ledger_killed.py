"""Supervisor and host in one process that is killed on the way: ledger and node agree again afterwards.

Killed before each commit of the ledger, each move in the pool's book, and each deed of the tier or the
snapshots between them (what happens inside of those is killed in test_pool_killed.py). Then another takes
over, repairs, and everything can go on.
"""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from actors.endings import Endings
from actors.faces import LeaseRequest
from actors.host import Host, HostConfig, make_tier
from actors.idle import IdleLeases
from actors.placing import LeaseTerms, Placing
from actors.repair import Repairs
from actors.resources import shipped
from actors.steps import Steps
from leases import Cause, LeaseStatus, Ledger
from sandboxes import Limits, SandboxState, Tier, connect_sandbox, runtime_name
from sandboxes.pool.book import Book
from sandboxes.snapshots import Snapshots
from sandboxes.tiers.process import ProcessTier

STEPS = (
    (Book, ("move_all", "note")),
    (ProcessTier, ("create", "freeze", "destroy")),
    (Snapshots, ("take", "fill", "forget")),
)
LEASE = "did:plc:alice::catan-1"
NAME = runtime_name("did:plc:alice", "catan-1")
REQUEST = LeaseRequest(
    agent_did="did:plc:alice",
    environment_id="catan-1",
    environment_type="catan",
    authority_did="did:plc:gm",
    node_id="here",
)
TERMS = LeaseTerms(tier="process", ttl_ms=86_400_000, max_ttl_ms=None, sleep_after_ms=1)


class Crew:
    """The supervisor's parts and the host, over one directory; as long as the block.

    The tier, which keeps nothing but what this machine offers, is the same for all.
    """

    def __init__(self, root: Path, tier: Tier, tracer: Callable[[str], None] | None = None) -> None:
        config = HostConfig(node_id="here", root=root, images=shipped("images"), limits=Limits(), slots=4)
        self.tier = tier
        self.host = Host(config, self.tier)
        self.ledger = Ledger(root / "ledger.db", name_sandbox=runtime_name, tracer=tracer)
        self.steps = Steps()
        locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        seen = (self.ledger, lambda node_id: self.host, locks)
        clock = self.ledger.now_ms
        self.placing = Placing(*seen, TERMS, lambda: None)
        self.idle = IdleLeases(*seen)
        self.endings = Endings(*seen, self.steps, clock=clock, wake=lambda: None)
        self.repairs = Repairs(*seen, ("here",), clock=clock, unleased_ms=3_600_000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    async def acquire(self) -> None:
        await self.placing.acquire(REQUEST)

    async def sleep(self) -> None:
        await asyncio.sleep(0.01)  # longer than `sleep_after_ms`
        await self.idle.sweep()

    async def evict(self) -> None:
        """As the pool does when its room is needed: the ledger is told by nobody."""
        await self.host.suspend(NAME, 0)
        await self.repairs.round()

    async def wake(self) -> None:
        await self.placing.recover(LEASE, self.ledger.get(LEASE).epoch)

    async def destroy(self) -> None:
        self.ledger.expire(LEASE, Cause.OPERATOR)
        await self.endings.finish()

    async def write(self, content: bytes) -> None:
        placement = await self.placing.acquire(REQUEST)
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            await sandbox.write_file("memo", content)

    async def read(self) -> bytes:
        placement = await self.placing.acquire(REQUEST)
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            return await sandbox.read_file("memo")


Work = Callable[[Crew], Awaitable[object]]
# what is done before, and what is killed
DEEDS: dict[str, tuple[Work | None, Work]] = {
    "acquire": (None, Crew.acquire),
    "sleep": (lambda crew: crew.write(b"kept"), Crew.sleep),
    "evict": (lambda crew: crew.write(b"kept"), Crew.evict),
    "wake": (lambda crew: asleep(crew), Crew.wake),
    "destroy": (lambda crew: crew.write(b"kept"), Crew.destroy),
}


async def asleep(crew: Crew) -> None:
    await crew.write(b"kept")
    await crew.sleep()
    assert crew.ledger.get(LEASE).status is LeaseStatus.SLEEPING


def killed_at(step: int, root: Path, tier: Tier, deed: Work) -> int:
    """Do a deed in a child that kills itself before its n-th step; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = [step]

    def take() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            take()
            return real(*arguments, **keywords)

        return call

    code = 1
    try:
        with Crew(root, tier, lambda statement: take() if statement.startswith("COMMIT") else None) as crew:
            for owner, names in STEPS:
                for name in names:
                    setattr(owner, name, counted(getattr(owner, name)))
            asyncio.run(act(crew, deed))
        code = 0
    finally:
        os._exit(code)


async def act(crew: Crew, deed: Work) -> None:
    await deed(crew)


async def check_agreed(crew: Crew) -> None:
    """Somebody else has taken over: the books hold, the world is as they say, and once repaired, it stays."""
    await crew.host._pool.start()
    await crew.repairs.round()
    await crew.endings.finish()
    assert crew.steps.failures == {}
    crew.ledger.check_invariants()
    assert await crew.repairs.round(dry_run=True) == []
    held = [lease for lease in crew.ledger.list() if lease.is_live]
    awake = {lease.sandbox_id for lease in held if lease.status is LeaseStatus.ACTIVE}
    assert {seen.name for seen in await crew.host.list() if seen.alive} == awake
    assert set(await crew.host.kept()) <= {lease.sandbox_id for lease in held}


async def check_nothing_left(crew: Crew, root: Path) -> None:
    for lease in crew.ledger.list():
        if lease.is_live:
            crew.ledger.expire(lease.id, Cause.OPERATOR)
    await crew.endings.finish()
    assert crew.ledger.counts()["destroyed"] == len(crew.ledger.list())
    assert (await crew.host.list(), await crew.host.kept()) == ([], [])
    await crew.tier.sweep()
    info = await crew.tier.inspect(NAME)
    assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
    assert os.listdir(root / "sandboxes" / ".trash") == []
    crew.ledger.check_invariants()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    with Crew(tmp_path, make_tier("process", tmp_path / "sandboxes")) as crew:
        asyncio.run(crew.host.destroy(NAME))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DEEDS)
def test_killed_on_the_way_nothing_leaks_and_nothing_is_lost(root: Path, name: str) -> None:
    before, deed = DEEDS[name]
    tier = make_tier("process", root / "sandboxes")
    step, codes = 1, []
    while 0 not in codes:
        if before is not None:
            with Crew(root, tier) as crew:
                asyncio.run(act(crew, before))
        codes.append(killed_at(step, root, tier, deed))

        async def after(crew: Crew, written: bool = before is not None) -> None:
            await check_agreed(crew)
            if written and any(lease.is_live for lease in crew.ledger.list()):
                assert await crew.read() == b"kept"
                await check_agreed(crew)
            await check_nothing_left(crew, root)

        with Crew(root, tier) as crew:
            asyncio.run(after(crew))
        step += 1
        assert step < 300, "it never comes to its end"
    assert set(codes) == {0, -signal.SIGKILL}
    assert len(codes) > 5, codes
