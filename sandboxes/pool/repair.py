"""The book against what the tier really has: at start, and every second from then on.

The tier is right about what lives, the snapshots about what sleeps; the book is right about nothing but what
it was about to do. So after a kill between any two steps: what lives and was handed out is there again, what
was half made is removed, what has a snapshot sleeps, and the rest is gone.
"""

import logging
from typing import Any

from sandboxes import activity
from sandboxes.errors import SandboxError
from sandboxes.pool.demotion import Demotion
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.states import UP, Cause, Kind
from sandboxes.sleep import ALIVE, directory_of, is_hydrated
from sandboxes.spec import SandboxInfo, SandboxState

log = logging.getLogger(__name__)


class Repair:
    """See the module."""

    def __init__(self, ground: Ground, demotion: Demotion) -> None:
        self._ground, self._demotion = ground, demotion

    async def start(self) -> None:
        """Repair everything; nobody uses the pool yet.

        Raises:
            SandboxError: the tier or the store of snapshots cannot be asked.
        """
        ground = self._ground
        there = {info.name for info in await ground.tier.list({})}
        known = {entry.name for entry in ground.book.entries(Kind.SANDBOX) if entry.is_live}
        for name in sorted(there | known):
            async with ground.hold(name):
                await self.agree(name, is_first=True)

    async def agree(self, name: str, *, is_first: bool = False) -> Entry | None:
        """Have the book say what there is of a sandbox, and remove what is half or dead; its lock is held.

        Args:
            is_first: this process has not looked before, so it serves nobody's way out yet, whatever the book
                of the process before it says.

        Returns:
            its entry, None: there is nothing.

        Raises:
            SandboxError: the tier or the store of snapshots cannot be asked.
        """
        book, info = self._ground.book, await self._ground.tier.look(name)
        entry = book.get(name)
        if info.state in ALIVE and is_hydrated(directory_of(info)):
            known = not is_first and entry is not None and entry.state in UP
            entry = self._adopted(info, entry)
            if not known:
                try:
                    await self._ground.open(name, directory_of(info))
                except (SandboxError, OSError) as error:  # one that is damaged must not stop the node
                    log.warning("not opened", extra={"sandbox": name, "reason": str(error)})
            return self._demotion.look(entry)
        if entry is not None and entry.is_live:
            if entry.state in UP:
                log.warning("a sandbox has died", extra={"sandbox": name, "was": entry.state})
            if entry.state is not SandboxState.FAILED:
                book.move(name, Cause.DIED)
            await self._demotion.clear(name)
        elif info.state is not SandboxState.DELETED:  # half made, or dead, by somebody before us
            await self._ground.close(name)
            await self._ground.tier.destroy(name)
        return book.get(name)

    def _adopted(self, info: SandboxInfo, entry: Entry | None) -> Entry:
        """Return the entry of a sandbox that lives and was handed out."""
        book, directory = self._ground.book, directory_of(info)
        now: dict[str, Any] = {"epoch": info.epoch, "directory": directory}
        if entry is None or entry.state not in UP:
            used_ms = activity.last_used_ms(directory) or info.created_ms
            return book.move(info.name, Cause.FOUND, used_ms=used_ms, is_local=True, **now)
        if (entry.epoch, entry.directory) != (info.epoch, directory):
            return book.note(info.name, **now)
        return entry

    async def watch(self) -> None:
        """Note who died, who naps, who runs; clear away who is dead.

        Raises:
            SandboxError: the tier or the store cannot be asked.
        """
        ground, book = self._ground, self._ground.book
        living = {info.name for info in await ground.tier.list({}) if info.state in ALIVE}
        ours = {entry.name: entry for entry in book.entries(Kind.SANDBOX) if entry.is_live}
        for name in sorted(living | ours.keys()):
            if ground.is_taken(name):
                continue
            if name in living and name in ours and ours[name].state in UP:
                self._demotion.look(ours[name])
                continue
            async with ground.hold(name):  # asked again under the lock: it may have changed since the list
                await self.agree(name)
