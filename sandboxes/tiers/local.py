"""What the tiers of this machine share: directories, records, locks, life and total death.

The state of a sandbox is what is on disk and in the process table; the object holds none of it. All work is
synchronous and runs in a thread, so a slow disk never blocks the caller's event loop.
"""

import asyncio
import builtins
import contextlib
import os
import secrets
import signal
import stat
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from sandboxes.channel import SOCKET_NAME
from sandboxes.errors import (
    InvalidSpec,
    SandboxError,
    SandboxExists,
    SandboxFailed,
    SandboxGone,
    SandboxNotFound,
    TierUnavailable,
)
from sandboxes.runner.removal import remove_tree
from sandboxes.runner.tree import read_stat
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.spec import Probe, SandboxInfo, SandboxSpec, SandboxState
from sandboxes.tier import Tier
from sandboxes.tiers.launch import Launch, StartFailed
from sandboxes.tiers.record import Record, Records, boot_id

DEATH_DEADLINE_S: Final = 10.0  # after SIGKILL, for the kernel to take a PID namespace apart
T = TypeVar("T")


class LocalTier(Tier):
    """A tier whose sandboxes are processes of this machine.

    Args:
        root: state directory; one tier object per root is not required, any number may share it.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(self, root: Path, *, clock: Callable[[], int] | None = None) -> None:
        self._records = Records(root)
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._probed: Probe | None = None

    async def probe(self) -> Probe:
        """Return what this host can and cannot give."""
        return await asyncio.to_thread(self._probe_once)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox whose runner answers."""
        work = asyncio.ensure_future(asyncio.to_thread(self._create, spec))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await work
                await asyncio.to_thread(self._destroy, spec.name)
            raise

    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        """Return a living sandbox, whoever created it."""
        record = await asyncio.to_thread(self._records.load, name)
        if record is None or not record.is_alive() or not record.ready:
            raise SandboxNotFound(name)
        sandbox = self._sandbox(name, record.epoch if epoch is None else epoch)
        try:
            await sandbox.renew()
        except SandboxGone as gone:
            raise SandboxNotFound(name, gone.reason) from None
        return sandbox

    async def destroy(self, name: str) -> None:
        """End a sandbox; returns only when nothing of it is left."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._destroy, name)))

    async def list(self, labels: Mapping[str, str] | None = None) -> builtins.list[SandboxInfo]:
        """Return the sandboxes that have all these labels."""
        return await asyncio.to_thread(self._list, dict(labels or {}))

    async def inspect(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox and what exists of it."""
        return await asyncio.to_thread(self._inspect, name)

    async def sweep(self) -> tuple[str, ...]:
        """Remove the debris of dead sandboxes."""
        return await asyncio.to_thread(self._sweep)

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

    def _claim_uid(self, directory: Path) -> int | None:
        return None

    def _release(self, name: str, record: Record | None) -> None:
        """Give back what the tier holds outside the directory; all processes are dead."""

    def _held_outside(self, name: str) -> builtins.list[str]:
        return []

    def _names_outside(self) -> builtins.list[str]:
        return []

    # creation

    def _create(self, spec: SandboxSpec) -> Sandbox:
        probe = self._probe_once()
        if not probe.ok:
            lack = probe.lacks[0]
            raise TierUnavailable(self.name, lack.why, lack.effect)
        self._check(spec)
        with self._locked(spec.name):
            record = self._records.load(spec.name)
            if record is not None and record.is_alive():
                raise SandboxExists(spec.name)
            self._remove(spec.name)
            try:
                return self._create_locked(spec)
            except BaseException as error:
                with contextlib.suppress(SandboxFailed):
                    self._remove(spec.name)
                if isinstance(error, StartFailed | OSError) and not isinstance(error, SandboxError):
                    raise SandboxFailed(spec.name, str(error)) from error
                raise

    def _create_locked(self, spec: SandboxSpec) -> Sandbox:
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
        )
        self._records.save(record)  # the intent: from here on, whoever finds this knows what to look for
        for inner in ("workspace", RUN_DIRECTORY, "logs", "tmp"):
            (directory / inner).mkdir(mode=0o700)
        if record.uid is not None:
            os.chown(directory / "workspace", record.uid, record.uid)
            if spec.data_dir is not None:
                _give_tree(spec.data_dir, record.uid)
        with Launch(directory / "logs" / "runner.log") as launch:
            listener = launch.listen(directory / RUN_DIRECTORY)
            record = self._start(spec, record, launch)
            self._records.save(record)
            config = self._boot_config(spec, directory)
            config.update(
                name=spec.name,
                epoch=spec.epoch,
                listen_fd=listener,
                ready_fd=launch.ready_w_number,
                idle_deadline_s=spec.limits.idle_deadline_s,
                wall_deadline_s=spec.limits.wall_deadline_s,
                preload=list(spec.image.preload),
            )
            ready = launch.boot(config)
            for module, reason in ready["preload_failed"].items():  # each turn would be slow, or fail
                raise InvalidSpec("image.preload", f"{module} cannot be imported inside ({reason})")
            record = self._settle(record, ready, launch)
            self._records.save(record)
        return self._sandbox(spec.name, spec.epoch)

    def _check(self, spec: SandboxSpec) -> None:
        script = spec.image.root / spec.image.turn_script
        if not script.is_file():
            raise InvalidSpec("image", f"{script} is not there")
        if Path(os.path.realpath(self._records.root)).is_relative_to(os.path.realpath(spec.image.root)):
            raise InvalidSpec(
                "image", f"{spec.image.root} holds the state directory, which sandboxes must not see"
            )
        if spec.data_dir is None:
            return
        if not spec.data_dir.is_dir():
            raise InvalidSpec("data_dir", f"{spec.data_dir} is not a directory")
        if len(os.fsencode(spec.data_dir.absolute())) > 4000:
            raise InvalidSpec("data_dir", "its path is longer than 4000 bytes")
        wanted = str(spec.data_dir.absolute())
        for name in self._records.names():
            other = self._records.load(name)
            if name != spec.name and other is not None and other.data_dir == wanted and other.is_alive():
                raise InvalidSpec("data_dir", f"{wanted} is in use by sandbox {name}")

    # death

    def _destroy(self, name: str) -> None:
        with self._locked(name):
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Kill, wait, release, rename away, delete; the lock is held."""
        record = self._records.load(name)
        self._kill(name, record)
        try:
            self._release(name, record)
            directory = self._records.directory(name)
            trashed = f"{name}.{secrets.token_hex(6)}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(directory, self._records.trash / trashed)
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
        for name in sorted({*self._records.names(), *self._names_outside()}):
            with contextlib.suppress(InvalidSpec), self._records.lock(name, wait_s=0) as got:
                if not got:
                    continue  # being created or destroyed right now
                record = self._records.load(name)
                if record is None or not record.is_alive():
                    self._remove(name)
                    swept.append(name)
        for trashed in os.listdir(self._records.trash):
            name = trashed.rpartition(".")[0]
            with contextlib.suppress(OSError), self._records.lock(name, wait_s=0) as got:
                if got:
                    _remove_from(self._records.trash, trashed)
        return tuple(swept)

    # knowledge

    def _list(self, labels: dict[str, str]) -> builtins.list[SandboxInfo]:
        found = []
        for name in self._records.names():
            record = None
            with contextlib.suppress(InvalidSpec):
                record = self._records.load(name)
            if record is not None and labels.items() <= record.labels.items():
                found.append(self._info(record))
        return found

    def _inspect(self, name: str) -> SandboxInfo:
        record = self._records.load(name)
        directory = self._records.directory(name)
        leftovers = [f"process {pid}" for pid in self._processes(name, record)]
        leftovers += [f"cgroup {path}" for path in self._held_outside(name)]
        if directory.exists():
            leftovers.append(f"directory {directory}")
        if record is None:
            state = SandboxState.FAILED if leftovers else SandboxState.DELETED
            nothing = Record(
                name=name, tier=self.name, epoch=0, labels={}, created_ms=0, uid=None, data_dir=None
            )
            return self._info(nothing, state=state, leftovers=tuple(leftovers))
        return self._info(record, leftovers=tuple(leftovers))

    def _info(
        self, record: Record, *, state: SandboxState | None = None, leftovers: tuple[str, ...] = ()
    ) -> SandboxInfo:
        alive = record.is_alive()
        if state is None:
            state = SandboxState.FAILED
            if alive:
                state = SandboxState.WARM if record.ready else SandboxState.WARMING
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
            socket=self._records.directory(record.name) / RUN_DIRECTORY / SOCKET_NAME,
            uid=record.uid,
            leftovers=leftovers,
        )

    def _is_locked(self, name: str) -> bool:
        with self._records.lock(name, wait_s=0) as got:
            return not got

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


def kill_process(pid: int) -> None:
    """Send SIGKILL to a process, and reap it should it be our child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    found = read_stat(pid)
    return found is not None and found[1] not in "ZX"


def _remove_from(directory: Path, name: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)


def _give_tree(top: Path, uid: int) -> None:
    """Make `uid` the owner of a directory and all in it; links are not followed."""
    if os.stat(top, follow_symlinks=False).st_uid == uid:
        return
    for _, directories, names, fd in os.fwalk(top):
        os.fchown(fd, uid, uid)
        for name in directories + names:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_nlink == 1 or stat.S_ISDIR(
                found.st_mode
            ):  # a hard link may belong to somebody else as well
                os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
