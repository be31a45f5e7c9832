"""What the tiers of this machine share: directories, records, locks, life and total death.

The state of a sandbox is what is on disk and in the process table; the object holds none of it. All work is
synchronous and runs in a thread, so a slow disk never blocks the caller's event loop.
"""

import asyncio
import builtins
import contextlib
import logging
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from sandboxes import activity
from sandboxes.activity import Frost
from sandboxes.channel import SOCKET_NAME
from sandboxes.egress import prepare
from sandboxes.errors import (
    InvalidSpec,
    SandboxBusy,
    SandboxError,
    SandboxExists,
    SandboxFailed,
    SandboxGone,
    SandboxNotFound,
    TierUnavailable,
)
from sandboxes.runner.removal import remove_tree
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.slot import check_free_name
from sandboxes.spec import Probe, SandboxInfo, SandboxSpec, SandboxState
from sandboxes.tier import Tier
from sandboxes.tiers.admission import Admission
from sandboxes.tiers.launch import Launch, StartFailed
from sandboxes.tiers.pids import kill_process
from sandboxes.tiers.record import Record, Records, boot_id
from sandboxes.tiers.uids import give_tree

DEATH_DEADLINE_S: Final = 10.0  # after SIGKILL, for the kernel to take a PID namespace apart
T = TypeVar("T")
log = logging.getLogger(__name__)


