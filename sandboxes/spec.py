"""What a sandbox is made from, and what is known about one: frozen data, checked when it is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.names import check_name

MIB: Final = 1 << 20
MIN_MEMORY_BYTES: Final = 32 * MIB  # below that the runner itself does not fit
MIN_PIDS: Final = 16


class SandboxState(StrEnum):
    """Where a sandbox is in its life (the words of DESIGN, section 3)."""

    WARMING = "warming"
    WARM = "warm"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hard limits of one sandbox; what the host cannot enforce is listed by the tier's probe."""

    memory_bytes: int = 512 * MIB
    pids: int = 256
    cpu: float = 1.0  # cores
    disk_bytes: int = 1024 * MIB  # of one file, and of /tmp; the sum where the tier can
    idle_deadline_s: float = 900.0  # the sandbox ends itself when nobody has talked to it for so long
    wall_deadline_s: float = 7 * 86_400.0  # and at the latest after so long

    def __post_init__(self) -> None:
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise InvalidSpec("limits.memory_bytes", f"{self.memory_bytes} is below {MIN_MEMORY_BYTES}")
        if self.pids < MIN_PIDS:
            raise InvalidSpec("limits.pids", f"{self.pids} is below {MIN_PIDS}")
        for name in ("cpu", "disk_bytes", "idle_deadline_s", "wall_deadline_s"):
            if not getattr(self, name) > 0:
                raise InvalidSpec(f"limits.{name}", "must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What is inside besides the system: a folder that appears read-only as /image."""

    name: str
    root: Path
    turn_script: str = "take_turn.py"  # beneath root
    preload: tuple[str, ...] = ()  # modules imported once, before the first turn

    def __post_init__(self) -> None:
        script = PurePosixPath(self.turn_script)
        if script.is_absolute() or ".." in script.parts:
            raise InvalidSpec("image.turn_script", f"{self.turn_script!r} must be a path beneath the image")
        if not all(module.replace(".", "_").isidentifier() for module in self.preload):
            raise InvalidSpec("image.preload", f"{self.preload!r} are not all module names")


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

    def __post_init__(self) -> None:
        check_name(self.name)
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
