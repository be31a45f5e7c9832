"""Warm slots of the pool, over a tier in memory."""

import asyncio
from typing import Any

import pytest

from sandboxes import SandboxFailed, SandboxState, TierUnavailable
from sandboxes.pool.states import Cause, Kind
from sandboxes.spec import SandboxState as S

Node = Any  # of conftest.py


@pytest.fixture
def slotted(node: Node) -> Node:
    node.set(warm_slots=2, capacity=5, slot_max_age_s=100)
    return node


async def filled(node: Node) -> list[str]:
    node.time.pass_(2)
    await node.pool._slots.tend()
    return [entry.name for entry in node.book.entries(Kind.SLOT)]


async def test_slots_are_filled_for_what_was_asked_for_and_used_once(slotted: Node) -> None:
    node = slotted
    assert await filled(node) == []
    await node.up("a")
    await node.pool._slots.tend()
    assert node.book.entries(Kind.SLOT) == []  # somebody may be about to ask for more
    slots = await filled(node)
    assert len(slots) == 2
    await node.up("b")
    stats = node.pool.stats()
    assert (stats["slot_hits"], stats["slot_misses"], stats["in_use"]) == (1, 1, 3)
    again = await filled(node)
    assert len(again) == 2
    assert len(set(again) & set(slots)) == 1


async def test_slots_never_take_the_last_room_twice(slotted: Node) -> None:
    node = slotted
    node.set(capacity=3)
    await node.up("a")
    await node.up("b")
    assert len(await filled(node)) == 1
    await node.up("c")  # of the slot
    await node.up("d")  # somebody gives way
    assert node.pool.stats()["in_use"] == 3


async def test_slots_that_are_old_or_of_a_changed_image_are_thrown_away(slotted: Node) -> None:
    node = slotted
    await node.up("a")
    slots = set(await filled(node))
    (node.root / "image" / "take_turn.py").write_text("changed")
    await node.up("b")
    assert node.pool.stats()["slot_hits"] == 0
    newer = set(await filled(node))
    assert len(newer) == 2
    assert not newer & slots
    node.time.pass_(101)
    await node.up("c")
    assert not set(await filled(node)) & newer
    node.time.pass_(3600)
    assert await filled(node) == []  # nobody has asked for so long


async def test_a_slot_that_died_costs_only_time(slotted: Node) -> None:
    node = slotted
    await node.up("a")
    first, second = await filled(node)
    node.die(first)
    node.die(second)
    await node.up("b")
    assert node.pool.stats()["slot_hits"] == 0
    assert len(await filled(node)) == 2
    assert not {first, second} & node.tier.alive
    assert not {first, second} & node.tier.slot_specs.keys()


async def test_slots_of_a_process_before_us_are_ended(slotted: Node) -> None:
    node = slotted
    await node.up("a")
    slots = await filled(node)
    node.begin()
    await node.pool.start()
    assert node.book.entries(Kind.SLOT) == []
    assert not set(slots) & node.tier.alive
    assert node.state("a") is SandboxState.WARM


async def test_no_slot_outlives_the_pool(slotted: Node) -> None:
    node = slotted
    await node.up("a")
    running = asyncio.create_task(node.pool.run())
    async with asyncio.timeout(10):
        while len([slot for slot in node.book.entries(Kind.SLOT) if slot.state is S.WARM]) < 2:
            node.time.pass_(2)
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.book.entries(Kind.SLOT) == []
    assert node.tier.alive == {"a"}


async def test_a_slot_that_cannot_be_made_is_not_tried_at_once_again(slotted: Node) -> None:
    node = slotted
    await node.up("a")
    node.tier.broken = True
    for _ in range(3):
        assert await filled(node) == []
    assert sum(row["cause"] == Cause.BROKE for row in node.book._db["transitions"].rows) == 2
    node.tier.broken = False
    node.time.pass_(31)
    assert len(await filled(node)) == 2


async def have(node: Node, count: int) -> int:
    spec = node.spec("any")
    return int(await node.pool.have_slots(spec.image, spec.limits, reaches_out=False, count=count))


async def test_slots_that_are_ordered_are_there_at_once_and_kept_for_a_while(node: Node) -> None:
    assert node.pool.stats()["slots"]["target"] == 0
    assert await have(node, 2) == 2
    await node.up("a")
    assert len(await filled(node)) == 2  # one was used, and replaced
    stats = node.pool.stats()
    assert (stats["prewarmed"], stats["prewarm_hits"], stats["slot_misses"]) == (2, 1, 0)
    node.time.pass_(3600)
    assert await filled(node) == []


async def test_an_order_takes_free_room_only_and_says_what_could_not_be_made(node: Node) -> None:
    await node.up("a")
    assert await have(node, 5) == 2
    assert node.book.get("a").state is S.WARM
    node.set(capacity=5)
    node.tier.broken = True
    with pytest.raises(SandboxFailed):
        await have(node, 5)


async def test_two_orders_at_a_time_make_no_slot_twice(node: Node) -> None:
    assert list(await asyncio.gather(have(node, 2), have(node, 2))) == [2, 2]
    assert node.pool.stats()["slots"]["made"] == 2


async def test_an_order_on_a_tier_without_slots(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def can_warm() -> str:
        return "its kernel mounts nothing"

    monkeypatch.setattr(node.tier, "can_warm", can_warm)
    with pytest.raises(TierUnavailable, match="its kernel mounts nothing"):
        await have(node, 1)
