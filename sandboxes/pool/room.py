"""Room for one more: who waits for it, who gives way, and when it is refused.

Between "there is room" and the entry in the book that takes it nothing is awaited, so of any number of
concurrent creations never more than `capacity` get in. They are let in one after the other, first come first
served. Who gives way, in this order: what is dead; sleeping ones' files on this node (they go to the shared
store, never the last copy); warm slots; whoever is idle, put to sleep with a snapshot, least recently used
first. Who runs never does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from sandboxes.errors import PoolFull, SandboxError
from sandboxes.pool.demotion import Demotion
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.states import IDLE, UP, Cause, Kind
from sandboxes.spec import SandboxState

log = logging.getLogger(__name__)

POLL_S: Final = 0.05  # who becomes idle does not tell us
GATE_S: Final = 10.0  # to wait behind others whose room is being made, also for who does not wait for room


class Room:
    """See the module."""

    def __init__(self, ground: Ground, demotion: Demotion) -> None:
        self._ground, self._demotion = ground, demotion
        self._gate = asyncio.Lock()

    def in_use(self) -> int:
        """Return how many sandboxes and slots have memory and processes."""
        return sum(entry.is_live for entry in self._ground.book.entries())

    def free(self) -> int:
        """Return how many more may have."""
        return max(0, self._ground.policy.capacity - self.in_use())

    def take(self, name: str, epoch: int, slot: str | None) -> None:
        """Write the intent: this sandbox is being made, of this slot if there is one."""
        moves = [(name, Cause.ORDERED, Kind.SANDBOX, {"epoch": epoch, "used_ms": self._ground.clock()})]
        if slot is not None:
            moves.insert(0, (slot, Cause.CLAIMED, Kind.SLOT, {}))
        self._ground.book.move_all(moves)

    async def enter(self, name: str, epoch: int, wait_s: float) -> None:
        """Take room for a sandbox, making some if there is none.

        Raises:
            PoolFull: nobody gave way in time.
        """
        ground = self._ground
        deadline = ground.monotonic() + wait_s
        try:
            async with asyncio.timeout(max(wait_s, GATE_S)):
                await self._gate.acquire()
        except TimeoutError:
            raise self._full() from None
        try:
            while not self.free():
                if await self._evict_one():
                    continue
                left = deadline - ground.monotonic()
                if left <= 0:
                    raise self._full()
                await self._something_changes(min(left, POLL_S))
            self.take(name, epoch, None)
        finally:
            self._gate.release()

    async def keep_few_asleep(self) -> None:
        """Let local files of sleeping sandboxes go that are too many, the longest asleep first."""
        here = [entry for entry in self._ground.book.entries() if entry.is_live or entry.is_local]
        asleep = sorted(
            (entry for entry in here if entry.state is SandboxState.COLD), key=lambda entry: entry.used_ms
        )
        for entry in asleep[: max(0, len(here) - self._ground.policy.max_asleep)]:
            if not self._ground.is_taken(entry.name) and self._demotion.may_sleep(entry):
                async with self._ground.hold(entry.name):
                    await self._demotion.cool(entry.name)

    async def relieve(self) -> bool:
        """Have memory given back: a slot ends, or whoever is idle the longest dozes or else sleeps.

        Returns:
            False: nobody can.
        """
        return await self._end_a_slot() or await self._rest_one(self._doze_or_sleep)

    async def _evict_one(self) -> bool:
        """Have the next in order give way; False: nobody can."""
        ground, demotion = self._ground, self._demotion
        await self.keep_few_asleep()
        for entry in self._dead():
            async with ground.hold(entry.name):
                if _is(ground.book.get(entry.name), SandboxState.FAILED) and await demotion.clear(entry.name):
                    ground.tally.evictions["failed"] += 1
                    return True
        return await self._end_a_slot() or await self._rest_one(self._put_to_sleep)

    async def _end_a_slot(self) -> bool:
        for slot in self._slots():
            if await self._demotion.discard(slot.name):
                self._ground.tally.evictions["slot"] += 1
                return True
        return False

    async def _rest_one(self, rest: Callable[[Entry], Awaitable[bool]]) -> bool:
        """Have whoever is idle the longest, and can, put to rest under its lock."""
        for entry in self._idle():
            if self._ground.is_taken(entry.name):
                continue
            async with self._ground.hold(entry.name):
                if await rest(entry):
                    return True
        return False

    async def _doze_or_sleep(self, entry: Entry) -> bool:
        demotion = self._demotion
        dozes = self._ground.policy.doze_after_s > 0 and not entry.is_dozing
        if dozes and await demotion.nap(entry.name) and await demotion.doze(entry.name):
            return True
        return await self._put_to_sleep(entry)

    async def _put_to_sleep(self, entry: Entry) -> bool:
        idle_ms = int(self._ground.policy.evict_idle_s * 1000)
        try:
            if await self._demotion.sleep(entry.name, Cause.EVICTED, idle_ms=idle_ms):
                return True
            self._ground.tally.not_evicted["used"] += 1
        except SandboxError as error:
            self._ground.tally.not_evicted["not kept"] += 1
            log.warning("not evicted", extra={"sandbox": entry.name, "reason": str(error)})
        return False

    def _dead(self) -> list[Entry]:
        entries = self._ground.book.entries(Kind.SANDBOX)
        return [
            entry
            for entry in entries
            if entry.state is SandboxState.FAILED and not self._ground.is_taken(entry.name)
        ]

    def _slots(self) -> list[Entry]:
        entries = self._ground.book.entries(Kind.SLOT)
        return sorted(
            (entry for entry in entries if entry.state is SandboxState.WARM), key=lambda slot: slot.since_ms
        )

    def _idle(self) -> list[Entry]:
        """Return who can give way, the longest idle first, as the kernel sees it now."""
        ground, demotion = self._ground, self._demotion
        up = [entry for entry in ground.book.entries(Kind.SANDBOX) if entry.state in UP]
        seen = [demotion.look(entry) for entry in up if not ground.is_taken(entry.name)]
        grace_ms = ground.policy.evict_idle_s * 1000
        return sorted(
            (
                entry
                for entry in seen
                if entry.state in IDLE and demotion.idle_ms(entry) >= grace_ms and demotion.may_sleep(entry)
            ),
            key=lambda entry: entry.used_ms,
        )

    async def _something_changes(self, timeout_s: float) -> None:
        self._ground.changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ground.changed.wait()
        except TimeoutError:
            pass

    def _full(self) -> PoolFull:
        ground = self._ground
        ground.tally.refused += 1
        grace_ms = ground.policy.evict_idle_s * 1000
        entries = (entry for entry in ground.book.entries(Kind.SANDBOX) if entry.state in IDLE)
        soon = [max(0.0, grace_ms - self._demotion.idle_ms(entry)) / 1000 for entry in entries]
        advice = max(0.1, round(min(soon), 1)) if soon else ground.policy.retry_after_s
        return PoolFull(ground.policy.capacity, self.in_use(), advice)


def _is(entry: Entry | None, state: SandboxState) -> bool:
    return entry is not None and entry.state is state
