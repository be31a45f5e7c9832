"""Putting what nobody uses one step further to rest: nap, doze, sleep, cold; and slots away.

The book is asked before and after every wait, and the kernel's lock (sandboxes/activity.py) has the last
word: between the decision and the deed a request may come, and then nothing happens to it.
"""

import asyncio
import logging
from typing import Final

from sandboxes import activity
from sandboxes.errors import SandboxBusy, SandboxError, SandboxNotFound
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.states import IDLE, UP, Cause, Kind
from sandboxes.sleep import is_hydrated, suspend, to_the_end
from sandboxes.spec import SandboxState

log = logging.getLogger(__name__)

RETRY_S: Final = 30.0  # after the files of one could not be kept


class Demotion:
    """See the module. Whoever calls a method for a sandbox holds its lock (`Ground.hold`)."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._not_before: dict[str, float] = {}  # name → monotonic seconds; it could not be put to sleep
        self.leaving: set[str] = set()  # slots that are being ended, which nobody may claim any more

    def look(self, entry: Entry) -> Entry:
        """Have the book say what the kernel says of one that is up: used, frozen or idle, since when."""
        if entry.state not in UP or entry.directory is None:
            return entry
        book, directory = self._ground.book, entry.directory
        used_ms = max(entry.used_ms, activity.last_used_ms(directory) or 0)
        if activity.is_used(directory):
            now = max(used_ms, self._ground.clock())
            if entry.state is not SandboxState.RUNNING:
                self._woken(entry)
                return book.move(entry.name, Cause.USED, used_ms=now)
            return entry
        if activity.is_frozen(directory):
            if entry.state is not SandboxState.WAITING:
                return book.move(entry.name, Cause.PAUSED, used_ms=used_ms)
        elif entry.state is not SandboxState.WARM:
            self._woken(entry)
            thawed = entry.state is SandboxState.WAITING
            entry = book.move(entry.name, Cause.THAWED if thawed else Cause.IDLED, used_ms=used_ms)
            self._ground.tell()
            return entry
        return entry if used_ms == entry.used_ms else book.note(entry.name, used_ms=used_ms)

    def idle_ms(self, entry: Entry) -> int:
        """Return for how long nobody has used it; 0 while somebody does."""
        return 0 if entry.state is SandboxState.RUNNING else max(0, self._ground.clock() - entry.used_ms)

    def may_sleep(self, entry: Entry) -> bool:
        """Say whether it has not been tried in vain just now."""
        return self._not_before.get(entry.name, 0.0) <= self._ground.monotonic()

    async def nap(self, name: str, cause: Cause = Cause.NAP) -> bool:
        """Freeze a sandbox; False: somebody uses it, or it is not there."""
        entry = self._ground.book.get(name)
        if entry is None or (entry := self.look(entry)).state is not SandboxState.WARM:
            return entry is not None and entry.state is SandboxState.WAITING
        try:
            await to_the_end(self._ground.tier.freeze(name))
        except (SandboxBusy, SandboxNotFound):
            return False
        self._ground.book.move(name, cause)
        self._ground.tally.naps += 1
        return True

    async def sleep(self, name: str, cause: Cause, *, idle_ms: int = 0) -> bool:
        """Keep the files of a sandbox that nobody has used for so long, and give everything else back.

        Returns:
            whether it sleeps now (it may have slept before); False: somebody uses it, or it is not there.

        Raises:
            SandboxError: its files could not be kept; it stays.
        """
        return await to_the_end(self._sleep(name, cause, idle_ms))

    async def _sleep(self, name: str, cause: Cause, idle_ms: int) -> bool:
        ground, book = self._ground, self._ground.book
        entry = book.get(name)
        if entry is None:
            return False
        entry = self.look(entry)
        if entry.state is SandboxState.COLD:
            return True
        if not ground.snapshots.store.keeps:
            return False
        if entry.state not in IDLE or self.idle_ms(entry) < idle_ms:
            return False
        if entry.directory is None or not is_hydrated(entry.directory):
            return False
        was = entry.state
        book.move(name, cause)
        try:
            taken = await suspend(ground.tier, name, ground.snapshots, excludes=ground.excludes)
        except SandboxError as error:
            await self._not_asleep(name)
            if isinstance(error, SandboxBusy | SandboxNotFound):
                return False
            self._not_before[name] = ground.monotonic() + RETRY_S
            raise
        except BaseException:
            await self._not_asleep(name)
            raise
        if taken.absent:
            said = {"sandbox": name, "paths": taken.absent}
            log.warning("what snapshots.excludes names is not in this workspace", extra=said)
        await ground.close(name)
        await self._gone(name)
        book.move(name, Cause.KEPT, directory=None, is_local=True)
        self._not_before.pop(name, None)
        ground.tally.slept += 1
        if cause is Cause.EVICTED:
            ground.tally.evictions[was] += 1
        ground.tell()
        return True

    async def _not_asleep(self, name: str) -> None:
        """Say in the book what there is of a sandbox that could not be put to sleep."""
        info = await self._ground.tier.inspect(name)
        is_up = info.state in (SandboxState.WARM, SandboxState.WAITING)
        entry = self._ground.book.move(name, Cause.KEPT_AWAKE if is_up else Cause.DIED)
        self.look(entry)

    async def _gone(self, name: str) -> None:
        """Give back what it held; what cannot be kept now is on this node still, and tried again."""
        try:
            await self._ground.left(name)
        except SandboxError as error:
            log.warning("its /data is not kept yet", extra={"sandbox": name, "reason": str(error)})

    async def cool(self, name: str) -> bool:
        """Let a sleeping sandbox's files on this node go; False: they are the last copy, or may be."""
        ground, entry = self._ground, self._ground.book.get(name)
        if entry is None or entry.state is not SandboxState.COLD or not entry.is_local:
            return False
        if len(ground.snapshots.store.levels()) < 2:
            ground.tally.not_evicted["last copy"] += 1
            return False
        try:
            freed = await to_the_end(asyncio.to_thread(ground.snapshots.cool, name))
        except SandboxError as error:
            ground.tally.not_evicted["not kept"] += 1
            self._not_before[name] = ground.monotonic() + RETRY_S
            log.warning("not cooled", extra={"sandbox": name, "reason": str(error)})
            return False
        ground.book.move(name, Cause.COOLED, is_local=False)
        ground.tally.evictions["cold"] += 1
        log.info("cooled", extra={"sandbox": name, "bytes": freed})
        return True

    async def doze(self, name: str) -> bool:
        """Page out the memory of a frozen sandbox; its next request pages in what it needs."""
        ground, entry = self._ground, self._ground.book.get(name)
        if entry is None or entry.is_dozing or self.look(entry).state is not SandboxState.WAITING:
            return False
        info = await ground.tier.look(name)
        if info.state is not SandboxState.WAITING or info.pid is None:
            return False
        paged = await asyncio.to_thread(ground.page_out, info.pid)
        entry = ground.book.get(name)
        if not paged or entry is None or entry.state is not SandboxState.WAITING:
            return False
        ground.book.note(name, is_dozing=True)
        ground.tally.dozes += 1
        return True

    async def clear(self, name: str) -> bool:
        """Remove what is left of a dead sandbox; its snapshot stays. False: not all of it goes yet.

        Raises:
            SandboxError: nobody can say whether it has a snapshot.
        """
        ground = self._ground
        try:
            await ground.tier.destroy(name)
            await ground.close(name)
            await self._gone(name)
        except SandboxError as error:
            log.warning("a dead sandbox is still there", extra={"sandbox": name, "reason": str(error)})
            return False
        kept = await asyncio.to_thread(ground.snapshots.has, name)
        ground.book.move(name, Cause.CLEARED if kept else Cause.FORGOTTEN, directory=None, is_local=True)
        ground.tell()
        return True

    async def discard(self, slot: str) -> bool:
        """End a slot; False: it is being claimed, or is gone."""
        ground = self._ground
        entry = ground.book.get(slot)
        if entry is None or not entry.is_slot or entry.state is not SandboxState.WARM or slot in self.leaving:
            return False
        self.leaving.add(slot)
        try:
            await to_the_end(ground.tier.destroy(slot))
        except SandboxError as error:
            log.warning("a slot is still there", extra={"slot": slot, "reason": str(error)})
            return False
        finally:
            self.leaving.discard(slot)
        ground.book.move(slot, Cause.DISCARDED, kind=Kind.SLOT)
        ground.tell()
        return True

    def _woken(self, entry: Entry) -> None:
        if entry.state is SandboxState.WAITING:
            self._ground.tally.warm_hits["doze" if entry.is_dozing else "nap"] += 1
