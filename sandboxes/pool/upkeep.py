"""What a pool does by itself every second: watch, nap, sleep, now and then collect what nobody names."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from sandboxes.errors import SandboxError
from sandboxes.pool.demotion import Demotion
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.repair import Repair
from sandboxes.pool.room import Room
from sandboxes.pool.states import IDLE, Cause, Kind
from sandboxes.spec import SandboxState

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
RELIEVED_AT_ONCE: Final = 8  # before the memory is looked at in the next tick
SWEEP_EVERY_S: Final = 30.0
COLLECT_EVERY_S: Final = 3_600.0


class Upkeep:
    """See the module."""

    def __init__(self, ground: Ground, room: Room, demotion: Demotion, repair: Repair) -> None:
        self._ground, self._room, self._demotion, self._repair = ground, room, demotion, repair
        self._swept = self._collected = ground.monotonic()

    async def run(self) -> None:
        """Tick until cancelled."""
        await self._step("sweep", self._sweep)
        while True:
            await self.tick()
            await asyncio.sleep(TICK_S)

    async def tick(self) -> None:
        """Do what is due; a step that fails is logged, and does not stop the others."""
        await self._step("watch", self._repair.watch)
        await self._step("rest", self._rest)
        await self._step("relieve", self._relieve)
        await self._step("keep few asleep", self._room.keep_few_asleep)
        now = self._ground.monotonic()
        if now - self._swept > SWEEP_EVERY_S:
            self._swept = now
            await self._step("sweep", self._sweep)
        if now - self._collected > COLLECT_EVERY_S:
            self._collected = now
            await self._step("collect", self._collect)

    async def _step(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (SandboxError, OSError) as error:
            log.warning("a step of the pool failed", extra={"step": name, "reason": str(error)})

    async def _rest(self) -> None:
        """Freeze and put to sleep whoever has been idle for long, the longest idle first."""
        policy, demotion = self._ground.policy, self._demotion
        for entry in self._idle():
            idle_s = demotion.idle_ms(entry) / 1000
            if policy.sleep_after_s and idle_s >= policy.sleep_after_s and demotion.may_sleep(entry):
                await self._each(
                    entry,
                    lambda name: demotion.sleep(name, Cause.SLEPT, idle_ms=int(policy.sleep_after_s * 1000)),
                )
            elif entry.state is SandboxState.WAITING and not entry.is_dozing:
                if policy.doze_after_s and idle_s >= policy.doze_after_s:
                    await self._each(entry, demotion.doze)
            elif policy.nap_after_s and idle_s >= policy.nap_after_s and entry.state is SandboxState.WARM:
                await self._each(entry, demotion.nap)

    async def _relieve(self) -> None:
        """Have the longest idle give way while too much of the memory is used."""
        high = self._ground.policy.memory_high
        for _ in range(RELIEVED_AT_ONCE if high else 0):
            used = self._ground.memory_used()
            if used is None or used < high:
                return
            if not await self._room.relieve():
                log.warning("memory is short, and nobody is idle", extra={"used": round(used, 2)})
                return

    async def _each(self, entry: Entry, deed: Callable[[str], Awaitable[object]]) -> None:
        if self._ground.is_taken(entry.name):
            return
        async with self._ground.hold(entry.name):
            try:
                await deed(entry.name)
            except SandboxError as error:
                log.warning("no rest", extra={"sandbox": entry.name, "reason": str(error)})

    def _idle(self) -> list[Entry]:
        entries = self._ground.book.entries(Kind.SANDBOX)
        return sorted((entry for entry in entries if entry.state in IDLE), key=lambda entry: entry.used_ms)

    async def _sweep(self) -> None:
        """Clear away what dead sandboxes left that nobody knows."""
        await self._ground.tier.sweep()

    async def _collect(self) -> None:
        removed, freed = await asyncio.to_thread(self._ground.snapshots.collect)
        log.info("snapshots collected", extra={"removed": removed, "bytes": freed})
