"""What a sandbox's container looks like to the engine: pure, from a plan to the body of the create request.

Whatever can be taken away is: every capability, the network (not even an empty one of Docker's: see
`NetworkDisabled`), new privileges, the root file system's writability, other containers' IPC and cgroups.
"""

from dataclasses import dataclass
from typing import Any, Final

from sandboxes.spec import MIB, Limits

LABEL_NAME: Final = "skylease.name"
LABEL_ROOT: Final = "skylease.root"
LABEL_EPOCH: Final = "skylease.epoch"
LABEL_TIER: Final = "skylease.tier"
OVERHEAD_PIDS: Final = 8  # the runner, a spare unit and its main process
CPU_UNIT: Final = 1_000_000_000  # NanoCpus of one core
INODES: Final = 65_536  # of what is kept in memory
# What is kept in memory counts as memory and must leave room for processes: at most these parts of its limit.
TMP_SHARE: Final = 4
SHM_SHARE: Final = 8
WORKSPACE_SHARE: Final = 2
SHM_BYTES: Final = 64 * MIB  # Docker's own default
RUN_BYTES: Final = MIB
LOG_BYTES: Final = "256k"  # the runner writes there when it fails, and nobody else can
OPEN_FILES: Final = 1024
GVISOR_RUNTIMES: Final = frozenset({"runsc"})
HOSTNAME: Final = "sandbox"
ENVIRONMENT: Final = ("LANG=C.UTF-8", "HOME=/workspace", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or directory of the engine's host that appears inside."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is decided about a container before it exists."""

    image: str
    command: tuple[str, ...]
    user: str  # "uid:gid"
    limits: Limits
    labels: dict[str, str]
    binds: tuple[Bind, ...] = ()
    workspace_in_memory: bool = False
    runtime: str | None = None  # the engine's default
    interactive: bool = False  # its standard input can be attached to


def container_config(plan: Plan) -> dict[str, Any]:
    """Return the body of `POST /containers/create` (API 1.41)."""
    config: dict[str, Any] = {
        "Image": plan.image,
        "Entrypoint": [],
        "Cmd": list(plan.command),
        "Env": list(ENVIRONMENT),
        "WorkingDir": "/",
        "User": plan.user,
        "Hostname": HOSTNAME,
        "Labels": plan.labels,
        # A network namespace with a loopback device and nothing else, made by the OCI runtime. With
        # NetworkMode none alone, Docker starts a process of its own to set the same thing up: 110 of 220 ms.
        # gVisor refuses a namespace that Docker has not made.
        "NetworkDisabled": plan.runtime not in GVISOR_RUNTIMES,
        # Process 1 has no use for TERM: what ends a sandbox is its own deadline, or SIGKILL.
        "StopSignal": "SIGKILL",
        "StopTimeout": 1,
        "OpenStdin": plan.interactive,
        "AttachStdin": plan.interactive,
        "StdinOnce": False,
        "Tty": False,
        "HostConfig": _host_config(plan),
    }
    return config


def _host_config(plan: Plan) -> dict[str, Any]:
    limits = plan.limits
    shm = min(SHM_BYTES, limits.memory_bytes // SHM_SHARE)
    config: dict[str, Any] = {
        "Init": False,  # the runner is process 1 and reaps: so nothing inside can kill it
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],  # seccomp: the engine's default, and the runner adds ours
        "Privileged": False,
        "ReadonlyRootfs": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "UsernsMode": "",
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.pids + OVERHEAD_PIDS,
        "NanoCpus": max(CPU_UNIT // 100, int(limits.cpu * CPU_UNIT)),
        "ShmSize": shm,
        "Tmpfs": _memory_directories(plan),
        "Mounts": [_mount(bind) for bind in plan.binds],
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
        ],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_BYTES, "max-file": "1"}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    if plan.runtime is not None:
        config["Runtime"] = plan.runtime
    return config


def _memory_directories(plan: Plan) -> dict[str, str]:
    options, limits = "rw,nosuid,nodev", plan.limits
    tmp = min(limits.disk_bytes, limits.memory_bytes // TMP_SHARE)
    found = {
        "/tmp": f"{options},exec,mode=1777,size={tmp},nr_inodes={INODES}",
        "/run": f"{options},noexec,mode=755,size={RUN_BYTES}",
    }
    if plan.workspace_in_memory:
        uid, gid = plan.user.split(":")
        size = min(limits.disk_bytes, limits.memory_bytes // WORKSPACE_SHARE)
        found["/workspace"] = f"{options},exec,mode=700,uid={uid},gid={gid},size={size},nr_inodes={INODES}"
    return found


def _mount(bind: Bind) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
