"""The end of the sandboxes of this machine, which is total."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from abc import abstractmethod
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec, SandboxFailed
from sandboxes.runner.removal import remove_tree
from sandboxes.tiers.found import FoundTier
from sandboxes.tiers.pids import kill_process
from sandboxes.tiers.record import Record

DEATH_DEADLINE_S: Final = 10.0  # after SIGKILL, for the kernel to take a PID namespace apart
log = logging.getLogger(__name__)


class EndingTier(FoundTier):
    """Destroys what it finds, and sweeps what nobody owns."""

    async def destroy(self, name: str) -> None:
        """End a sandbox; returns only when nothing of it is left."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._destroy, name)))

    async def park(self, name: str, place: Path) -> bool:
        """End a sandbox, and keep its disk."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._destroy, name, place)))
        return place.exists()

    async def sweep(self) -> tuple[str, ...]:
        """Remove the debris of dead sandboxes."""
        return await asyncio.to_thread(self._sweep)

    # what a tier adds

    @abstractmethod
    def _hold_still(self, name: str, record: Record | None) -> None:
        """Prepare the processes of a sandbox for being killed."""

    def _release(self, name: str, record: Record | None) -> None:
        """Give back what the tier holds outside the directory; all processes are dead."""

    def _keep_disk(self, name: str, place: Path) -> None:
        """Move the disk of a workspace away, if it has one; all processes are dead."""

    # the rest

    def _destroy(self, name: str, place: Path | None = None) -> None:
        with self._locked(name):
            self._remove(name, place)

    def _remove(self, name: str, place: Path | None = None) -> None:
        """Kill, wait, release, rename away, delete; the lock is held."""
        record = self._records.load(name)
        if record is None and self._records.claimed_by(name) is not None:
            return  # a slot that is somebody's sandbox by now
        if record is not None and record.tier != self.name:
            raise SandboxFailed(name, f"it is of the tier {record.tier}, which has to destroy it")
        self._records.end(name)  # killed from here on, it is removed by whoever comes next
        self._kill(name, record)
        if place is not None:
            self._keep_disk(name, place)
        try:
            self._release(name, record)
            directory = self._records.directory(name)
            trashed = f"{name}.{secrets.token_hex(6)}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(directory, self._records.trash / trashed)
            for outside in self._names_of(name, record):
                self._records.drop_handle(outside)
            _remove_from(self._records.trash, trashed)
        except OSError as error:
            raise SandboxFailed(name, f"not all of it could be removed: {error}") from error

    def _kill(self, name: str, record: Record | None) -> None:
        deadline = time.monotonic() + DEATH_DEADLINE_S
        pause = 0.001
        while True:
            self._hold_still(name, record)
            pids = self._processes(name, record)
            if not pids:
                return
            for pid in pids:
                kill_process(pid)
            if time.monotonic() > deadline:
                raise SandboxFailed(name, f"processes {pids} do not die")
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def _sweep(self) -> tuple[str, ...]:
        swept = []
        self._records.prepare()
        inside = {*self._records.names(), *self._records.slot_names(), *self._records.handle_names()}
        for name in sorted(inside | set(self._names_outside())):
            with contextlib.suppress(InvalidSpec), self._records.lock(name, wait_s=0) as got:
                if not got:
                    continue  # being created or destroyed right now
                if self._is_debris(name):
                    try:
                        self._remove(name)
                        swept.append(name)
                    except SandboxFailed as failed:  # the others' debris goes all the same
                        log.warning("cannot sweep", extra={"sandbox": name, "reason": str(failed)})
        for trashed in os.listdir(self._records.trash):
            name = trashed.rpartition(".")[0]
            with contextlib.suppress(OSError), self._records.lock(name, wait_s=0) as got:
                if got:
                    _remove_from(self._records.trash, trashed)
        return tuple(swept)

    def _is_debris(self, name: str) -> bool:
        """Say whether what is found under a name, whose lock is held, is nobody's."""
        record = self._records.load(name)
        if record is None:
            owner = self._records.leads_to(name)
            if owner in ("", name):
                return self._is_there(name)
            with self._records.lock(owner, wait_s=0) as got:  # else it is being destroyed right now
                return got and self._records.claimed_by(name) is None and self._is_there(name)
        # whoever makes a sandbox holds the lock until it is ready
        is_whole = record.is_alive() and record.ready
        return record.tier == self.name and not is_whole

    def _is_there(self, name: str) -> bool:
        """Say whether anything is found under a name."""
        places = (self._records.directory(name), self._records.handle(name))
        return any(map(os.path.lexists, places)) or bool(self._held_outside(name))


def _remove_from(directory: Path, name: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)
