"""The life of a container: started, joined to its runner, found again, frozen, thawed, ended.

What a container is made from is the business of `docker_tier`.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from sandboxes import activity
from sandboxes.activity import Frost
from sandboxes.errors import SandboxFailed, SandboxNotFound, TierUnavailable
from sandboxes.runner.tree import read_stat
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.tiers import docker_container as shape
from sandboxes.tiers.cgroup import Freezer, freezer_of
from sandboxes.tiers.docker_bridge import Order, start_bridge
from sandboxes.tiers.docker_disk import MOUNT_NAME, WorkspaceDisks
from sandboxes.tiers.docker_engine import Engine, EngineDown, EngineError
from sandboxes.tiers.docker_inside import BOOT_DIRECTORY, furnish
from sandboxes.tiers.docker_launch import BOOT_CONFIG, SocketLaunch, StreamLaunch, keep_config
from sandboxes.tiers.docker_probe import Found, Reach
from sandboxes.tiers.inlay import Inlay, inlay, why_no_inlay
from sandboxes.tiers.launch import Launch, StartFailed
from sandboxes.tiers.pids import kill_process
from sandboxes.tiers.record import Record
from sandboxes.tiers.tagged import find_tagged
from sandboxes.tiers.uids import Uids
from sandboxes.tiers.warm import WarmTier, inlays

log = logging.getLogger(__name__)

ENGINE_NOTE: Final = "engine"
INLAYS_NOTE: Final = "inlays.json"
ENDED_BY_ITSELF: Final = 0  # the runner's exit code at its deadline; whatever else stops it can be undone
FIRST_ENDS_S: Final = 1.0  # within milliseconds; else one looks once more when the container is gone
ELSEWHERE: Final = "the Docker Engine shares no directory with this node"


class Containers(WarmTier):
    """A tier whose sandboxes are containers of an engine."""

    name = "docker"
    _found: Found  # set by the probe

    def __init__(
        self,
        root: Path,
        *,
        host: str | None,
        allow_mounts: tuple[Path, ...],
        clock: Callable[[], int] | None,
    ) -> None:
        super().__init__(root, allow_mounts=allow_mounts, clock=clock)
        self._engine = Engine(host)
        self._engines: dict[str, Engine] = {}
        self._is_root = os.geteuid() == 0
        self._uids = Uids()
        self._disks = WorkspaceDisks(self._records.root)

    def _user(self, record: Record | None) -> int:
        """Return the uid of a sandbox's processes: its own if we are root, else ours."""
        return os.geteuid() if record is None or record.uid is None else record.uid

    def _container(self, name: str) -> str:
        """Return the name of a sandbox's container; one that was a slot keeps the slot's."""
        return f"skylease-{self._records.tag_prefix}-{self._names_of(name, self._records.load(name))[-1]}"

    # slots

    def _why_not_warm(self) -> str:
        if self._found.reach is not Reach.SOCKET:
            return "its containers' mounts cannot be reached from here"
        return why_no_inlay()

    def _moved(self, record: Record, before: Path, after: Path) -> None:
        if record.uid is not None:
            self._uids.move(record.uid, before, after)

    def _enter(self, spec: SandboxSpec, record: Record, config: Mapping[str, Any]) -> None:
        """Show in the container what comes with the claim, and note it for when it is started again."""
        directory = self._records.directory(spec.name)
        shown = inlays(spec, directory)
        (directory / INLAYS_NOTE).write_text(json.dumps([asdict(entry) for entry in shown]))
        boot = {**json.loads((directory / BOOT_CONFIG).read_bytes()), **config, "slot": False}
        keep_config(directory, boot)
        self._show(record, shown)

    def _show(self, record: Record, shown: Sequence[Inlay]) -> None:
        assert record.pid is not None
        # device files are barred as in the engine's own: no capability, no new privileges
        inlay(record.pid, shown, is_alive=record.is_alive, bars_devices=False)

    def _show_again(self, record: Record) -> None:
        """Show in a container that was started again what came with its claim, if it was a slot."""
        with contextlib.suppress(FileNotFoundError):
            noted = json.loads((self._records.directory(record.name) / INLAYS_NOTE).read_bytes())
            self._show(record, [Inlay(**entry) for entry in noted])

    def _is_held(self, name: str) -> bool:
        return False  # a container that somebody left is removed when its name is taken

    def _engine_of(self, name: str) -> Engine:
        """Return the engine that has a sandbox's container, which need not be the one for new ones."""
        try:
            host = (self._records.directory(name) / ENGINE_NOTE).read_text()
        except FileNotFoundError:
            return self._engine
        return self._engine if host == self._engine.host else self._engines.setdefault(host, Engine(host))

    def _why_dead(self, name: str) -> str | None:
        """Return why a container does not run, None if it does."""
        container = self._container(name)
        found = self._engine_of(name).inspect(container)
        if found is None:
            return "its container is gone"
        if found.running:
            return None
        said = self._engine_of(name).logs(container).rpartition("\n")[2]
        return f"its container ended with {found.exit_code}" + (f" ({said})" if said else "")

    # starting

    def _launch(self, directory: Path) -> Launch:
        def look() -> str | None:
            return self._why_dead(directory.name)

        boot = directory / BOOT_DIRECTORY
        if not boot.exists():
            (directory / ENGINE_NOTE).write_text(self._engine.host)
            furnish(boot, self._user(self._records.load(directory.name)))
        if self._found.reach is Reach.SOCKET:
            return SocketLaunch(directory, boot, look)
        return StreamLaunch(directory, look)

    def _run(self, record: Record, launch: Launch) -> Record:
        """Start the container and let its runner have what it needs."""
        container, engine = self._container(record.name), self._engine_of(record.name)
        directory = self._records.directory(record.name)
        self._disks.show(directory, self._user(record))
        if isinstance(launch, StreamLaunch):
            record = self._bridge(record, launch)
            launch.use(engine.attach(container))
            engine.start(container)
            return record
        assert isinstance(launch, SocketLaunch)
        shown = _device(self._disks.source(directory))
        engine.start(container)
        pid = launch.hand_over(self._user(record))
        found = read_stat(pid)
        if found is None:
            raise SandboxFailed(record.name, "its first process ended at once")
        if self._found.has_disks and _device(Path(f"/proc/{pid}/root/workspace")) != shown:
            raise SandboxFailed(record.name, "the engine does not see what this process mounts")
        self._disks.hide(directory)
        return replace(record, pid=pid, start_ticks=found[2])

    def _settle(self, record: Record, ready: Mapping[str, Any], launch: Launch) -> Record:
        if isinstance(launch, StreamLaunch):
            launch.go()
        return replace(record, ready=True)

    def _bridge(self, record: Record, launch: StreamLaunch) -> Record:
        """Start the process that stands at the sandbox's socket, and take it for the sandbox's pid."""
        container, tag = self._container(record.name), self._records.tag(record.name)
        order = Order(
            host=self._engine_of(record.name).host,
            container=container,
            listen_fd=launch.listener_fd,
            go_fd=launch.go_fd,
        )
        pid = start_bridge(order, tag, self._records.directory(record.name) / "logs" / "bridge.log")
        found = read_stat(pid)
        if found is None:
            raise SandboxFailed(record.name, "its bridge ended at once")
        return replace(record, pid=pid, start_ticks=found[2])

    async def workspace(self, name: str) -> Path:
        """Return where this node sees a living sandbox's /workspace."""
        if (await self.probe()).ok and self._found.reach is Reach.NOTHING:
            raise TierUnavailable(self.name, ELSEWHERE, "its files are reached through its runner only")
        return await super().workspace(name)

    def _workspace(self, name: str, record: Record) -> Path:
        directory = self._records.directory(name)
        source = self._disks.source(directory)
        if source.name == MOUNT_NAME and not os.path.ismount(source):
            return Path(f"/proc/{record.pid}/root/workspace")  # whatever is mounted there inside
        return source

    # coming back

    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        """Return a living sandbox, whoever created it; one whose container was stopped is started again.

        What was in its memory and in /tmp is gone then. One that ended itself at its deadline stays ended.
        """
        record = await asyncio.to_thread(self._records.load, name)
        if record is not None and record.ready and not record.is_alive():
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._resume, name, epoch)))
        return await super().connect(name, epoch=epoch)

    def _resume(self, name: str, epoch: int | None) -> None:
        self._probe_once()
        with self._locked(name), translated(self.name, name):
            record = self._records.load(name)
            if record is None or record.tier != self.name or not record.ready or record.is_alive():
                return
            if record.ended:
                return
            directory = self._records.directory(name)
            config = self._resumable(record)
            activity.forget_frost(directory)
            (directory / RUN_DIRECTORY / "runner.sock").unlink(missing_ok=True)
            with self._launch(directory) as launch:
                launch.listen(directory / RUN_DIRECTORY)
                if config is None:
                    assert isinstance(launch, StreamLaunch)
                    record = self._bridge(record, launch)
                    launch.go()
                else:
                    record = replace(self._run(record, launch), epoch=max(record.epoch, epoch or 0))
                    self._show_again(record)
                    record = self._settle(record, launch.boot({**config, "epoch": record.epoch}), launch)
                self._records.save(record)

    def _resumable(self, record: Record) -> dict[str, Any] | None:
        """Return what to tell the runner of a stopped container, None if only its bridge has ended.

        Raises:
            SandboxNotFound: it is not to be started again.
        """
        name = record.name
        found = self._engine_of(name).inspect(self._container(name))
        if found is None:
            raise SandboxNotFound(name, "its container was removed")
        if found.running and self._found.reach is not Reach.SOCKET:
            return None
        if not found.running and found.exit_code == ENDED_BY_ITSELF:
            raise SandboxNotFound(name, "it ended itself at its deadline")
        if self._found.reach is Reach.NOTHING:
            raise SandboxNotFound(name, "its container was stopped, and its files were in its memory")
        config: dict[str, Any] = json.loads((self._records.directory(name) / BOOT_CONFIG).read_bytes())
        config["wall_deadline_s"] -= (self._clock() - record.created_ms) / 1000
        if config["wall_deadline_s"] <= 0:
            raise SandboxNotFound(name, "its container was stopped, and its time is over")
        if found.running:  # started by somebody else, so its runner got no boot object
            self._engine_of(name).kill(found.id)
        return config

    # rest

    def _frost(self, name: str, record: Record) -> Frost:
        freezer = self._freezer(record)
        return Frost(tier=self.name, files=() if freezer is None else ((str(freezer.path), freezer.thawed),))

    def _stop(self, name: str, record: Record, frost: Frost) -> Frost:
        freezer = self._freezer(record)
        try:
            if freezer is None:
                self._engine_of(name).pause(self._container(name))
            elif not freezer.freeze():
                raise OSError("its processes do not stop")
        except EngineError as error:
            raise OSError(str(error)) from None
        return frost

    async def thaw(self, name: str) -> None:
        """Let a frozen sandbox run."""
        frost = activity.noted_frost(self._records.directory(name))
        if frost is None or frost.files:
            await super().thaw(name)
        else:
            await asyncio.to_thread(self._unpause, name)

    def _unpause(self, name: str) -> None:
        self._living(name)
        engine, container = self._engine_of(name), self._container(name)
        try:
            engine.unpause(container)
        except EngineError as error:
            found = None
            with contextlib.suppress(EngineError):
                found = engine.inspect(container)
            if found is None or found.paused:  # else somebody else has thawed it meanwhile
                raise SandboxFailed(name, f"it cannot be thawed: {error}") from None
        activity.forget_frost(self._records.directory(name))

    def _freezer(self, record: Record) -> Freezer | None:
        """Return what freezes the container without the engine, None if we must ask it to."""
        if not self._is_root or not self._probe_once().ok or not self._found.is_local:
            return None
        pid = record.pid
        if self._found.reach is not Reach.SOCKET:
            with contextlib.suppress(EngineError):
                seen = self._engine_of(record.name).inspect(self._container(record.name))
                pid = seen.pid if seen is not None else None
        return freezer_of(pid) if pid else None

    # end

    def _hold_still(self, name: str, record: Record | None) -> None:
        directory = self._records.directory(name)
        frost = activity.noted_frost(directory)
        if frost is None:
            return
        with contextlib.suppress(OSError, EngineError):  # the frozen cannot die, except by the engine
            if frost.files:
                activity.melt(frost)
            else:
                self._engine_of(name).unpause(self._container(name))

    def _processes(self, name: str, record: Record | None) -> list[int]:
        found = [record.pid] if record is not None and record.pid is not None and record.is_alive() else []
        tags = map(self._records.tag, self._names_of(name, record))
        found += [pid for pid in find_tagged(*tags) if pid not in found]
        return found

    def _kill(self, name: str, record: Record | None) -> None:
        self._hold_still(name, record)
        if record is not None and record.pid is not None and record.is_alive():
            kill_process(record.pid)  # at once, and whether or not the engine answers
        with ThreadPoolExecutor(1) as beside:
            alone = beside.submit(self._bury, name, record)
            try:
                self._engine_of(name).remove(self._container(name))
            except EngineError as error:
                raise SandboxFailed(name, f"its container cannot be removed: {error}") from error
        if not alone.result():
            super()._kill(name, record)

    def _bury(self, name: str, record: Record | None) -> bool:
        """Remove, beside the engine, what a container needs to be started again, and then its disk.

        Returns:
            Whether no process is left. With its first process, all of a container have ended.
        """
        deadline = time.monotonic() + FIRST_ENDS_S
        while record is not None and record.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._processes(name, record):
            return False
        directory = self._records.directory(name)
        shutil.rmtree(directory / BOOT_DIRECTORY, ignore_errors=True)  # all of it is ours
        self._disks.remove(directory)
        self._disks.discard(directory)
        return True

    def _release(self, name: str, record: Record | None) -> None:
        self._disks.remove(self._records.directory(name))
        if record is not None and record.uid is not None:
            for held in self._names_of(name, record):
                self._uids.release(record.uid, self._records.directory(held))

    def _held_outside(self, name: str) -> list[str]:
        held = [f"disk {path}" for path in self._disks.held(self._records.directory(name))]
        with translated(self.name, name):
            if self._engine_of(name).inspect(self._container(name)) is not None:
                held.append(f"container {self._container(name)}")
        return held

    def _names_outside(self) -> list[str]:
        try:
            found = self._engine.labels(f"{shape.LABEL_ROOT}={self._records.root}", shape.LABEL_NAME)
        except EngineError as error:
            log.warning("containers cannot be listed", extra={"reason": str(error)})
            return []
        return [labels[shape.LABEL_NAME] for labels in found.values()]


def _device(path: Path) -> int:
    """Return which file system a directory is on."""
    return path.stat().st_dev


@contextlib.contextmanager
def translated(tier: str, name: str) -> Iterator[None]:
    """Raise the engine's errors as the room's."""
    try:
        yield
    except EngineDown as down:
        raise TierUnavailable(tier, down.reason, down.remedy) from None
    except (EngineError, StartFailed) as error:
        raise SandboxFailed(name, str(error)) from error
