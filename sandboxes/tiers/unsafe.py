"""The tier `unsafe`: the same runner without any isolation, only ever chosen by name. For machines where
nothing else runs, and for code that is your own: its processes can do whatever you can.
"""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandboxes.activity import Frost
from sandboxes.errors import SandboxFailed
from sandboxes.runner.tree import descendants, read_stat, signal_all
from sandboxes.spec import Lack, Probe, SandboxSpec
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.inside import environment, rlimits
from sandboxes.tiers.launch import Launch
from sandboxes.tiers.pids import is_running, stop_tree
from sandboxes.tiers.record import Record
from sandboxes.tiers.tagged import find_tagged
from sandboxes.tiers.warm import WarmTier

SHARED = "it shares the host's network"
MARK = "SKYLEASE_SANDBOX"  # in the environment of every process


class UnsafeTier(WarmTier):
    """Sandboxes that are only directories and process trees. /workspace, /data and /tmp exist for file
    operations and `cwd` alone; commands see them under WORKSPACE and TMPDIR.
    """

    name = "unsafe"

    def _probe(self) -> Probe:
        lack = Lack(what="isolation", why="this tier has none", effect="code inside can do whatever you can")
        mounts = Lack(
            what="mounts",
            why="there is no file system of its own",
            effect="mounts can be reached by file operations and as a cwd, not at their path",
        )
        egress = Lack(
            what="egress",
            why=SHARED,
            effect="a spec that names hosts is refused; without one, everything can be reached",
        )
        python = ".".join(map(str, sys.version_info[:3]))
        return Probe(
            tier=self.name,
            ok=True,
            features={"python": f"{python} at {sys.executable}"},
            lacks=(lack, mounts, egress),
        )

    def _why_no_egress(self) -> str:
        return SHARED

    def _start(self, spec: SandboxSpec, record: Record, launch: Launch) -> Record:
        archive = self._records.directory(spec.name) / RUN_ARCHIVE
        archive.write_bytes(runner_archive())
        command = [sys.executable, "-s", "-B", str(archive), str(launch.boot_r), self._records.tag(spec.name)]
        launch.spawn(command, [launch.boot_r, launch.ready_w, launch.listener_fd])
        return record

    def _settle(self, record: Record, ready: Mapping[str, Any], launch: Launch) -> Record:
        launch.end_monitor()  # the first process ended by itself when it had detached the runner
        pid = int(ready["pid"])
        found = read_stat(pid)
        if found is None:
            raise SandboxFailed(record.name, "its runner ended at once")
        return replace(record, pid=pid, start_ticks=found[2], ready=True)

    def _boot_config(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        workspace, tmp = str(directory / "workspace"), str(directory / "tmp")
        roots = {"/workspace": workspace, "/tmp": tmp}
        if spec.data_dir is not None:
            roots["/data"] = str(spec.data_dir.absolute())
        roots.update({mount.target: str(mount.source) for mount in spec.mounts if mount.source.is_dir()})
        env = {**environment(workspace), "WORKSPACE": workspace, **spec.env}
        return {
            "detach": True,
            "roots": roots,
            "home": workspace,
            "tmp": tmp,
            "swept": [tmp],
            "script": str(spec.image.root.absolute() / spec.image.script),
            "python_path": [str(spec.image.root.absolute())],
            "user_site": [],
            "env": {**env, MARK: self._records.tag(spec.name)},
            "rlimits": rlimits(spec.limits, memory_by_cgroup=False, pids=False),
        }

    def _why_not_warm(self) -> str:
        return ""  # nothing is shown to anybody: its processes see all of the host

    def _frost(self, name: str, record: Record) -> Frost:
        return Frost(tier=self.name)

    def _stop(self, name: str, record: Record, frost: Frost) -> Frost:
        return replace(frost, stopped=stop_tree(lambda: self._processes(name, record)))

    def _hold_still(self, name: str, record: Record | None) -> None:
        if record is not None and record.pid is not None and record.is_alive():
            signal_all(descendants(record.pid), signal.SIGSTOP)  # or they fork away while we look

    def _processes(self, name: str, record: Record | None) -> list[int]:
        found = []
        if record is not None and record.pid is not None and record.is_alive():
            found = [record.pid, *descendants(record.pid)]
        for tag in map(self._records.tag, self._names_of(name, record)):
            found += [pid for pid in find_tagged(tag) if pid not in found]
            found += [pid for pid in _marked(tag) if pid not in found]
        return [pid for pid in found if is_running(pid)]


RUN_ARCHIVE = "run/runner.pyz"


def _marked(tag: str) -> list[int]:
    """Return the pids of processes that carry our mark in their environment."""
    wanted = f"{MARK}={tag}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in words:
                found.append(int(name))
    return found
