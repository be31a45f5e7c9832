"""What there is of the sandboxes of this machine: their records, and what exists of each.

The state of a sandbox is what is on disk and in the process table; the object holds none of it. All work is
synchronous and runs in a thread, so a slow disk never blocks the caller's event loop.
"""

import asyncio
import builtins
import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sandboxes import activity
from sandboxes.channel import SOCKET_NAME
from sandboxes.errors import InvalidSpec, SandboxFailed, SandboxNotFound
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.spec import SandboxInfo, SandboxState
from sandboxes.tier import Tier
from sandboxes.tiers.record import Record, Records


class FoundTier(Tier):
    """Finds the sandboxes of one state directory.

    Args:
        root: state directory; one tier object per root is not required, any number may share it.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(self, root: Path, *, clock: Callable[[], int] | None = None) -> None:
        self._records = Records(root)
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)

    async def workspace(self, name: str) -> Path:
        """Return where this node sees a living sandbox's /workspace."""
        return self._workspace(name, self._living(name))

    async def list(self, labels: Mapping[str, str] | None = None) -> builtins.list[SandboxInfo]:
        """Return the sandboxes that have all these labels."""
        return await asyncio.to_thread(self._list, dict(labels or {}))

    async def inspect(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox and what exists of it."""
        return await asyncio.to_thread(self._inspect, name)

    async def look(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox; what exists of it, only where it does not live."""
        return await asyncio.to_thread(self._look, name)

    # what a tier adds

    @abstractmethod
    def _processes(self, name: str, record: Record | None) -> builtins.list[int]:
        """Return the pids of all processes of a sandbox that can be found, the runner first."""

    def _workspace(self, name: str, record: Record) -> Path:
        """Return where this node sees /workspace of a living sandbox."""
        return self._records.directory(name) / "workspace"

    def _held_outside(self, name: str) -> builtins.list[str]:
        """Return what exists of a sandbox outside its directory, such as "cgroup /…"."""
        return []

    def _is_held(self, name: str) -> bool:
        """Say whether debris without a directory may be in the way of a new sandbox."""
        return bool(self._held_outside(name))

    def _names_outside(self) -> builtins.list[str]:
        return []

    # the rest

    def _living(self, name: str) -> Record:
        record = self._records.load(name)
        if record is None or not record.is_alive() or not record.ready or record.fits:
            raise SandboxNotFound(name)
        return record

    def _list(self, labels: dict[str, str]) -> builtins.list[SandboxInfo]:
        found = []
        for name in self._records.names():
            record = None
            with contextlib.suppress(InvalidSpec):
                record = self._records.load(name)
            if record is not None and record.tier == self.name and labels.items() <= record.labels.items():
                found.append(self._info(record))
        return found

    def _inspect(self, name: str) -> SandboxInfo:
        record = self._records.load(name)
        directory = self._records.directory(name)
        if record is None and self._records.claimed_by(name) is not None:
            return self._info(_nothing(name, self.name), state=SandboxState.DELETED)
        leftovers = [f"process {pid}" for pid in self._processes(name, record)]
        leftovers += self._held_outside(name)
        if directory.exists():
            leftovers.append(f"directory {directory}")
        if record is None:
            state = SandboxState.FAILED if leftovers else SandboxState.DELETED
            return self._info(_nothing(name, self.name), state=state, leftovers=tuple(leftovers))
        return self._info(record, leftovers=tuple(leftovers))

    def _look(self, name: str) -> SandboxInfo:
        record = self._records.load(name)
        return self._info(record) if record is not None and record.is_alive() else self._inspect(name)

    def _info(
        self, record: Record, *, state: SandboxState | None = None, leftovers: tuple[str, ...] = ()
    ) -> SandboxInfo:
        alive = record.is_alive()
        if state is None:
            state = SandboxState.FAILED
            if alive:
                state = SandboxState.WARM if record.ready else SandboxState.WARMING
                if activity.is_frozen(self._records.directory(record.name)):
                    state = SandboxState.WAITING
            elif record.pid is None and self._is_locked(record.name):
                state = SandboxState.WARMING
        return SandboxInfo(
            name=record.name,
            tier=record.tier,
            state=state,
            epoch=record.epoch,
            labels=record.labels,
            created_ms=record.created_ms,
            pid=record.pid if alive else None,
            socket=self._socket(record.name),
            uid=record.uid,
            leftovers=leftovers,
        )

    def _is_locked(self, name: str) -> bool:
        with self._records.lock(name, wait_s=0) as got:
            return not got

    def _names_of(self, name: str, record: Record | None) -> builtins.list[str]:
        """Return the names under which something of a sandbox may be found outside its directory: its own,
        and that of the slot it was.
        """
        if record is not None:
            return list(dict.fromkeys((name, record.outside)))
        return [
            name,
            *(slot for slot in self._records.handle_names() if self._records.leads_to(slot) == name != slot),
        ]

    def _socket(self, name: str) -> Path:
        return self._records.directory(name) / RUN_DIRECTORY / SOCKET_NAME

    def _sandbox(self, name: str, epoch: int) -> Sandbox:
        return Sandbox(self._records.directory(name), name=name, epoch=epoch)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._records.lock(name) as got:
            if not got:
                raise SandboxFailed(name, "somebody else has been creating or destroying it for a minute")
            yield


def _nothing(name: str, tier: str) -> Record:
    return Record(name=name, tier=tier, epoch=0, labels={}, created_ms=0, uid=None, data_dir=None)
