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

from sandboxes.errors import SandboxFailed
from sandboxes.runner.tree import descendants, read_stat, signal_all
from sandboxes.spec import Lack, Probe, SandboxSpec
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.inside import environment, rlimits
from sandboxes.tiers.launch import Launch
from sandboxes.tiers.local import LocalTier, is_running
from sandboxes.tiers.record import Record
from sandboxes.tiers.tagged import find_tagged

MARK = "SKYLEASE_SANDBOX"  # in the environment of every process


class UnsafeTier(LocalTier):
    """Sandboxes that are only directories and process trees. /workspace, /data and /tmp exist for file
    operations and `cwd` alone; commands see them under WORKSPACE and TMPDIR.
    """

    name = "unsafe"

    def _probe(self) -> Probe:
        lack = Lack(what="isolation", why="this tier has none", effect="code inside can do whatever you can")
        python = ".".join(map(str, sys.version_info[:3]))
        return Probe(
            tier=self.name, ok=True, features={"python": f"{python} at {sys.executable}"}, lacks=(lack,)
        )

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
        env = {**environment(workspace), "WORKSPACE": workspace, **spec.env}
        return {
            "detach": True,
            "roots": roots,
            "home": workspace,
            "tmp": tmp,
            "swept": [tmp],
            "script": str(spec.image.root.absolute() / spec.image.turn_script),
            "python_path": [str(spec.image.root.absolute())],
            "user_site": [],
            "env": {**env, MARK: self._records.tag(spec.name)},
            "rlimits": rlimits(spec.limits, memory_by_cgroup=False, pids=False),
        }

    def _hold_still(self, name: str, record: Record | None) -> None:
        if record is not None and record.pid is not None and record.is_alive():
            signal_all(descendants(record.pid), signal.SIGSTOP)  # or they fork away while we look

    def _processes(self, name: str, record: Record | None) -> list[int]:
        found = []
        if record is not None and record.pid is not None and record.is_alive():
            found = [record.pid, *descendants(record.pid)]
        found += [pid for pid in find_tagged(self._records.tag(name)) if pid not in found]
        found += [pid for pid in _marked(self._records.tag(name)) if pid not in found]
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
