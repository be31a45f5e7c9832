"""The pool of a node: gives living sandboxes, puts idle ones to rest, never has more than it may.

`acquire` returns a living sandbox: the one that lives, one with its files back, or a new one. Concurrent
calls for one name take turns. What happened is in the book before and after each deed (see `book.py`), so
this process may be killed anywhere.
"""

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from sandboxes import activity
from sandboxes.errors import SandboxBusy, SandboxError, SandboxExists, SandboxNotFound
from sandboxes.pool import report
from sandboxes.pool.book import Book
from sandboxes.pool.demotion import Demotion
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.repair import Repair
from sandboxes.pool.room import Room
from sandboxes.pool.slots import WarmSlots
from sandboxes.pool.states import UP, Cause
from sandboxes.pool.upkeep import Upkeep
from sandboxes.sandbox import Sandbox
from sandboxes.sleep import keep, resume
from sandboxes.snapshots import Restored
from sandboxes.snapshots.errors import SnapshotMissing, SnapshotsOff
from sandboxes.spec import ImageSpec, Limits, SandboxSpec, SandboxState

log = logging.getLogger(__name__)


class Pool:
    """See the module."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        ground.book.observe(ground.tally.observe)
        self._demotion = Demotion(ground)
        self._room = Room(ground, self._demotion)
        self._repair = Repair(ground, self._demotion)
        self._slots = WarmSlots(ground, self._room, self._demotion)
        self._upkeep = Upkeep(ground, self._room, self._demotion, self._repair)
        self._started = False
        self._starting = asyncio.Lock()

    @property
    def book(self) -> Book:
        """What the pool has, and how it came to it."""
        return self._ground.book

    @property
    def why_no_slots(self) -> str:
        """Why there are no warm slots although the policy wants some; empty: there are."""
        return (self._slots.why_not or "") if self._ground.policy.warm_slots else ""

    async def start(self) -> None:
        """Make the book agree with what is there; done once, before anything else.

        Raises:
            SandboxError: the tier or the store of snapshots cannot be asked.
        """
        async with self._starting:
            if not self._started:
                await self._repair.start()
                await self._slots.start()
                self._started = True

    async def run(self) -> None:
        """Do by itself what is due, every second, until cancelled; then no slot is left."""
        await self.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._slots.run(), name="slots")
            await self._upkeep.run()

    async def tick(self) -> None:
        """Do once what `run` does every second."""
        await self.start()
        await self._upkeep.tick()
        await self._slots.tend()

    async def acquire(self, spec: SandboxSpec, *, wait_s: float | None = None) -> Path:
        """Return the directory of a living sandbox of this name and epoch.

        Args:
            spec: what it is made from, if it has to be made.
            wait_s: for room; None: as the policy says.

        Raises:
            PoolFull: there is no room, and nobody gave way in time.
            SandboxError: it cannot be made, or its files not be restored; nothing is lost.
        """
        await self.start()
        async with self._ground.hold(spec.name):
            found = await self._alive(spec)
            if found is not None:
                return found
            wait_s = self._ground.policy.wait_s if wait_s is None else wait_s
            return await self._make(spec, wait_s)

    async def have_slots(self, image: ImageSpec, limits: Limits, *, reaches_out: bool, count: int) -> int:
        """Have so many warm slots ready for an image, into free room only; how many there are.

        So many are kept until nobody has asked for the image for a while.

        Raises:
            TierUnavailable: there are none on this tier here.
            SandboxError: one cannot be made.
        """
        await self.start()
        return await self._slots.order(image, limits, reaches_out=reaches_out, count=count)

    async def fork(self, source: str, spec: SandboxSpec, *, wait_s: float | None = None) -> Path:
        """Return the directory of a new sandbox with the files that another has now; each goes its own way.

        Args:
            source: up and idle, or asleep.
            spec: of the new one: its own name, epoch, environment and /data.
            wait_s: for room; None: as the policy says.

        Raises:
            SandboxNotFound: there is no source.
            SandboxBusy: somebody uses it.
            SandboxExists: there is one of the new name, or a snapshot of one.
            PoolFull, SandboxError: as `acquire`; nothing of the new one is left.
        """
        await self.start()
        ground = self._ground
        async with ground.hold(source):
            entry = await self._repair.agree(source)
            if entry is not None and entry.state in UP:
                await keep(ground.tier, source, ground.snapshots, excludes=ground.excludes)
                self._demotion.look(entry)
        async with ground.hold(spec.name):
            entry = await self._repair.agree(spec.name)
            if entry is not None or await asyncio.to_thread(ground.snapshots.has, spec.name):
                raise SandboxExists(spec.name)
            try:
                await asyncio.to_thread(ground.snapshots.fork, source, spec.name, epoch=spec.epoch)
                return await self._make(spec, ground.policy.wait_s if wait_s is None else wait_s)
            except BaseException as error:
                await asyncio.shield(asyncio.to_thread(ground.snapshots.forget, spec.name))
                entry = self.book.get(spec.name)
                if entry is not None and entry.state is SandboxState.COLD:
                    self.book.move(spec.name, Cause.FORGOTTEN)
                if isinstance(error, SnapshotMissing):
                    raise SandboxNotFound(source) from None
                raise

    async def pause(self, name: str) -> None:
        """Freeze a sandbox; its next request thaws it.

        Raises:
            SandboxBusy: somebody uses it.
            SandboxNotFound: there is none.
        """
        await self.start()
        async with self._ground.hold(name):
            entry = await self._repair.agree(name)  # it may have died unnoticed
            if not await self._demotion.nap(name, Cause.PAUSED):
                if entry is None or entry.state not in UP:
                    raise SandboxNotFound(name)
                raise SandboxBusy(name, "a request is running")

    async def stop(self, name: str) -> None:
        """Put a sandbox to sleep now, however lately it was used.

        Raises:
            SandboxBusy: somebody uses it.
            SandboxNotFound: there is none.
            SnapshotsOff: there is no store for its files.
            SandboxError: its files could not be kept; it stays.
        """
        if not self._ground.snapshots.store.keeps:
            raise SnapshotsOff(name)
        if not await self.suspend(name, 0, cause=Cause.STOPPED):
            entry = self.book.get(name)
            if entry is None or entry.state not in UP:
                raise SandboxNotFound(name)
            raise SandboxBusy(name, "a request is running")

    async def suspend(self, name: str, idle_ms: int, *, cause: Cause = Cause.SLEPT) -> bool:
        """Put a sandbox to sleep that nobody has used for `idle_ms`.

        Returns:
            whether it sleeps now; False: somebody has used it, or it is dead.

        Raises:
            SandboxError: its files could not be kept; it stays.
        """
        await self.start()
        async with self._ground.hold(name):
            await self._repair.agree(name)
            return await self._demotion.sleep(name, cause, idle_ms=idle_ms)

    async def destroy(self, name: str) -> None:
        """Returns when nothing of the sandbox and its snapshots is left.

        Raises:
            SandboxError: something is left; call again.
        """
        await self.start()
        ground = self._ground
        async with ground.hold(name):
            await ground.close(name)
            await ground.tier.destroy(name)
            await ground.left(name)
            await asyncio.to_thread(ground.snapshots.forget, name)
            if self.book.get(name) is not None:
                self.book.move(name, Cause.DESTROYED)
            ground.tally.destroyed += 1
            ground.tell()

    def stats(self) -> dict[str, Any]:
        """What there is and what was done since this process started; JSON-ready."""
        return report.stats(self._ground, self._room)

    async def _alive(self, spec: SandboxSpec) -> Path | None:
        """The directory of the living sandbox of this epoch. One of an older epoch is destroyed first, as is
        one that was never handed out.
        """
        entry = await self._repair.agree(spec.name)
        if entry is None or entry.state not in UP or entry.directory is None:
            return None
        if entry.epoch != spec.epoch:
            await self._ground.close(spec.name)
            await self._ground.tier.destroy(spec.name)
            self.book.move(spec.name, Cause.DIED)
            await self._demotion.clear(spec.name)
            return None
        await self._ground.open(spec.name, entry.directory)
        await self._ground.renew(spec, entry.directory)
        self._ground.tally.warm_hits["up"] += 1
        return entry.directory

    async def _make(self, spec: SandboxSpec, wait_s: float) -> Path:
        before = self.book.get(spec.name)
        await self._ground.prepare(spec)
        # A disk that is parked is mounted when a sandbox is made; a slot has its own already.
        slot = None if self._ground.snapshots.parking.has(spec.name) else self._slots.take(spec)
        if slot is None:
            await self._room.enter(spec.name, spec.epoch, wait_s)
        try:
            await self._ground.close(spec.name)  # of one that has died: its directory is made anew
            sandbox, restored = await self._made(spec, slot, before)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._broke(spec.name)))
            raise
        await sandbox.close()
        self._count(spec.name, restored, before)
        now = self._ground.clock()
        activity.note_used(sandbox.directory, now)
        self.book.move(spec.name, Cause.READY, directory=sandbox.directory, used_ms=now, is_local=True)
        return sandbox.directory

    async def _made(
        self, spec: SandboxSpec, slot: str | None, before: Entry | None
    ) -> tuple[Sandbox, Restored | None]:
        ground = self._ground
        slept = before is not None and before.state is SandboxState.COLD
        if slept and not await asyncio.to_thread(ground.snapshots.has, spec.name):
            raise SnapshotMissing(spec.name, "it slept, and its files are not in the store any more")
        make = None if slot is None else partial(self._slots.claim, slot, spec)
        return await resume(ground.tier, spec, ground.snapshots, make=make, furnish=ground.furnish)

    async def _broke(self, name: str) -> None:
        self.book.move(name, Cause.BROKE)
        with contextlib.suppress(SandboxError):  # then it stays failed, and is cleared later
            await self._demotion.clear(name)

    def _count(self, name: str, restored: Restored | None, before: Entry | None) -> None:
        tally = self._ground.tally
        tally.made += 1
        if restored is None:
            tally.cold_hits["fresh"] += 1
            return
        tally.woken += 1
        tally.cold_hits["local" if before is not None and before.is_local else "store"] += 1
        for digest, reason in restored.refused:
            said = {"sandbox": name, "snapshot": digest, "reason": reason}
            log.error("a damaged snapshot was passed over for the one before it", extra=said)