class LocalTier(Tier):
    """A tier whose sandboxes are processes of this machine.

    Args:
        root: state directory; one tier object per root is not required, any number may share it.
        allow_mounts: host directories of which a spec's mounts may show parts.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(
        self, root: Path, *, allow_mounts: tuple[Path, ...] = (), clock: Callable[[], int] | None = None
    ) -> None:
        self._records = Records(root)
        self._admission = Admission(self._records, allow_mounts)
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._probed: Probe | None = None

    async def probe(self) -> Probe:
        """Return what this host can and cannot give."""
        return await asyncio.to_thread(self._probe_once)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox whose runner answers."""
        check_free_name(spec.name)
        return await self._undone_if_cancelled(lambda: self._create(spec), spec.name)

    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        """Return a living sandbox, whoever created it."""
        record = await asyncio.to_thread(self._living, name)
        sandbox = self._sandbox(name, record.epoch if epoch is None else epoch)
        try:
            await sandbox.renew()
        except SandboxGone as gone:
            raise SandboxNotFound(name, gone.reason) from None
        return sandbox

    async def freeze(self, name: str) -> None:
        """Stop everything in a sandbox; its next request thaws it."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._freeze, name)))

    async def thaw(self, name: str) -> None:
        """Let a frozen sandbox run."""
        self._living(name)
        await activity.thaw(self._records.directory(name), name)

    async def workspace(self, name: str) -> Path:
        """Return where this node sees a living sandbox's /workspace."""
        return self._workspace(name, self._living(name))

    async def destroy(self, name: str) -> None:
        """End a sandbox; returns only when nothing of it is left."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._destroy, name)))

    async def park(self, name: str, place: Path) -> bool:
        """End a sandbox, and keep its disk."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._destroy, name, place)))
        return place.exists()

    async def list(self, labels: Mapping[str, str] | None = None) -> builtins.list[SandboxInfo]:
        """Return the sandboxes that have all these labels."""
        return await asyncio.to_thread(self._list, dict(labels or {}))

    async def inspect(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox and what exists of it."""
        return await asyncio.to_thread(self._inspect, name)

    async def sweep(self) -> tuple[str, ...]:
        """Remove the debris of dead sandboxes."""
        return await asyncio.to_thread(self._sweep)

    async def _undone_if_cancelled(self, make: Callable[[], T], name: str) -> T:
        work = asyncio.ensure_future(asyncio.to_thread(make))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await work
                await asyncio.to_thread(self._destroy, name)
            raise

    # what a tier adds

    @abstractmethod
    def _probe(self) -> Probe: ...

    @abstractmethod
    def _start(self, spec: SandboxSpec, record: Record, launch: Launch) -> Record:
        """Start the runner and return the record with its pid."""

    @abstractmethod
    def _settle(self, record: Record, ready: Mapping[str, Any], launch: Launch) -> Record:
        """Return the final record, once the runner is ready."""

    @abstractmethod
    def _boot_config(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        """Return the tier's part of the boot object."""

    @abstractmethod
    def _processes(self, name: str, record: Record | None) -> builtins.list[int]:
        """Return the pids of all processes of a sandbox that can be found, the runner first."""

    @abstractmethod
    def _hold_still(self, name: str, record: Record | None) -> None:
        """Prepare the processes of a sandbox for being killed."""

    @abstractmethod
    def _frost(self, name: str, record: Record) -> Frost:
        """Return how a living sandbox can be thawed, for the note that is written before it is frozen."""

    @abstractmethod
    def _stop(self, name: str, record: Record, frost: Frost) -> Frost:
        """Freeze a sandbox; returns the note as it must be from now on.

        Raises:
            OSError: it cannot be frozen; it runs.
        """

    def _listen(self, directory: Path, launch: Launch) -> dict[str, Any]:
        """Return what the boot object says of the socket: here one that the runner inherits."""
        return {"listen_fd": launch.listen(directory / RUN_DIRECTORY)}

    def _claim_uid(self, directory: Path) -> int | None:
        return None

    def _launch(self, directory: Path) -> Launch:
        """Return what a runner is started with."""
        return Launch(directory / "logs" / "runner.log")

    def _release(self, name: str, record: Record | None) -> None:
        """Give back what the tier holds outside the directory; all processes are dead."""

    def _keep_disk(self, name: str, place: Path) -> None:
        """Move the disk of a workspace away, if it has one; all processes are dead."""

    def _workspace(self, name: str, record: Record) -> Path:
        """Return where this node sees /workspace of a living sandbox."""
        return self._records.directory(name) / "workspace"

    def _why_no_egress(self) -> str:
        """Return why no sandbox of this tier can reach anything; empty: with a spec's egress it can."""
        return "it has no way out"

    def _held_outside(self, name: str) -> builtins.list[str]:
        """Return what exists of a sandbox outside its directory, such as "cgroup /…"."""
        return []

    def _is_held(self, name: str) -> bool:
        """Say whether debris without a directory may be in the way of a new sandbox."""
        return bool(self._held_outside(name))

    def _names_outside(self) -> builtins.list[str]:
        return []

    # creation

    def _create(self, spec: SandboxSpec, fits: str = "") -> Sandbox:
        """Make a sandbox; `fits`: a slot, of which this can be made."""
        with self._creating(spec):
            return self._create_locked(spec, fits)

    @contextlib.contextmanager
    def _creating(self, spec: SandboxSpec) -> Iterator[None]:
        """Hold a free name while a sandbox is made; when that fails, nothing is left of it."""
        probe = self._probe_once()
        if not probe.ok:
            lack = probe.lacks[0]
            raise TierUnavailable(self.name, lack.why, lack.effect)
        self._check(spec)
        with self._locked(spec.name):
            record = self._records.load(spec.name)
            if record is not None and record.is_alive():
                raise SandboxExists(spec.name)
            if record is not None or self._records.directory(spec.name).exists() or self._is_held(spec.name):
                self._remove(spec.name)
            try:
                yield
            except BaseException as error:
                with contextlib.suppress(SandboxFailed):
                    self._remove(spec.name)
                if isinstance(error, StartFailed | OSError) and not isinstance(error, SandboxError):
                    raise SandboxFailed(spec.name, str(error)) from error
                raise

    def _intend(self, spec: SandboxSpec) -> Record:
        """Write the intent and make the directories of a sandbox that will be."""
        directory = self._records.directory(spec.name)
        directory.mkdir(mode=0o700)
        record = Record(
            name=spec.name,
            tier=self.name,
            epoch=spec.epoch,
            labels=dict(spec.labels),
            created_ms=self._clock(),
            uid=self._claim_uid(directory),
            data_dir=None if spec.data_dir is None else str(spec.data_dir.absolute()),
            boot_id=boot_id(),
            generation=secrets.token_hex(8),
        )
        self._records.save(record)  # the intent: from here on, whoever finds this knows what to look for
        for inner in ("workspace", RUN_DIRECTORY, "logs", "tmp"):
            (directory / inner).mkdir(mode=0o700)
        prepare(directory, spec.egress)
        if record.uid is not None:
            os.chown(directory / "workspace", record.uid, record.uid)
            if spec.data_dir is not None:
                give_tree(spec.data_dir, record.uid)
        return record

    def _create_locked(self, spec: SandboxSpec, fits: str) -> Sandbox:
        record = replace(self._intend(spec), fits=fits)
        directory = self._records.directory(spec.name)
        with self._launch(directory) as launch:
            launch.deadline_s = spec.limits.start_deadline_s
            listening = self._listen(directory, launch)
            record = self._start(spec, record, launch)
            self._records.save(record)
            config = {**self._told(spec, directory), "slot": bool(fits), **listening}
            ready = launch.boot({**config, "ready_fd": launch.ready_w_number})
            for module, reason in ready["preload_failed"].items():  # each turn would be slow, or fail
                raise InvalidSpec("image.preload", f"{module} cannot be imported inside ({reason})")
            record = self._settle(record, ready, launch)
            self._records.save(record)
        return self._sandbox(spec.name, spec.epoch)

    def _told(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        """Return what a runner is told about its sandbox."""
        config = self._boot_config(spec, directory)
        config.update(
            name=spec.name,
            epoch=spec.epoch,
            idle_deadline_s=spec.limits.idle_deadline_s,
            wall_deadline_s=spec.limits.wall_deadline_s,
            preload=list(spec.image.preload),
        )
        return config

    def _check(self, spec: SandboxSpec) -> None:
        why_not = self._why_no_egress()
        if spec.egress is not None and why_not:
            raise InvalidSpec(
                "egress", f"the tier {self.name} cannot keep a sandbox to a list of hosts: {why_not}"
            )
        self._admission.check(spec)

    # rest

    def _freeze(self, name: str) -> None:
        with self._locked(name):
            record = self._living(name)
            directory = self._records.directory(name)
            with activity.idle(directory, name) as is_idle:
                if not is_idle:
                    raise SandboxBusy(name, "a request is running")
                if activity.is_frozen(directory):
                    return
                frost = self._frost(name, record)
                activity.note_frost(directory, frost)
                try:
                    stopped = self._stop(name, record, frost)
                except OSError as error:
                    activity.forget_frost(directory)
                    raise SandboxFailed(name, f"it could not be frozen: {error}") from error
                if stopped != frost:
                    activity.note_frost(directory, stopped)

    def _living(self, name: str) -> Record:
        record = self._records.load(name)
        if record is None or not record.is_alive() or not record.ready or record.fits:
            raise SandboxNotFound(name)
        return record

    # death

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

    # knowledge

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

    def _probe_once(self) -> Probe:
        if self._probed is None:
            self._probed = self._probe()
        return self._probed

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._records.lock(name) as got:
            if not got:
                raise SandboxFailed(name, "somebody else has been creating or destroying it for a minute")
            yield


def _nothing(name: str, tier: str) -> Record:
    return Record(name=name, tier=tier, epoch=0, labels={}, created_ms=0, uid=None, data_dir=None)


def _remove_from(directory: Path, name: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)
