"""One holder at a time, for as long as it shows that it is alive."""

import asyncio
import contextlib
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxes import InvalidSpec
from sandboxes.sharing import (
    Guard,
    GuardBusy,
    GuardLost,
    GuardUnavailable,
    Latch,
    MemoryLatch,
    StatesUnavailable,
)
from sandboxes.sharing.redis_states import RedisLatch, RedisStates

TTL_S = 1.0


def test_tokens_grow_with_every_holder(make_latch: Callable[[], Latch]) -> None:
    one, other = make_latch(), make_latch()
    assert one.try_enter("k", "a", 60_000, 0) == 1
    assert other.try_enter("k", "b", 60_000, 0) is None
    assert other.try_enter("other", "b", 60_000, 0) == 1
    assert not other.leave("k", "b")
    assert one.leave("k", "a")
    assert not one.leave("k", "a")
    assert other.try_enter("k", "b", 60_000, 0) == 2
    assert not one.renew("k", "a", 60_000)
    assert other.renew("k", "b", 60_000)
    assert other.leave("k", "b")
    assert one.try_enter("k", "c", 60_000, 1_000) == 1_000
    one.leave("k", "c")
    assert one.try_enter("k", "d", 60_000, 5) == 1_001


async def test_a_holder_whose_time_is_over_cannot_come_back(make_latch: Callable[[], Latch]) -> None:
    latch = make_latch()
    assert latch.try_enter("k", "a", 40, 0) == 1
    while (token := latch.try_enter("k", "b", 60_000, 0)) is None:
        await asyncio.sleep(0.005)
    assert token == 2
    assert not latch.renew("k", "a", 60_000)
    assert not latch.leave("k", "a")
    assert latch.renew("k", "b", 60_000)


async def test_it_is_renewed_while_it_is_held(make_latch: Callable[[], Latch]) -> None:
    async with Guard(make_latch(), ttl_s=TTL_S) as guard, Guard(make_latch(), ttl_s=TTL_S) as other:
        async with guard.hold("k") as held:
            with pytest.raises(GuardBusy, match=r"waited 2 s"):
                await other.enter("k", wait_s=2 * TTL_S)
            held.check()
        async with other.hold("k", wait_s=0) as next_one:
            assert next_one.token == held.token + 1
        with pytest.raises(GuardLost, match="it was left"):
            held.check()


async def test_waiting_holders_come_one_after_another(make_latch: Callable[[], Latch]) -> None:
    inside = most = 0
    tokens = []

    async def work() -> None:
        nonlocal inside, most
        async with Guard(make_latch(), ttl_s=5.0) as guard, guard.hold("k") as held:
            inside += 1
            most = max(most, inside)
            tokens.append(held.token)
            await asyncio.sleep(0.002)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(8)))
    assert (most, tokens) == (1, sorted(tokens))
    assert len(set(tokens)) == 8


class Slow:
    """A latch that lets the test cancel while it is being asked."""

    def __init__(self, latch: Latch) -> None:
        self._latch, self.reach, self.where = latch, latch.reach, latch.where
        self.asked, self.go = threading.Event(), threading.Event()
        self.renew, self.leave = latch.renew, latch.leave

    def try_enter(self, key: str, holder: str, ttl_ms: int, floor: int) -> int | None:
        token = self._latch.try_enter(key, holder, ttl_ms, floor)
        self.asked.set()
        assert self.go.wait(10)
        return token


async def test_a_cancelled_wait_leaves_nothing_behind(make_latch: Callable[[], Latch]) -> None:
    slow = Slow(make_latch())
    async with Guard(slow, ttl_s=60.0) as guard:
        waiting = asyncio.ensure_future(guard.enter("k"))
        await asyncio.to_thread(slow.asked.wait, 10)
        waiting.cancel()
        await asyncio.sleep(0)
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with guard.hold("k", wait_s=0):
            pass


async def test_the_end_of_the_block_lets_go_of_everything(make_latch: Callable[[], Latch]) -> None:
    async with Guard(make_latch()) as guard:
        await guard.enter("k")
        await guard.enter("other")
    async with Guard(make_latch()) as guard:
        await guard.enter("k", wait_s=0)
        await guard.enter("other", wait_s=0)


async def test_a_machine_that_was_suspended_knows_that_it_is_late(tmp_path: Path) -> None:
    now = 100.0
    async with Guard(MemoryLatch(str(tmp_path)), ttl_s=30.0, clock=lambda: now) as guard:
        held = await guard.enter("k")
        held.check()
        now = 130.0
        with pytest.raises(GuardLost, match="stalled past its time"):
            held.check()
        now = 110.0
        with pytest.raises(GuardLost):  # once lost is lost
            held.check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_s": -1.0},
        {"ttl_s": 0.0},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": 1e9},
        {"key": ""},
        {"key": "k" * 10_000},
        {"wait_s": -1.0},
        {"wait_s": float("nan")},
    ],
    ids=str,
)
async def test_nonsense_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    key, wait_s = wrong.get("key", "k"), wrong.get("wait_s")
    with pytest.raises(InvalidSpec):
        async with Guard(MemoryLatch(str(tmp_path)), ttl_s=wrong.get("ttl_s", 30.0)) as guard:
            await guard.enter(key, wait_s=wait_s)
    async with Guard(MemoryLatch(str(tmp_path))) as guard:
        await guard.enter("k", wait_s=0)


async def test_nobody_would_renew_outside_the_block(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="async with"):
        await Guard(MemoryLatch(str(tmp_path))).enter("k")


async def test_redis_that_is_down_is_said_and_nothing_is_lost(own_redis: Any) -> None:
    states = RedisStates(own_redis.url)
    async with Guard(RedisLatch(own_redis.url), ttl_s=60.0) as guard:
        held = await guard.enter("k")
        states.claim("k", held.token)
        states.save("k", held.token, b"kept")
        own_redis.stop()
        with pytest.raises(GuardUnavailable, match="unix://"):
            await guard.enter("other", wait_s=0)
        for call in (lambda: states.save("k", held.token, b"x"), lambda: states.claim("k", 9), states.keys):
            with pytest.raises(StatesUnavailable, match="unix://"):
                call()
        held.check()  # its time is not over
        own_redis.start()
        with pytest.raises(GuardBusy):
            await guard.enter("k", wait_s=0)
        states.save("k", held.token, b"more")
        own_redis.stop()
        await guard.leave(held)  # never fails
        own_redis.start()
        assert states.claim("k", held.token + 1) == b"more"


async def test_redis_that_forgot_everything_gives_no_token_twice(own_redis: Any, tmp_path: Path) -> None:
    async with Guard(RedisLatch(own_redis.url)) as guard:
        first = await guard.enter("k", floor=41)
        own_redis.stop(signal.SIGTERM)
        shutil.rmtree(tmp_path / "appendonlydir")
        own_redis.start()
        async with Guard(RedisLatch(own_redis.url)) as other:
            assert (await other.enter("k", floor=first.token + 1)).token == first.token + 1


async def test_redis_that_hangs_is_said_in_time_and_what_is_held_is_lost_in_time(own_redis: Any) -> None:
    async with Guard(RedisLatch(own_redis.url, timeout_s=0.5), ttl_s=TTL_S) as guard:
        held = await guard.enter("k")
        own_redis.hang()
        with pytest.raises(GuardUnavailable, match=r"[Tt]imeout"):
            await guard.enter("other", wait_s=0)
        while not held.lost:
            with contextlib.suppress(GuardLost):
                held.check()
            await asyncio.sleep(0.01)
        assert held.lost == "this holder stalled past its time"
