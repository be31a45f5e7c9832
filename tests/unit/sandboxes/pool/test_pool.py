"""Capacity, eviction, rest, death, forks and repair, over a tier in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandboxes import PoolFull, SandboxExists, SandboxFailed, SandboxNotFound
from sandboxes.errors import SandboxBusy
from sandboxes.pool.states import Cause, Kind
from sandboxes.snapshots import LocalStore
from sandboxes.snapshots.errors import SnapshotMissing, StoreUnavailable
from sandboxes.snapshots.two_level_store import TwoLevelStore
from sandboxes.spec import SandboxState as S

Node = Any  # of conftest.py


async def test_the_same_one_comes_back_while_it_lives(node: Node) -> None:
    first = await node.up("a")
    node.write("a", b"kept")
    assert await node.up("a") == first
    assert node.read("a") == b"kept"
    assert (node.pool.stats()["resume_warm_hits"], node.ground.tally.made) == (1, 1)


async def test_a_newer_epoch_gets_a_sandbox_of_its_own(node: Node) -> None:
    await node.up("a")
    node.write("a", b"of epoch 1")
    await node.up("a", epoch=2)
    assert node.read("a") is None
    assert (node.book.get("a").epoch, node.tier.made["a"].epoch) == (2, 2)


@pytest.mark.parametrize("wait_s", [0.0, 30.0])
async def test_fifty_creations_at_capacity_five(make_node: Callable[..., Node], wait_s: float) -> None:
    """Those that find no room wait for it, or are told how much there is and when to try again."""
    node = make_node(capacity=5, evict_idle_s=3600.0, wait_s=wait_s)
    node.tier.is_slow = True
    told: list[tuple[int, int, bool]] = []

    async def live(number: int) -> str:
        name = f"n{number}"
        try:
            await node.up(name)
        except PoolFull as full:
            told.append((full.capacity, full.in_use, full.retry_after_s > 0))
            return "refused"
        if wait_s:
            await node.pool.destroy(name)
        return "made"

    ended = await asyncio.gather(*(live(number) for number in range(50)))
    assert node.tier.most == 5
    assert ended.count("made") == (50 if wait_s else 5)
    assert told == [(5, 5, True)] * ended.count("refused")


async def test_the_order_of_eviction_is_cold_slots_idle(node: Node) -> None:
    """With one of each at capacity; the longest idle first, the running one never."""
    node.store = TwoLevelStore(LocalStore(node.root / "near"), LocalStore(node.root / "far"))
    node.set(capacity=4, max_asleep=4, warm_slots=1)
    for name in ("sleeper", "older", "runner", "newer"):
        await node.up(name)
        node.write(name, name.encode())
        await node.touch(name)
        node.time.pass_(1)
    await node.pool.stop("sleeper")
    node.time.pass_(5)
    await node.pool._slots.tend()
    assert [entry.state for entry in node.book.entries(Kind.SLOT)] == [S.WARM]
    gone = []
    node.book.observe(
        lambda before, cause, after, _: (
            gone.append(("slot" if before.is_slot else before.name, cause))
            if cause in (Cause.COOLED, Cause.DISCARDED, Cause.EVICTED)
            else None
        )
    )
    (node.root / "image" / "take_turn.py").write_text("changed")  # so that no slot fits
    async with node.using("runner"):
        for name in ("x", "y", "z"):
            await node.up(name)
            async with node.using(name):  # it gives way to none of the others
                pass
            node.time.pass_(1)
        assert gone == [
            ("sleeper", Cause.COOLED),
            ("slot", Cause.DISCARDED),
            ("older", Cause.EVICTED),
            ("older", Cause.COOLED),
            ("newer", Cause.EVICTED),
        ]
        assert node.state("runner") is S.RUNNING
    for name in ("older", "newer", "sleeper"):  # nothing is lost
        await node.up(name)
        assert node.read(name) == name.encode()
    assert node.pool.stats()["resume_hits"]["store"] >= 2


async def test_who_runs_never_gives_way(node: Node) -> None:
    for name in ("a", "b", "c"):
        await node.up(name)
    async with node.using("a"), node.using("b"), node.using("c"):
        with pytest.raises(PoolFull, match="3 of 3"):
            await node.up("d")
    assert node.tier.alive == {"a", "b", "c"}
    assert node.pool.stats()["refused"] == 1
    assert await node.up("d")


async def test_a_request_between_the_choice_and_the_deed(node: Node, monkeypatch: Any) -> None:
    """The longest idle one is used after it was chosen: it survives, and the next in order goes."""
    for name in ("a", "b", "c"):
        await node.up(name)
        node.time.pass_(1)
    freeze, holding = node.tier.freeze, asyncio.Event()

    async def used_first(name: str) -> None:
        if name == "a":
            async with node.using("a"):
                holding.set()
                await freeze(name)
        await freeze(name)

    monkeypatch.setattr(node.tier, "freeze", used_first)
    await node.up("d")
    assert holding.is_set()
    assert node.tier.alive == {"a", "c", "d"}
    assert (node.state("a"), node.state("b")) == (S.WARM, S.COLD)
    assert node.pool.stats()["not_evicted"] == {"used": 1}


async def test_who_was_just_used_does_not_give_way(node: Node) -> None:
    node.set(evict_idle_s=2.0)
    for name in ("a", "b", "c"):
        await node.up(name)
    node.time.pass_(0.5)
    with pytest.raises(PoolFull) as caught:
        await node.up("d")
    assert caught.value.retry_after_s == 1.5
    node.time.pass_(1.5)
    assert await node.up("d")


async def test_who_waits_gets_the_room_that_becomes_free_first_come_first_served(node: Node) -> None:
    node.set(wait_s=60.0, evict_idle_s=3600.0)
    for name in ("a", "b", "c"):
        await node.up(name)
    order: list[str] = []

    async def wait(name: str) -> None:
        await node.up(name)
        order.append(name)

    waiting = [asyncio.create_task(wait(name)) for name in ("d", "e", "f")]
    await asyncio.sleep(0.01)
    assert order == []
    for number, name in enumerate(("a", "b", "c")):
        await node.pool.destroy(name)
        await waiting[number]
    assert order == ["d", "e", "f"]


async def test_a_creation_that_is_cancelled_takes_no_room(node: Node) -> None:
    node.tier.is_slow = True
    making = asyncio.create_task(node.up("a"))
    while node.state("a") is not S.WARMING:
        await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert (node.state("a"), node.pool.stats()["in_use"]) == (S.DELETED, 0)


async def test_what_cannot_be_made_leaves_nothing_and_loses_nothing(node: Node) -> None:
    await node.up("a")
    node.write("a", b"kept")
    await node.pool.stop("a")
    node.tier.broken = True
    for name, state in (("a", S.COLD), ("b", S.DELETED)):
        with pytest.raises(SandboxFailed):
            await node.up(name)
        assert node.state(name) is state
    node.tier.broken = False
    await node.up("a")
    assert node.read("a") == b"kept"


async def test_who_sleeps_and_has_lost_its_files_does_not_start_anew_in_silence(node: Node) -> None:
    await node.up("a")
    await node.pool.stop("a")
    node.snapshots.forget("a")
    with pytest.raises(SnapshotMissing, match="not in the store any more"):
        await node.up("a")


async def test_a_store_that_fails_keeps_the_sandbox_awake(node: Node, monkeypatch: Any) -> None:
    for name in ("a", "b", "c"):
        await node.up(name)
        node.write(name, b"here")
    advance = node.store.advance
    monkeypatch.setattr(
        node.store, "advance", lambda *_: (_ for _ in ()).throw(StoreUnavailable("store", "it is full"))
    )
    with pytest.raises(StoreUnavailable, match="it is full"):
        await node.pool.stop("a")
    with pytest.raises(PoolFull):
        await node.up("d")
    assert node.tier.alive == {"a", "b", "c"}
    assert node.pool.stats()["not_evicted"] == {"not kept": 2}  # a is not tried again for a while
    monkeypatch.setattr(node.store, "advance", advance)
    async with node.using("a"):  # it works on, files and all
        assert node.read("a") == b"here"
    node.time.pass_(31)
    assert await node.up("d")


async def test_the_last_copy_is_never_dropped(node: Node) -> None:
    """There is no shared store: too many sleep here, and all of them stay."""
    node.set(max_asleep=1)
    for number in range(6):
        await node.up(f"n{number}")
        node.write(f"n{number}", b"%d" % number)
        await node.pool.stop(f"n{number}")
    await node.pool.tick()
    assert node.pool.stats()["not_evicted"]["last copy"] > 0
    for number in range(6):
        await node.up(f"n{number}")
        assert node.read(f"n{number}") == b"%d" % number


async def test_naps_and_sleep_by_the_clock(node: Node) -> None:
    node.set(nap_after_s=10, sleep_after_s=100, capacity=4)
    for name in ("a", "b", "used"):
        await node.up(name)
    async with node.using("used"):
        for seconds, state in ((9, S.WARM), (2, S.WAITING), (80, S.WAITING), (10, S.COLD)):
            node.time.pass_(seconds)
            await node.pool.tick()
            assert (node.state("a"), node.state("used")) == (state, S.RUNNING)
    await node.up("a")
    node.time.pass_(11)
    await node.pool.tick()
    await node.touch("a")
    await node.pool.tick()
    assert node.state("a") is S.WARM
    assert node.pool.stats()["resume_hits"]["nap"] == 1


async def test_pause_and_stop(node: Node) -> None:
    await node.up("a")
    async with node.using("a"):
        for deed in (node.pool.pause, node.pool.stop):
            with pytest.raises(SandboxBusy):
                await deed("a")
    await node.pool.pause("a")
    assert node.state("a") is S.WAITING
    await node.pool.pause("a")  # again is no harm
    await node.pool.stop("a")
    assert (node.state("a"), node.tier.alive) == (S.COLD, set())
    await node.pool.stop("a")
    for deed in (node.pool.pause, node.pool.stop):
        with pytest.raises(SandboxNotFound):
            await deed("nobody")
        await node.up("dying")
        node.die("dying")
        with pytest.raises(SandboxNotFound):  # nobody has noticed before
            await deed("dying")
    assert await node.pool.suspend("nobody", 0) is False


@pytest.mark.parametrize("asleep", [False, True])
async def test_a_fork_goes_its_own_way(node: Node, asleep: bool) -> None:
    await node.up("a")
    node.write("a", b"common")
    if asleep:
        await node.pool.stop("a")
    await node.pool.fork("a", node.spec("b", epoch=5))
    assert (node.read("b"), node.book.get("b").epoch) == (b"common", 5)
    await node.up("a")
    node.write("b", b"of b")
    node.write("a", b"of a")
    for name in ("a", "b"):
        await node.pool.stop(name)
    await node.pool.destroy("a")
    node.snapshots.collect(grace_ms=0)
    await node.up("b", epoch=5)
    assert node.read("b") == b"of b"


async def test_forks_that_cannot_be(node: Node) -> None:
    with pytest.raises(SandboxNotFound):
        await node.pool.fork("nobody", node.spec("b"))
    await node.up("a")
    await node.up("b")
    with pytest.raises(SandboxExists):
        await node.pool.fork("a", node.spec("b"))
    async with node.using("a"):
        with pytest.raises(SandboxBusy):
            await node.pool.fork("a", node.spec("c"))
    node.tier.broken = True
    with pytest.raises(SandboxFailed):
        await node.pool.fork("a", node.spec("c"))
    assert (node.state("c"), node.snapshots.has("c"), node.state("a")) == (S.DELETED, False, S.WAITING)


async def test_who_dies_is_noticed_and_comes_back_with_its_last_snapshot(node: Node) -> None:
    for name in ("slept", "never"):
        await node.up(name)
        node.write(name, b"kept")
    await node.pool.stop("slept")
    await node.up("slept")
    node.write("slept", b"not kept")
    for name in ("slept", "never"):
        node.die(name)
    await node.pool.tick()
    assert (node.state("slept"), node.state("never")) == (S.COLD, S.DELETED)
    assert [row["after"] for row in node.book.story("slept", 2)] == [S.FAILED, S.COLD]
    assert node.pool.stats()["died"] == 2
    await node.up("slept")
    assert node.read("slept") == b"kept"


async def test_who_asks_first_notices_a_death_too(node: Node) -> None:
    await node.up("a")
    node.die("a")
    await node.up("a")
    assert "a" in node.tier.alive
    assert [row["cause"] for row in node.book.story("a", 4)] == [
        Cause.DIED, Cause.FORGOTTEN, Cause.ORDERED, Cause.READY,
    ]  # fmt: skip


async def test_after_a_kill_the_book_agrees_with_what_is_there(node: Node) -> None:
    """Killed with one in each state: what lives lives on, what slept sleeps, what was half made is gone."""
    node.set(capacity=8)
    for name in ("up", "asleep", "half", "suspended", "dead", "unknown"):
        await node.up(name)
        node.write(name, name.encode())
    await node.pool.stop("asleep")
    for name, cause in (("suspended", Cause.SLEPT),):
        node.book.move(name, cause)
    (node.root / "half" / "hydrated").unlink()
    node.book.move("half", Cause.DIED)
    node.die("dead")
    node.book.move("unknown", Cause.DESTROYED)  # the power went, and the book lost that it was made
    node.begin()
    await node.pool.start()
    states = {entry.name: entry.state for entry in node.book.entries()}
    assert states == {"up": S.WARM, "asleep": S.COLD, "suspended": S.WARM, "unknown": S.WARM}
    assert node.tier.alive == {"up", "suspended", "unknown"}
    await node.up("asleep")
    assert node.read("asleep") == b"asleep"


async def test_when_memory_is_short_the_longest_idle_give_way(node: Node) -> None:
    used = [0.95]
    node.rest = {"memory_used": lambda: used[0]}
    node.set(memory_high=0.9, warm_slots=1, capacity=5)
    for name in ("a", "b", "c", "d"):
        await node.up(name)
        node.time.pass_(1)
    node.time.pass_(5)
    await node.pool._slots.tend()
    node.book.observe(
        lambda before, cause, after, _: (
            used.append(used.pop() - 0.03) if after.state in (S.COLD, S.DELETED) else None
        )
    )
    async with node.using("a"):
        await node.pool._upkeep.tick()
    assert node.book.entries(Kind.SLOT) == []
    assert [node.state(name) for name in ("a", "b", "c", "d")] == [S.RUNNING, S.COLD, S.WARM, S.WARM]


async def test_who_dozes_is_paged_out_once_and_counted_when_it_wakes(node: Node) -> None:
    paged: list[int] = []

    def page_out(pid: int) -> int:
        paged.append(pid)
        return 4096

    node.rest = {"page_out": page_out}
    node.set(nap_after_s=10, doze_after_s=60)
    await node.up("a")
    for seconds in (11, 50, 5, 5):
        node.time.pass_(seconds)
        await node.pool.tick()
    assert (paged, node.pool.stats()["dozing"]) == ([1], 1)
    await node.touch("a")
    await node.pool.tick()
    stats = node.pool.stats()
    assert (stats["dozing"], stats["resume_hits"]["doze"], stats["resume_hits"]["nap"]) == (0, 1, 0)
