"""What a sandbox is made from, and what is known about one: frozen data, checked when it is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from sandboxes.egress.policy import Egress
from sandboxes.errors import InvalidSpec
from sandboxes.names import check_name

MIB: Final = 1 << 20
MIN_MEMORY_BYTES: Final = 32 * MIB  # below that the runner itself does not fit
MIN_PIDS: Final = 16
# what a mount must not cover: the sandbox's own, and the system's
_RESERVED: Final = frozenset({
    "bin", "boot", "data", "dev", "etc", "home", "image", "lib", "lib32", "lib64", "libx32",
    "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var", "workspace",
})  # fmt: skip


class SandboxState(StrEnum):
    """Where a sandbox is in its life (the words of DESIGN, section 3)."""

    COLD = "cold"  # only its snapshot is there; a tier does not know of it
    WARMING = "warming"
    WARM = "warm"
    RUNNING = "running"  # a request is running; only the pool says so, from the lock that requests hold
    WAITING = "waiting"  # frozen: it holds its memory and runs nothing until the next request thaws it
    SUSPENDING = "suspending"  # being put to sleep; only the pool says so
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hard limits of one sandbox; what the host cannot enforce is listed by the tier's probe."""

    memory_bytes: int = 512 * MIB
    pids: int = 256
    cpu: float = 1.0  # cores
    # /tmp and /dev/shm hold a quarter of memory_bytes each, at most
    disk_bytes: int = 1024 * MIB  # of one file; of all of /workspace where the tier can
    disk_files: int = 131_072  # in /workspace where the tier can; at most one per 8 KiB of disk_bytes
    idle_deadline_s: float = 900.0  # the sandbox ends itself when nobody has talked to it for so long
    wall_deadline_s: float = 7 * 86_400.0  # and at the latest after so long
    start_deadline_s: float = 30.0  # for its runner to answer first; alone it takes below 0.2 s

    def __post_init__(self) -> None:
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise InvalidSpec("limits.memory_bytes", f"{self.memory_bytes} is below {MIN_MEMORY_BYTES}")
        if self.pids < MIN_PIDS:
            raise InvalidSpec("limits.pids", f"{self.pids} is below {MIN_PIDS}")
        for name in (
            "cpu",
            "disk_bytes",
            "disk_files",
            "idle_deadline_s",
            "wall_deadline_s",
            "start_deadline_s",
        ):
            if not getattr(self, name) > 0:
                raise InvalidSpec(f"limits.{name}", "must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What is inside besides the system: a folder that appears read-only as /image.

    The tiers process and unsafe bind the folder and need nothing else. Docker and gVisor start from the OCI
    image that `reference` names, over which the folder is bound unless `bind_root` is off and the image
    brings its own copy of it.
    """

    name: str
    root: Path
    turn_script: str | None = "take_turn.py"  # beneath root; None: nobody takes a turn in it
    preload: tuple[str, ...] = ()  # modules imported once, before the first turn
    reference: str | None = None  # OCI image: name or digest
    digest: str | None = None  # of the image as it was built, if it is known
    bind_root: bool = True  # /image is `root` on this host; else what the OCI image has there

    @property
    def script(self) -> str:
        """What a turn runs, beneath root; where there is none, the turn fails with this name."""
        return self.turn_script or "this-image-has-no-turn-script"

    def __post_init__(self) -> None:
        script = PurePosixPath(self.script)
        if script.is_absolute() or ".." in script.parts:
            raise InvalidSpec("image.turn_script", f"{self.turn_script!r} must be a path beneath the image")
        if not all(module.replace(".", "_").isidentifier() for module in self.preload):
            raise InvalidSpec("image.preload", f"{self.preload!r} are not all module names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory or file of the host that appears inside; the tier allows only some (`allow_mounts`)."""

    source: Path
    target: str  # where it appears: absolute, and not over what a sandbox has already
    read_only: bool = True

    def __post_init__(self) -> None:
        path = PurePosixPath(self.target)
        if not path.is_absolute() or str(path) != self.target or {"..", "\0"} & set(path.parts):
            raise InvalidSpec("mounts", f"target {self.target!r} must be a plain absolute path")
        if "\0" in self.target or len(path.parts) < 2 or path.parts[1] in _RESERVED:
            raise InvalidSpec(
                "mounts", f"target {self.target!r} would cover a directory of the sandbox's own"
            )
        if not self.source.is_absolute():
            raise InvalidSpec("mounts", f"source {str(self.source)!r} must be an absolute path")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything a tier needs to create a sandbox."""

    name: str
    epoch: int
    image: ImageSpec
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(
        default_factory=dict
    )  # all that the processes inside see besides the basics
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = (
        None  # appears as /data, writable; it belongs to the caller and survives the sandbox
    )
    egress: Egress | None = None  # the hosts it may reach; None: it has no network at all
    mounts: tuple[Mount, ...] = ()
    parked: Path | None = None  # a disk that `Tier.park` moved there, to begin with, if the tier has disks

    def __post_init__(self) -> None:
        check_name(self.name)
        targets = [mount.target for mount in self.mounts]
        if len(set(targets)) != len(targets):
            raise InvalidSpec("mounts", f"two of them have the same target: {', '.join(targets)}")
        if self.epoch < 0:
            raise InvalidSpec("epoch", "must not be negative")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise InvalidSpec("env", f"{name!r} cannot be the name of an environment variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What a tier knows of a sandbox."""

    name: str
    tier: str
    state: SandboxState
    epoch: int
    labels: Mapping[str, str]
    created_ms: int
    pid: int | None  # of the runner, in the host's numbering
    socket: Path
    uid: int | None = None  # the host uid of its processes
    leftovers: tuple[str, ...] = ()  # by `inspect`: what exists of it, e.g. "process 412", "directory /…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something the host cannot give."""

    what: str
    why: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a tier found on this host."""

    tier: str
    ok: bool
    features: Mapping[str, str]
    lacks: tuple[Lack, ...]
