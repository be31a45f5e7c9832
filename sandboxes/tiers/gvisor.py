"""The gVisor tier: runsc run directly, without Docker. The code inside talks to gVisor's own kernel, never to
the host's.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sandboxes import activity
from sandboxes.activity import Frost
from sandboxes.channel import SOCKET_NAME
from sandboxes.egress import seen_inside
from sandboxes.errors import SandboxBusy, SandboxFailed, SandboxGone, SandboxNotFound
from sandboxes.runner.tree import read_stat
from sandboxes.sandbox import RUN_DIRECTORY, Sandbox
from sandboxes.spec import MIB, Lack, Limits, Probe, SandboxSpec
from sandboxes.tiers import gvisor_bundle as bundle
from sandboxes.tiers import gvisor_checkpoint as saving
from sandboxes.tiers.cgroup import our_cgroups
from sandboxes.tiers.disk import Disks, why_no_disk
from sandboxes.tiers.gvisor_machine import PROBE_UID, STATE_DIRECTORY, Machine, Plan, find_machine, stage_for
from sandboxes.tiers.gvisor_runsc import Runsc, RunscFailed, find_runsc
from sandboxes.tiers.image import readable_image
from sandboxes.tiers.inside import environment, rlimits
from sandboxes.tiers.launch import Launch, StartFailed
from sandboxes.tiers.pids import is_running, stop_tree
from sandboxes.tiers.record import Record
from sandboxes.tiers.tagged import find_tagged
from sandboxes.tiers.uids import NoFreeUid, Uids, give_tree
from sandboxes.tiers.warm import WarmTier

PID_FILE: Final = "sentry.pid"
DISK_NAME: Final = "disk.ext4"  # in the sandbox's directory
OPEN_SIGNAL: Final = "SIGUSR1"  # has a parked runner make its socket again
PATH_INSIDE: Final = "/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin"
EGRESS_INSIDE: Final = "/run/egress"  # beside the runner's own directory, which only it can enter
OVERHEAD_BYTES: Final = (
    256 * MIB
)  # gVisor's kernel and file server, and what grows until the runner has looked
FORK_BYTES: Final = 2 * MIB  # what gVisor copies for a fork beyond what Linux would (a Python: 3.5 to 4 MB)
FORKS_COUNTED: Final = 64
OVERHEAD_PIDS: Final = 1000  # their threads
HOST_PIDS_EACH: Final = (
    32  # a process inside is one outside, with a thread for each of gVisor's that enters it
)
_ADVICE: Final = {
    "runsc": "install runsc (https://gvisor.dev, or Debian's package runsc) or choose another tier",
    "root": "run as root, or choose the tier process",
}


class GvisorTier(WarmTier):
    """Sandboxes that are gVisor machines.

    Args:
        root: state directory; may be of any length and in a directory that only we can enter.
        python: the interpreter that runs inside; default: ours, else the system's.
        find: how runsc is found (a seam for tests).
        allow_mounts: host directories of which a spec's mounts may show parts.
        clock: wall clock, epoch milliseconds.
    """

    name = "gvisor"

    def __init__(
        self,
        root: Path,
        *,
        python: Path | None = None,
        find: Callable[[], Runsc | None] = find_runsc,
        allow_mounts: tuple[Path, ...] = (),
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(root, allow_mounts=allow_mounts, clock=clock)
        self._python, self._find = python, find
        self._machine: Machine | None = None
        self._disks = Disks(self._records.root)
        self._why_no_disk = "not probed"
        self._uids = Uids()
        self._cgroups, self._cgroup_reason = our_cgroups(self._records.tag_prefix)

    async def checkpoint(self, name: str, directory: Path, *, epoch: int | None = None) -> None:
        """Save a sandbox with its processes, memory and workspace in a new directory, and end it here.

        Args:
            name: of a living sandbox that nobody is using.
            directory: is made; outside the state directory, best on the same file system.
            epoch: None: the one it was created with.

        Raises:
            SandboxNotFound: there is no living sandbox of this name.
            StaleEpoch: it has seen a newer epoch.
            InvalidSpec: the directory exists, or lies in the state directory.
            SandboxBusy: a request is running, or something inside listens at a socket outside /tmp.
            SandboxFailed: it could not be saved. If gVisor itself failed, its processes are lost; its files
                stay in its directory until it is destroyed or swept.
        """
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._save, name, directory, epoch)))

    async def restore(self, spec: SandboxSpec, directory: Path) -> Sandbox:
        """Start a saved sandbox again, where it was interrupted; the directory is used up by it.

        The spec must be that of its creation; the epoch may be a newer one.

        Raises:
            TierUnavailable, SandboxExists, StaleEpoch: as for `create`.
            InvalidSpec: that is not saved there, or by another runsc or Python.
            SandboxFailed: it could not be started; what was saved is still there.
        """
        work = asyncio.ensure_future(asyncio.to_thread(self._wake, spec, directory))
        return await asyncio.shield(work)

    # probing

    def _probe(self) -> Probe:
        self._machine, (what, why) = find_machine(self._python, self._find)
        if self._machine is None:
            lack = Lack(what=what, why=why, effect=_ADVICE[what])
            return Probe(tier=self.name, ok=False, features={}, lacks=(lack,))
        runsc = self._machine.runsc
        features = {
            "runsc": f"{runsc.version()} at {runsc.executable}",
            "platform": runsc.platform,
            "python": f"{self._machine.version} at {self._machine.interpreter.executable}",
            "uid": "one per sandbox",
            "cgroups": ", ".join(sorted(self._cgroups.controllers)) or "none",
            "kernel": "gVisor's own",
            "network": "none, or the hosts of spec.egress",
        }
        lacks = []
        if self._cgroup_reason:
            effect = "memory and cpu of the whole sandbox are not limited"
            lacks.append(Lack(what="cgroups", why=self._cgroup_reason, effect=effect))
        self._why_no_disk = why_no_disk(stage_for(self._records.root), PROBE_UID)
        if self._why_no_disk:
            why = f"/workspace is a plain directory, not a disk of its own: {self._why_no_disk}"
            effect = "/tmp and each file are limited, the sum of /workspace is not"
            lacks.append(Lack(what="disk quota", why=why, effect=effect))
        return Probe(tier=self.name, ok=True, features=features, lacks=tuple(lacks))

    # starting

    def _claim_uid(self, directory: Path) -> int | None:
        try:
            return self._uids.claim(directory)
        except NoFreeUid as none:
            raise SandboxFailed(directory.name, str(none)) from none

    def _listen(self, directory: Path, launch: Launch) -> dict[str, Any]:
        """The runner makes the socket: runsc passes no descriptors on."""
        os.chown(directory / RUN_DIRECTORY, bundle.NOBODY, bundle.NOBODY)
        return {"listen_path": f"{bundle.RUN_INSIDE}/{SOCKET_NAME}"}

    def _start(self, spec: SandboxSpec, record: Record, launch: Launch) -> Record:
        assert self._machine is not None
        self._cgroups.create(spec.name, _with_overhead(spec.limits))
        if not self._why_no_disk:
            self._disks.make(self._records.directory(spec.name) / DISK_NAME, spec.limits)
        launch.spawn(self._machine.start(self._plan(spec, record, ["run"])), [], by_stdio=True)
        return self._started(record, launch)

    def _plan(self, spec: SandboxSpec, record: Record, verb: list[str]) -> Plan:
        """Return how a sandbox's machine is made; the same for the same spec and uid."""
        assert self._machine is not None
        assert record.uid is not None
        directory = self._records.directory(spec.name)
        disk = None if self._why_no_disk else directory / DISK_NAME
        image = readable_image(spec.image.root.absolute(), directory / "image")
        binds = [
            bundle.Bind(source=str(image), target="/image"),
            bundle.Bind(source=str(disk or directory / "workspace"), target="/workspace", read_only=False),
            bundle.Bind(source=str(directory / RUN_DIRECTORY), target=bundle.RUN_INSIDE, read_only=False),
        ]
        way_out = seen_inside(directory, spec.egress, EGRESS_INSIDE)
        if way_out is not None:
            binds.append(bundle.Bind(source=str(way_out.source), target=way_out.target))
        if spec.data_dir is not None:
            binds.append(bundle.Bind(source=str(spec.data_dir.absolute()), target="/data", read_only=False))
        for mount in spec.mounts:
            real = os.path.realpath(mount.source)
            binds.append(bundle.Bind(source=real, target=mount.target, read_only=mount.read_only))
        room = _scratch_bytes(spec.limits)
        executable = self._machine.interpreter.executable
        tag = self._records.tag(spec.name)
        return Plan(
            directory=directory,
            container=self._container(spec.name),
            command=[executable, "-s", "-B", bundle.RUNNER_INSIDE, "0", tag],
            verb=[*verb, "--detach", "--pid-file", str(directory / PID_FILE)],
            host_uid=record.uid,
            env={"PATH": PATH_INSIDE, "HOME": "/workspace", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            binds=binds,
            scratch=[bundle.Scratch(target=path, size_bytes=room) for path in ("/tmp", "/dev/shm")],
            groups=self._cgroups.files(spec.name),
            file_bytes=spec.limits.disk_bytes,
            disk=disk,
        )

    def _started(self, record: Record, launch: Launch) -> Record:
        """Return the record with the pid of gVisor's kernel, once runsc has started it and gone."""
        assert launch.child is not None
        directory = self._records.directory(record.name)
        try:
            code = launch.child.wait(launch.deadline_s)
        except subprocess.TimeoutExpired:
            raise StartFailed(f"runsc did not start it within {launch.deadline_s:g} s") from None
        if code != 0:
            log = (directory / "logs" / "runner.log").read_text(errors="replace")
            raise StartFailed(f"runsc ended with {code}: {log.strip()[-500:]}")
        pid = int((directory / PID_FILE).read_text())
        found = read_stat(pid)
        if found is None:
            raise StartFailed("its first process ended at once")
        return replace(record, pid=pid, start_ticks=found[2])

    def _container(self, name: str) -> str:
        return f"{self._records.tag_prefix}-{name}"  # runsc's socket has this name on the whole machine

    def _settle(self, record: Record, ready: Any, launch: Launch) -> Record:
        return replace(record, ready=True)

    def _boot_config(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        roots = {"/workspace": "/workspace", "/tmp": "/tmp"}
        if spec.data_dir is not None:
            roots["/data"] = "/data"
        roots.update({mount.target: mount.target for mount in spec.mounts if mount.source.is_dir()})
        way_out = seen_inside(directory, spec.egress, EGRESS_INSIDE)
        return {
            **(way_out.boot if way_out else {}),
            "detach": False,
            "agent_uid": bundle.AGENT_UID,
            "memory_bytes": _inside_bytes(spec.limits),
            "roots": roots,
            "home": "/workspace",
            "tmp": "/tmp",
            "swept": ["/tmp", "/dev/shm"],
            "script": f"/image/{spec.image.script}",
            "python_path": ["/image"],
            "user_site": ["/workspace/.local/lib/{python}/site-packages"],
            "env": {**environment("/workspace"), **(way_out.env if way_out else {}), **spec.env},
            "rlimits": rlimits(spec.limits, memory_by_cgroup=True, pids=True),
        }

    def _why_no_egress(self) -> str:
        return ""

    def _why_not_warm(self) -> str:
        return "gVisor's kernel mounts nothing after its start, and /data comes with the claim"

    # rest and end

    def _frost(self, name: str, record: Record) -> Frost:
        freezer = self._cgroups.freezer(name)
        if freezer is None:
            return Frost(tier=self.name)
        return Frost(tier=self.name, files=((str(freezer.path), freezer.thawed),))

    def _stop(self, name: str, record: Record, frost: Frost) -> Frost:
        freezer = self._cgroups.freezer(name)
        if freezer is None:
            return replace(frost, stopped=stop_tree(lambda: self._processes(name, record)))
        if not freezer.freeze():
            raise OSError("its processes do not stop")
        return frost

    def _save(self, name: str, directory: Path, epoch: int | None) -> None:
        if not self._probe_once().ok:
            raise SandboxNotFound(name)
        assert self._machine is not None
        home = self._records.directory(name)
        with self._locked(name):
            record = self._living(name)
            with activity.idle(home, name) as is_idle:
                if not is_idle:
                    raise SandboxBusy(name, "a request is running")
                saving.check_no_socket(home, self._seen_root(name, record), name)
                self._cgroups.thaw(name)
                activity.forget_frost(home)
                saving.make_directory(directory, self._records.root)
                try:
                    saving.park(self._socket(name), name, record.epoch if epoch is None else epoch)
                except BaseException:
                    shutil.rmtree(directory, ignore_errors=True)
                    raise
                images = directory / saving.PROCESSES
                images.mkdir(mode=0o700)
                try:
                    self._call(name, ["checkpoint", "--image-path", str(images)])
                    self._kill(name, record)
                    self._disks.wait_released(home / DISK_NAME)
                    self._move_workspace(home, directory)
                    saving.save(directory, self._manifest(record))
                except (RunscFailed, OSError) as error:
                    with contextlib.suppress(RunscFailed):
                        self._call(name, ["kill"], [OPEN_SIGNAL])
                    shutil.rmtree(directory, ignore_errors=True)
                    raise SandboxFailed(name, f"it could not be saved: {error}") from error
            self._remove(name)

    def _wake(self, spec: SandboxSpec, directory: Path) -> Sandbox:
        with self._creating(spec):
            saved = saving.load(directory)
            record = self._intend(spec)
            saving.check(saved, self._manifest(record))
            home = self._records.directory(spec.name)
            self._move_workspace(directory, home)
            try:
                record = self._start_saved(spec, record, directory / saving.PROCESSES)
            except BaseException:
                self._kill(spec.name, self._records.load(spec.name))
                self._disks.wait_released(home / DISK_NAME)
                self._move_workspace(home, directory)
                raise
            self._records.save(replace(record, ready=True))
            shutil.rmtree(directory, ignore_errors=True)
            return self._sandbox(spec.name, spec.epoch)

    def _start_saved(self, spec: SandboxSpec, record: Record, images: Path) -> Record:
        assert self._machine is not None
        assert record.uid is not None
        home = self._records.directory(spec.name)
        if self._why_no_disk:
            give_tree(home / "workspace", record.uid)
        with self._launch(home) as launch:
            launch.deadline_s = spec.limits.start_deadline_s
            self._listen(home, launch)
            self._cgroups.create(spec.name, _with_overhead(spec.limits))
            plan = self._plan(spec, record, ["restore", "--image-path", str(images)])
            launch.spawn(self._machine.start(plan), [], by_stdio=True)
            record = self._started(record, launch)
            self._records.save(record)
        try:
            self._call(spec.name, ["kill"], [OPEN_SIGNAL])
        except RunscFailed as error:
            raise StartFailed(str(error)) from None
        saving.await_socket(self._socket(spec.name), spec.name, spec.epoch)
        return record

    @staticmethod
    def _move_workspace(source: Path, target: Path) -> None:
        for name in ("workspace", DISK_NAME):
            if (source / name).exists():
                saving.move_tree(source / name, target / name)

    def _manifest(self, record: Record) -> saving.Manifest:
        assert self._machine is not None
        return saving.Manifest(
            name=record.name,
            epoch=record.epoch,
            uid=record.uid or 0,
            runsc=self._machine.runsc.version(),
            python=self._machine.version,
        )

    def _socket(self, name: str) -> Path:
        return self._records.directory(name) / RUN_DIRECTORY / SOCKET_NAME

    def _call(self, name: str, verb: list[str], after: Sequence[str] = ()) -> None:
        """Have runsc do something to a sandbox: `VERB… CONTAINER AFTER…`."""
        assert self._machine is not None
        state = self._records.directory(name) / STATE_DIRECTORY
        self._machine.runsc.call(state, *verb, self._container(name), *after)

    def _hold_still(self, name: str, record: Record | None) -> None:
        self._cgroups.thaw(name)  # the frozen cannot die

    def _seen_root(self, name: str, record: Record) -> Path:
        """Return where the host finds what a sandbox sees: the root of its file server.

        Raises:
            SandboxGone: it has none any more.
        """
        for pid in self._processes(name, record):
            root = Path(f"/proc/{pid}/root")
            if pid != record.pid and os.path.isfile(f"{root}{bundle.RUNNER_INSIDE}"):
                return root
        raise SandboxGone(name, "its file server has ended")

    def _workspace(self, name: str, record: Record) -> Path:
        return self._seen_root(name, record) / "workspace"

    def _processes(self, name: str, record: Record | None) -> list[int]:
        found = [record.pid] if record is not None and record.pid is not None and record.is_alive() else []
        found += [pid for pid in self._cgroups.processes(name) if pid not in found and is_running(pid)]
        mark = Runsc.mark(self._records.directory(name) / STATE_DIRECTORY)
        found += [pid for pid in find_tagged(mark) if pid not in found]
        return found

    def _release(self, name: str, record: Record | None) -> None:
        self._cgroups.remove(name)
        self._disks.wait_released(self._records.directory(name) / DISK_NAME)
        if record is not None and record.uid is not None:
            self._uids.release(record.uid, self._records.directory(name))

    def _held_outside(self, name: str) -> list[str]:
        devices = self._disks.devices(self._records.directory(name) / DISK_NAME)
        held = [f"cgroup {path}" for path in self._cgroups.leftovers(name)]
        return held + [f"disk {path}" for path in devices]

    def _names_outside(self) -> list[str]:
        return self._cgroups.names()


def _scratch_bytes(limits: Limits) -> int:
    """Return the size of /tmp and of /dev/shm, which are memory."""
    return min(limits.disk_bytes, limits.memory_bytes // 4)


def _inside_bytes(limits: Limits) -> int:
    """Return what processes, /tmp and /dev/shm may use together."""
    forks = FORK_BYTES * min(limits.pids, FORKS_COUNTED)
    return limits.memory_bytes + 2 * _scratch_bytes(limits) + forks


def _with_overhead(limits: Limits) -> Limits:
    """Return the limits of everything that runs on the host for a sandbox with these limits."""
    return replace(
        limits,
        memory_bytes=_inside_bytes(limits) + OVERHEAD_BYTES,
        pids=HOST_PIDS_EACH * limits.pids + OVERHEAD_PIDS,  # were it reached, gVisor would end
    )
