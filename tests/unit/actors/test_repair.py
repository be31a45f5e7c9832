"""The ledger against a node: what is found, what is done, and that a second round finds nothing."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actors.faces import COLD, Names, SandboxOrder, SandboxSeen
from actors.repair import Repairs
from leases import Cause, Lease, LeaseStatus, Ledger, SandboxState
from sandboxes import SandboxFailed

NOON, HOUR = 1_763_726_400_000, 3_600_000
ALICE, BOB, GM = "did:plc:alice", "did:plc:bob", "did:plc:gm"
UNLEASED_MS = 4 * HOUR


class Node:
    """A node as its host tells of it: what is there by name, and of what there are snapshots."""

    def __init__(self) -> None:
        self.there: dict[str, SandboxSeen] = {}
        self.snapshots: dict[str, SandboxSeen] = {}
        self.destroyed: list[str] = []
        self.stuck: set[str] = set()

    def put(
        self, name: str, lease_id: str, *, epoch: int = 1, state: str = "warm", since: int = NOON
    ) -> None:
        seen = SandboxSeen(
            name=name,
            lease_id=lease_id,
            epoch=epoch,
            alive=state in ("warm", "waiting", "warming"),
            state=state,
            directory=Path("/", name),
            since_ms=since,
        )
        (self.snapshots if state == COLD else self.there)[name] = seen

    async def image(self, environment_type: str) -> str:
        return environment_type

    async def create(self, order: SandboxOrder) -> Path:
        self.put(order.name, order.lease_id, epoch=order.epoch)
        return Path("/", order.name)

    async def suspend(self, name: str, idle_ms: int) -> bool:
        return False

    async def destroy(self, name: str) -> None:
        if name in self.stuck:
            raise SandboxFailed(name, "it does not go")
        self.there.pop(name, None)
        self.snapshots.pop(name, None)
        self.destroyed.append(name)

    async def list(self) -> list[SandboxSeen]:
        return list(self.there.values())

    async def find(self, name: str) -> SandboxSeen:
        gone = SandboxSeen(
            name=name, lease_id="", epoch=0, alive=False, state="deleted", directory=Path("/", name)
        )
        seen = self.there.get(name, gone)
        return seen if seen.alive else self.snapshots.get(name, seen)

    async def kept(self) -> Names:
        return sorted(self.snapshots)


class World:
    """A ledger, two nodes, and a clock that stands still."""

    def __init__(self, path: Path) -> None:
        self.now = NOON
        self.ledger = Ledger(path, clock=lambda: self.now)
        self.nodes = {"one": Node(), "two": Node()}
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def repairs(self, *nodes: str, sees_all: bool = True) -> Repairs:
        return Repairs(
            self.ledger,
            self.nodes.__getitem__,
            self.locks,
            nodes or ("one", "two"),
            clock=lambda: self.now,
            unleased_ms=UNLEASED_MS,
            sees_all=sees_all,
        )

    def lease(self, agent: str = ALICE, node: str = "one", *, asleep: bool = False) -> Lease:
        lease = self.ledger.acquire(agent, "catan-1", "catan", authority_did=GM).lease
        self.ledger.place(lease.id, 1, sandbox_id=f"box-{agent[8:]}", node_id=node)
        self.ledger.sandbox_state(f"box-{agent[8:]}", SandboxState.RUNNING)
        if asleep:
            self.ledger.sleep(lease.id, 1)
        return self.ledger.get(lease.id)

    async def round(self, *nodes: str) -> list[str]:
        """One round; then another, which must find nothing more."""
        found = [f"{repair.name}: {repair.done}" for repair in await self.repairs(*nodes).round()]
        assert await self.repairs(*nodes).round() == []
        return found

    def told(self, lease: Lease) -> list[tuple[Cause, str | None]]:
        return [(event.cause, event.detail.get("why")) for event in self.ledger.history(lease.id)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "ledger.db")
    yield made
    made.ledger.check_invariants()
    made.ledger.close()


async def test_what_agrees_is_left_alone(world: World) -> None:
    awake, asleep = world.lease(), world.lease(BOB, asleep=True)
    world.nodes["one"].put("box-alice", awake.id)
    world.nodes["one"].put("box-bob", asleep.id, state=COLD)
    assert await world.round() == []
    assert world.nodes["one"].destroyed == []


@pytest.mark.parametrize("state", ["warm", "failed"])
@pytest.mark.parametrize("lease_id", ["nobody", f"{ALICE}::catan-1"], ids=["no-lease", "another-epoch"])
async def test_what_no_lease_owns_is_destroyed(world: World, state: str, lease_id: str) -> None:
    lease = world.lease()
    world.nodes["one"].put("box-alice", lease.id)
    world.nodes["one"].put("orphan", lease_id, epoch=7, state=state)
    assert await world.round() == ["orphan: destroyed"]
    assert set(world.nodes["one"].there) == {"box-alice"}
    (repair,) = world.ledger.repairs()
    assert (repair.name, repair.node_id, repair.done) == ("orphan", "one", "destroyed")
    assert world.ledger.counters()["repairs"] == 1


async def test_what_was_never_leased_lives_for_its_lifetime_and_no_longer(world: World) -> None:
    world.nodes["one"].put("by-hand", "")
    world.nodes["one"].put("dead", "", state="failed")
    assert await world.round() == ["dead: destroyed"]
    world.now += UNLEASED_MS - 1
    assert await world.round() == []
    world.now += 1
    assert await world.round() == ["by-hand: destroyed"]


async def test_what_its_node_put_away_stopped_costing_at_that_moment(world: World) -> None:
    lease = world.lease()
    world.nodes["one"].put("box-alice", lease.id, state=COLD, since=NOON + 5_000)
    world.now += HOUR
    assert await world.round() == []  # a node that makes room repairs nothing
    assert world.ledger.awake_ms(ALICE) == 5_000
    assert world.told(lease)[-1] == (Cause.SLEPT, "evicted")
    assert [placed.state for placed in world.ledger.sandboxes()] == [SandboxState.COLD]


async def test_what_died_after_its_last_snapshot_costs_until_that_is_noticed(world: World) -> None:
    lease = world.lease()
    world.nodes["one"].put("box-alice", lease.id, state=COLD, since=NOON - 1)
    world.now += 7_000
    assert await world.round() == ["box-alice: put to sleep"]
    assert world.ledger.awake_ms(ALICE) == 7_000
    assert world.told(lease)[-2:] == [(Cause.SANDBOX_LOST, "lost"), (Cause.REPAIRED, None)]
    lost = world.ledger.history(lease.id)[-2]
    assert (lost.node_id, lost.sandbox_id, lost.to_status) == ("one", "box-alice", LeaseStatus.SLEEPING)


async def test_what_is_awake_by_itself_is_adopted_and_costs_since_it_was_made(world: World) -> None:
    lease = world.lease(asleep=True)
    world.now += 20_000
    world.nodes["one"].put("box-alice", lease.id, since=NOON + 15_000)
    assert await world.round() == ["box-alice: adopted"]
    assert world.ledger.get(lease.id).status is LeaseStatus.ACTIVE
    assert world.ledger.awake_ms(ALICE) == 5_000


async def test_what_is_half_made_is_left_to_its_host(world: World) -> None:
    lease = world.lease(asleep=True)
    world.nodes["one"].put("box-alice", lease.id, state="warming")
    assert await world.round() == []
    assert world.ledger.get(lease.id).status is LeaseStatus.SLEEPING


@pytest.mark.parametrize(("where", "state"), [("two", "warm"), ("two", COLD), (None, "")])
async def test_a_lease_of_a_node_that_is_gone_moves_to_where_its_sandbox_is(
    world: World, where: str | None, state: str
) -> None:
    lease = world.lease(node="of-yesterday")
    ended = world.lease(BOB, node="of-yesterday")
    world.ledger.expire(ended.id, Cause.TTL)
    if where is not None:
        world.nodes[where].put("box-alice", lease.id, state=state)
    moved = await world.round()
    assert moved[:2] == ["box-alice: moved", "box-bob: moved"]
    assert world.ledger.get(lease.id).node_id == (where or "one")
    assert world.ledger.get(ended.id).node_id == "one"  # whose host will say that nothing is left
    is_awake = world.ledger.get(lease.id).status is LeaseStatus.ACTIVE
    assert is_awake is (state == "warm")


async def test_snapshots_go_with_their_lease_and_those_of_strangers_stay(world: World) -> None:
    over, asleep = world.lease(), world.lease(BOB, asleep=True)
    world.ledger.expire(over.id, Cause.RELEASED)
    for name, lease_id in (("box-alice", over.id), ("box-bob", asleep.id), ("a-backup", "")):
        world.nodes["one"].put(name, lease_id, state=COLD)
    assert await world.round() == []  # it is ending: its host still has to say so
    world.ledger.destroyed(over.id)
    assert await world.round() == ["box-alice: forgotten"]
    assert set(world.nodes["one"].snapshots) == {"box-bob", "a-backup"}


async def test_a_dry_run_says_all_of_it_and_changes_nothing(world: World) -> None:
    lease, asleep = world.lease(), world.lease(BOB, asleep=True)
    world.nodes["one"].put("box-alice", lease.id, state=COLD, since=NOON + 1)
    world.nodes["one"].put("box-bob", asleep.id)
    world.nodes["two"].put("orphan", "nobody")
    world.now += 10
    before = world.ledger.digest()
    found = await world.repairs().round(dry_run=True)
    assert [str(repair) for repair in found] == [
        "box-bob of did:plc:bob::catan-1: awake, its lease sleeps; adopted",
        "box-alice of did:plc:alice::catan-1: cold, its lease is awake; put to sleep",
        "orphan of nobody: no lease owns it; destroyed",
    ]
    assert world.ledger.digest() == before
    assert world.ledger.repairs() == []
    assert world.nodes["two"].destroyed == []


async def test_one_that_cannot_be_repaired_stops_no_other(world: World) -> None:
    world.nodes["one"].put("a", "nobody")
    world.nodes["one"].put("b", "nobody")
    world.nodes["one"].stuck = {"a"}
    with pytest.raises(SandboxFailed, match="a"):
        await world.repairs().round()
    assert world.nodes["one"].destroyed == ["b"]
    assert [repair.name for repair in world.ledger.repairs()] == ["b"]  # only what was done


async def test_a_node_that_does_not_answer_stops_no_other(world: World) -> None:
    async def silent() -> list[SandboxSeen]:
        raise SandboxFailed("one", "its engine does not answer")

    world.nodes["one"].list = silent  # type: ignore[method-assign]
    world.nodes["two"].put("orphan", "nobody")
    with pytest.raises(SandboxFailed):
        await world.repairs().round()
    assert world.nodes["two"].destroyed == ["orphan"]


async def test_what_is_being_made_or_destroyed_is_left_to_the_next_round(world: World) -> None:
    lease = world.lease()
    async with world.locks[lease.id]:
        assert await world.repairs().round() == []
    assert world.ledger.get(lease.id).status is LeaseStatus.ACTIVE
    assert len(await world.repairs().round()) == 1


async def test_who_does_not_see_all_nodes_takes_nothing_for_lost(world: World) -> None:
    lease = world.lease(node="elsewhere")
    assert await world.repairs("one", sees_all=False).round() == []
    assert world.ledger.get(lease.id).node_id == "elsewhere"


RACES: dict[str, Callable[[World, Lease], object]] = {
    "ends": lambda world, lease: world.ledger.expire(lease.id, Cause.TTL),
    "sleeps": lambda world, lease: world.ledger.sleep(lease.id, 1),
    "is-made-again": lambda world, lease: world.nodes["one"].put("box-alice", lease.id),
}


@pytest.mark.parametrize("race", RACES)
async def test_what_changes_while_we_look_is_not_repaired(world: World, race: str) -> None:
    lease = world.lease()
    node = world.nodes["one"]
    ask = node.list

    async def slow_list() -> list[SandboxSeen]:
        there = await ask()
        RACES[race](world, replace(lease))
        return there

    node.list = slow_list  # type: ignore[method-assign]
    assert await world.repairs().round() == []
