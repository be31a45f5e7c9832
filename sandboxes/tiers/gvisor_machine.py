"""Making a gVisor machine: which runsc and which Python, and the command line that starts one."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sandboxes.tiers import gvisor_bundle as bundle
from sandboxes.tiers import stage
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.gvisor_runsc import Runsc
from sandboxes.tiers.interpreter import Interpreter, candidates, is_narrow
from sandboxes.tiers.launch import StartFailed
from sandboxes.tiers.pids import kill_process
from sandboxes.tiers.tagged import find_tagged

PROBE_DEADLINE_S: Final = 20.0
PROBE_UID: Final = 19_998  # below the range of sandboxes; the process tier's probe has 19,999
STATE_DIRECTORY: Final = "runsc"
WRITABLE: Final = (
    "dev.skylease.writable"  # annotation: where it sees directories of the host that it can write to
)
_NEEDED: Final = "ctypes,heapq,json,resource,secrets,selectors,signal,socket,struct,traceback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one machine is made from.

    Attributes:
        directory: of the sandbox; the bundle and runsc's state are written there.
        container: its name for runsc, unique on this host.
        verb: runsc's command with its options, such as `run --detach`.
        groups: files to write 0 to, to be in the sandbox's control groups.
        file_bytes: the largest size of a file.
        disk: an ext4 image; a bind with this source is a mount of it.
    """

    directory: Path
    container: str
    command: list[str]
    verb: list[str]
    host_uid: int
    env: dict[str, str] = field(default_factory=dict)
    binds: list[bundle.Bind] = field(default_factory=list)
    scratch: list[bundle.Scratch] = field(default_factory=list)
    groups: tuple[str, ...] = ()
    file_bytes: int = 1 << 20
    disk: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A runsc that works here, and the Python of this host that starts in its sandboxes."""

    runsc: Runsc
    interpreter: Interpreter
    version: str = ""  # of the Python

    def start(self, plan: Plan) -> list[str]:
        """Write the bundle of a plan and return the command line that makes a machine of it.

        What appears inside is bound into a stage first: runsc's file server runs as nobody, and could not
        reach what lies in directories that only root can enter.
        """
        root = plan.directory / "rootfs"
        top = stage_for(plan.directory)
        shutil.rmtree(root, ignore_errors=True)
        points = {
            bind.target: bind.source == str(plan.disk) or os.path.isdir(bind.source) for bind in plan.binds
        }
        inner = bundle.write_skeleton(root, runner_archive(), self.interpreter.binds, points)
        sources = {f"rootfs/{name}": path for name, path in inner.items()}
        read_only = list(sources)
        staged = []
        disks: dict[str, str] = {}
        for number, bind in enumerate(plan.binds):
            is_disk = plan.disk is not None and bind.source == str(plan.disk)
            (disks if is_disk else sources)[f"source-{number}"] = bind.source
            staged.append(replace(bind, source=f"{top}/source-{number}"))
        config = bundle.configuration(
            root=f"{top}/rootfs",
            argv=plan.command,
            env=plan.env,
            binds=staged,
            scratch=plan.scratch,
            host_uid=plan.host_uid,
            file_bytes=plan.file_bytes,
        )
        shared = [
            bind.target for bind in plan.binds if not bind.read_only and bind.target != bundle.RUN_INSIDE
        ]
        config["annotations"] = {WRITABLE: json.dumps(shared)}
        (plan.directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        state = plan.directory / STATE_DIRECTORY
        state.mkdir(mode=0o700, exist_ok=True)
        order = {
            "binds": sources,
            "disks": disks,
            "owner": plan.host_uid,
            "read_only": read_only,
            "trees": {"rootfs": str(root)},
            "copies": {"config.json": str(plan.directory / "config.json")},
            "stage": top,
            "uid": None,
            "groups": list(plan.groups),
            "argv": self.runsc.start(state, *plan.verb, "--bundle", top, plan.container),
        }
        return stage.command(order)


def find_machine(
    python: Path | None, find: Callable[[], Runsc | None]
) -> tuple[Machine | None, tuple[str, str]]:
    """Return what works on this host, else None with what is missing and why.

    A sandbox is started for it: so once per process and choice, until it has worked.
    """
    runsc = find()
    if runsc is None:
        return None, ("runsc", "runsc is not installed")
    if os.geteuid() != 0:
        return None, ("root", "only root can give a sandbox a uid of its own here")
    with _PROBING:
        key = (runsc, python)
        if key not in _FOUND:
            machine, said = _try_all(runsc, python)
            if machine is None:
                return None, ("runsc", f"runsc cannot start Python in a sandbox ({said})")
            _FOUND[key] = machine
        return _FOUND[key], ("", "")


_PROBING: Final = threading.Lock()
_FOUND: Final[dict[tuple[Runsc, Path | None], Machine]] = {}


def _try_all(runsc: Runsc, python: Path | None) -> tuple[Machine | None, str]:
    said = ""
    for interpreter in candidates(python):
        if is_narrow(interpreter):
            machine = Machine(runsc=runsc, interpreter=interpreter)
            version, words = _try(machine)
            if version:
                return replace(machine, version=version), ""
            said = said or words.strip().rpartition("\n")[2][:300]
    return None, said


def _try(machine: Machine) -> tuple[str, str]:
    """Return (version, "") of a Python that starts inside, else ("", what was said)."""
    code = (
        f"import sys, {_NEEDED}\nassert sys.version_info >= (3, 9)\n"
        "print('.'.join(map(str, sys.version_info[:3])))"
    )
    directory = Path(tempfile.mkdtemp(prefix="skylease-probe-"))
    plan = Plan(
        directory=directory,
        container="probe-" + directory.name.rpartition("-")[2],
        command=[machine.interpreter.executable, "-s", "-c", code],
        verb=["run"],
        host_uid=PROBE_UID,
    )
    try:
        done = subprocess.run(
            machine.start(plan),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_DEADLINE_S,
            env={},
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, StartFailed) as error:
        return "", str(error)
    finally:
        for pid in find_tagged(machine.runsc.mark(directory / STATE_DIRECTORY)):
            kill_process(pid)
        shutil.rmtree(directory, ignore_errors=True)
    if done.returncode == 0:
        return done.stdout.decode().strip(), ""
    return "", done.stderr.decode("utf-8", "replace")


def stage_for(hidden: Path) -> str:
    """Return an open directory that can be covered while runsc starts: `hidden` does not lie beneath it.

    Raises:
        StartFailed: there is none.
    """
    real = Path(os.path.realpath(hidden))
    for path in stage.STAGES:
        if os.path.isdir(path) and not real.is_relative_to(os.path.realpath(path)):
            return path
    raise StartFailed(f"the state directory lies beneath all of {', '.join(stage.STAGES)}")
