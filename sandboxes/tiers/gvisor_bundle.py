"""What runsc is told to build: the OCI runtime configuration of a sandbox, and the skeleton of its root."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

AGENT_UID: Final = 1000  # inside, everybody but the runner is this ordinary user
NOBODY: Final = 65_534  # what runsc's own helper (the gofer) and the runner's root are on the host
RUN_INSIDE: Final = "/run/skylease"  # the node's directory with the socket; only the runner can enter it
RUNNER_INSIDE: Final = "/run/runner.pyz"
NO_POINTS: Final[Mapping[str, bool]] = {}
_TOP: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = ("alternatives", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "ca-certificates.conf")
_EMPTY: Final = ("data", "dev/shm", "image", "proc", "sys", "tmp", "usr", "workspace", RUN_INSIDE[1:])
_FILES: Final = {
    "etc/passwd": f"root:x:0:0::/:/bin/false\nsandbox:x:{AGENT_UID}:{AGENT_UID}::/workspace:/bin/sh\n",
    "etc/group": f"root:x:0:\nsandbox:x:{AGENT_UID}:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A path of the host that appears inside; the source is as runsc sees it."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A file system in memory, of a size."""

    target: str
    size_bytes: int


def configuration(
    *,
    root: str,
    argv: list[str],
    env: Mapping[str, str],
    binds: list[Bind],
    scratch: list[Scratch],
    host_uid: int,
    file_bytes: int,
) -> dict[str, Any]:
    """Return a `config.json` (OCI runtime spec 1.0).

    The user namespace maps two uids: root inside is nobody on the host, the agent is the sandbox's own uid.
    The one capability lets the runner take the agent's identity; no_new_privileges keeps it from the agent.
    """
    capabilities = ["CAP_SETUID", "CAP_SETGID"]
    mapping = [
        {"containerID": 0, "hostID": NOBODY, "size": 1},
        {"containerID": AGENT_UID, "hostID": host_uid, "size": 1},
    ]
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "dev", "source": "dev"},
    ]
    for room in scratch:
        options = ["nosuid", "nodev", "mode=1777", f"size={room.size_bytes}"]
        mounts.append({"destination": room.target, "type": "tmpfs", "source": "tmpfs", "options": options})
    for bind in binds:
        options = ["bind", "ro" if bind.read_only else "rw", "nosuid", "nodev"]
        mounts.append({"destination": bind.target, "type": "bind", "source": bind.source, "options": options})
    namespaces = ("pid", "network", "ipc", "uts", "mount", "user")
    return {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": AGENT_UID},
            "args": argv,
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_FSIZE", "hard": file_bytes, "soft": file_bytes}],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "root": {"path": root, "readonly": True},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in namespaces],
            "uidMappings": mapping,
            "gidMappings": mapping,
        },
    }


def write_skeleton(
    root: Path, runner: bytes, extra: tuple[str, ...] = (), points: Mapping[str, bool] = NO_POINTS
) -> dict[str, str]:
    """Make the root of a sandbox that has this host's system: directories, links and small files of /etc.

    Args:
        root: directory to make it in.
        runner: the packed runner.
        extra: directories outside /usr that are to appear at their own paths.
        points: where something else will be mounted -> whether it is a directory.

    Returns:
        Path beneath the root -> directory of the host, of what must be bound there.
    """
    binds = {"usr": "/usr", **{path.lstrip("/"): path for path in extra}}
    root.mkdir(mode=0o755)
    for name in _TOP:
        path = Path("/") / name
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            binds[name] = str(path)
    for name in ["etc", *_EMPTY, *binds]:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "var").mkdir()
    (root / "var/tmp").symlink_to("/tmp")
    for name in _ETC:
        source = Path("/etc") / name
        if source.is_dir():
            (root / "etc" / name).mkdir(parents=True, exist_ok=True)
            binds[f"etc/{name}"] = str(source)
        elif source.exists():
            shutil.copyfile(source, root / "etc" / name)
    for name, text in _FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / RUNNER_INSIDE[1:]).write_bytes(runner)
    for target, is_directory in points.items():
        point = root / target.lstrip("/")
        if is_directory:
            point.mkdir(parents=True, exist_ok=True)
        elif not point.exists():
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()
    return binds
