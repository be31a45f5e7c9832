"""Sandboxes: the isolated machines in which agents take their turns.

Enters: a `SandboxSpec` (name, epoch, image, env, limits). Leaves: a `Sandbox` that runs commands, turns,
sessions, processes and files. A `Tier` creates, finds and destroys them; `connect_sandbox` is all that an
agent's process needs.

What runs sandboxes is loaded when it is first asked for: who only needs an error or a spec must not pay for
asyncio and the tiers (0.1 s of processor).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sandboxes.egress import AllowedHost, Credential, Egress
from sandboxes.errors import (
    BranchNotFound,
    DataInUse,
    FileAlreadyExists,
    FileDenied,
    FileError,
    FileIsDirectory,
    FileMissing,
    FileNotDirectory,
    FurnishingFailed,
    GitDenied,
    GitError,
    GitMissing,
    IllegalTransition,
    ImageBuildFailed,
    ImageNotBuilt,
    InvalidSpec,
    NoSpace,
    PathRefused,
    PoolFull,
    PoolUnavailable,
    PortError,
    ProcessEnded,
    ProcessError,
    ProcessWaitTimeout,
    RefusedByRunner,
    RepositoryNotFound,
    RepositoryUnreachable,
    SandboxBusy,
    SandboxError,
    SandboxExists,
    SandboxFailed,
    SandboxGone,
    SandboxNotFound,
    SandboxTimeoutError,
    SlotGone,
    StaleEpoch,
    TierUnavailable,
    UnknownImage,
    UnknownTier,
)
from sandboxes.names import check_name, runtime_name
from sandboxes.results import ExecResult, TurnResult
from sandboxes.slot import SlotInfo, SlotSpec, fitting, is_slot_name
from sandboxes.spec import ImageSpec, Lack, Limits, Mount, Probe, SandboxInfo, SandboxSpec, SandboxState

if TYPE_CHECKING:
    from sandboxes.git import Checkout
    from sandboxes.process import Process, ProcessLogs
    from sandboxes.sandbox import Sandbox, connect_sandbox
    from sandboxes.tier import Tier
    from sandboxes.tiers.process import ProcessTier
    from sandboxes.tiers.registry import choose_tier, open_tier
    from sandboxes.tiers.unsafe import UnsafeTier
    from sandboxes.workspace import FileInfo

_LAZY: Final = {
    "Checkout": "sandboxes.git",
    "FileInfo": "sandboxes.workspace",
    "Process": "sandboxes.process",
    "ProcessLogs": "sandboxes.process",
    "ProcessTier": "sandboxes.tiers.process",
    "Sandbox": "sandboxes.sandbox",
    "Tier": "sandboxes.tier",
    "UnsafeTier": "sandboxes.tiers.unsafe",
    "choose_tier": "sandboxes.tiers.registry",
    "connect_sandbox": "sandboxes.sandbox",
    "open_tier": "sandboxes.tiers.registry",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'sandboxes' has no attribute {name!r}")


__all__ = [
    "AllowedHost",
    "BranchNotFound",
    "Checkout",
    "Credential",
    "DataInUse",
    "Egress",
    "ExecResult",
    "FileAlreadyExists",
    "FileDenied",
    "FileError",
    "FileInfo",
    "FileIsDirectory",
    "FileMissing",
    "FileNotDirectory",
    "FurnishingFailed",
    "GitDenied",
    "GitError",
    "GitMissing",
    "IllegalTransition",
    "ImageBuildFailed",
    "ImageNotBuilt",
    "ImageSpec",
    "InvalidSpec",
    "Lack",
    "Limits",
    "Mount",
    "NoSpace",
    "PathRefused",
    "PoolFull",
    "PoolUnavailable",
    "PortError",
    "Probe",
    "Process",
    "ProcessEnded",
    "ProcessError",
    "ProcessLogs",
    "ProcessTier",
    "ProcessWaitTimeout",
    "RefusedByRunner",
    "RepositoryNotFound",
    "RepositoryUnreachable",
    "Sandbox",
    "SandboxBusy",
    "SandboxError",
    "SandboxExists",
    "SandboxFailed",
    "SandboxGone",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxSpec",
    "SandboxState",
    "SandboxTimeoutError",
    "SlotGone",
    "SlotInfo",
    "SlotSpec",
    "StaleEpoch",
    "Tier",
    "TierUnavailable",
    "TurnResult",
    "UnknownImage",
    "UnknownTier",
    "UnsafeTier",
    "check_name",
    "choose_tier",
    "connect_sandbox",
    "fitting",
    "is_slot_name",
    "open_tier",
    "runtime_name",
]
