"""What the tiers of this machine share: making sandboxes and putting them to rest. Finding them is in
`found.py`, ending them in `ending.py`.
"""

import asyncio
import contextlib
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sandboxes import activity
from sandboxes.activity import Frost
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
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.slot import check_free_name
from sandboxes.spec import Probe, SandboxSpec
from sandboxes.tiers.admission import Admission
from sandboxes.tiers.ending import EndingTier
from sandboxes.tiers.launch import Launch, StartFailed
from sandboxes.tiers.record import Record, boot_id
from sandboxes.tiers.uids import give_tree

T = TypeVar("T")


class LocalTier(EndingTier):
    """A tier whose sandboxes are processes of this machine.

    Args:
        root: state directory; one tier object per root is not required, any number may share it.
        allow_mounts: host directories of which a spec's mounts may show parts.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(
        self, root: Path, *, allow_mounts: tuple[Path, ...] = (), clock: Callable[[], int] | None = None
    ) -> None:
        super().__init__(root, clock=clock)
        self._admission = Admission(self._records, allow_mounts)
        self._probed: Probe | None = None

    async def probe(self) -> Probe:
        """Return what this host can and cannot give."""
        if self._probed is not None:
            return self._probed
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

    def _why_no_egress(self) -> str:
        """Return why no sandbox of this tier can reach anything; empty: with a spec's egress it can."""
        return "it has no way out"

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

    def _probe_once(self) -> Probe:
        if self._probed is None:
            self._probed = self._probe()
        return self._probed
