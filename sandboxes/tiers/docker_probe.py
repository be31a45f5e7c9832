"""What a Docker Engine can and cannot give to the docker tier, each in one line."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sandboxes.spec import Lack, Probe
from sandboxes.tiers.docker_container import GVISOR_RUNTIMES
from sandboxes.tiers.docker_engine import Engine, EngineDown, EngineError

TIER: Final = "docker"
OLDEST_API: Final = (1, 41)  # Docker Engine 20.10
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # the engine's word -> the kernel's


class Reach(StrEnum):
    """What a container can share with this node."""

    SOCKET = "socket"  # directories, and the sockets in them
    FILES = "files"  # directories alone: gVisor's kernel connects to no socket of the host's
    NOTHING = "nothing"  # the engine is elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tier has to know of the engine."""

    probe: Probe
    reach: Reach
    machine: str  # as `uname -m` there
    is_local: bool  # its processes are in our process table
    has_disks: bool = False  # each workspace is a disk of its own


def probe_engine(
    engine: Engine,
    *,
    runtime: str | None,
    reach: Reach | None,
    is_root: bool,
    why_no_disk: Callable[[], str] = str,
) -> Found:
    """Ask the engine.

    Args:
        runtime: the OCI runtime that is wanted, None for the engine's own.
        reach: what is shared; None: what the engine allows.
        is_root: whether we are root here.
        why_no_disk: returns why a workspace cannot be a disk of its own; empty: it can.
    """
    try:
        version, info = engine.version(), engine.info()
        url = engine.base_url
    except EngineDown as down:
        return _unusable("engine", down.reason, down.remedy)
    except EngineError as error:
        return _unusable("engine", f"it answers with an error: {error}", "look at the log of dockerd")
    refusal = _refusal(version, info, runtime)
    if refusal is not None:
        return refusal
    is_local = url.startswith("http+docker://localhost")
    settled, lacks = _reach(info, runtime, reach, is_local=is_local)
    lacks += _missing_limits(info, settled, is_root=is_root)
    no_disk = "" if settled is Reach.NOTHING else why_no_disk()
    if no_disk:
        why = f"/workspace is a plain directory, not a disk of its own: {no_disk}"
        effect = "/tmp and each file are limited, the sum of /workspace is not"
        lacks.append(Lack(what="disk quota", why=why, effect=effect))
    disk = "a directory" if no_disk else "an ext4 of its own for /workspace"
    features = {
        "engine": f"{version['Version']} (API {version['ApiVersion']}) on {info.get('OperatingSystem', '?')}",
        "runtime": runtime or str(info.get("DefaultRuntime", "?")),
        "runner": "its own socket" if settled is Reach.SOCKET else "bridged over the engine",
        "directories": "copied" if settled is Reach.NOTHING else "shared",
        "uid": "one per sandbox" if is_root and settled is not Reach.NOTHING else "an unprivileged one",
        "cgroups": f"version {info.get('CgroupVersion', '1')}: cpu, memory, pids",
        "disk": "memory" if settled is Reach.NOTHING else disk,
        "seccomp": "the engine's default and a deny list",
        "network": "none",
    }
    probe = Probe(tier=TIER, ok=True, features=features, lacks=tuple(lacks))
    machine = MACHINES.get(str(version.get("Arch")), str(version.get("Arch")))
    has_disks = settled is not Reach.NOTHING and not no_disk
    return Found(probe=probe, reach=settled, machine=machine, is_local=is_local, has_disks=has_disks)


def _refusal(version: dict[str, Any], info: dict[str, Any], runtime: str | None) -> Found | None:
    """Return why this engine cannot be used at all, None if it can."""
    api = str(version.get("ApiVersion", "0.0"))
    if tuple(int(part) for part in api.split(".")[:2]) < OLDEST_API:
        return _unusable(
            "engine",
            f"Docker Engine {version.get('Version')} (API {api}) is too old",
            "install Docker Engine 20.10 or later",
        )
    if version.get("Os") != "linux":
        return _unusable(
            "engine", f"it runs {version.get('Os')} containers", "switch Docker to Linux containers"
        )
    known = list(info.get("Runtimes") or {})
    if runtime is not None and runtime not in known:
        return _unusable(
            "runtime",
            f"the engine knows no runtime {runtime} (it knows {', '.join(sorted(known))})",
            f"register {runtime} under `runtimes` in /etc/docker/daemon.json",
        )
    if not info.get("MemoryLimit", True) or not info.get("PidsLimit", True):
        return _unusable(
            "cgroups",
            "the engine cannot limit memory or processes",
            "enable the memory and pids controllers for it",
        )
    return None


def _reach(
    info: dict[str, Any], runtime: str | None, wanted: Reach | None, *, is_local: bool
) -> tuple[Reach, list[Lack]]:
    """Return what is shared, and what is lost by that."""
    options = " ".join(info.get("SecurityOptions") or ())
    best, why = Reach.SOCKET, ""
    if runtime in GVISOR_RUNTIMES:
        best, why = Reach.FILES, "gVisor's kernel connects to no socket of the host"
    if "name=rootless" in options or "name=userns" in options:
        best, why = Reach.NOTHING, "the engine's users are not the host's (rootless, or userns-remap)"
    if not is_local:
        best, why = Reach.NOTHING, "the engine is reached over the network, and shares no directory with us"
    reach = wanted or best
    if reach is not best:
        why = "it was configured so"
    lacks = []
    if reach is not Reach.SOCKET:
        effect = (
            "requests go through the engine: some milliseconds each, and a process on this node per sandbox"
        )
        lacks.append(Lack(what="shared socket", why=why, effect=effect))
        lacks.append(Lack(what="egress", why=why, effect="a spec that names hosts is refused"))
    if reach is Reach.NOTHING:
        effect = "/workspace is kept in memory, at most half of its limit; no data directory or mounts"
        lacks.append(Lack(what="shared directories", why=why, effect=effect))
    return reach, lacks


def _missing_limits(info: dict[str, Any], reach: Reach, *, is_root: bool) -> list[Lack]:
    lacks = []
    if not info.get("SwapLimit", True):
        lacks.append(
            Lack(what="swap limit", why="the kernel does not count swap", effect="a sandbox may swap")
        )
    if not info.get("CpuCfsQuota", True):
        lacks.append(Lack(what="cpu limit", why="no CFS quota", effect="cpu is not limited"))
    if not any("seccomp" in option for option in info.get("SecurityOptions") or ()):
        lacks.append(
            Lack(what="seccomp", why="the engine has none", effect="only our own deny list filters calls")
        )
    if not is_root and reach is not Reach.NOTHING:
        why = "only root can give a sandbox a uid of its own"
        lacks.append(
            Lack(what="own uid", why=why, effect="sandboxes run as our own user, each in a container")
        )
    return lacks


def _unusable(what: str, why: str, remedy: str) -> Found:
    probe = Probe(tier=TIER, ok=False, features={}, lacks=(Lack(what=what, why=why, effect=remedy),))
    return Found(probe=probe, reach=Reach.NOTHING, machine="", is_local=False)
