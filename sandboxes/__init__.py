"""Sandboxes: the isolated machines in which agents take their turns.

Enters: a `SandboxSpec` (name, epoch, image, env, limits). Leaves: a `Sandbox` that runs commands, turns,
sessions, processes and files. A `Tier` creates, finds and destroys them; `connect_sandbox` is all that an
agent's process needs.
"""

from sandboxes.errors import (
    FileAlreadyExists,
    FileDenied,
    FileError,
    FileIsDirectory,
    FileMissing,
    FileNotDirectory,
    InvalidSpec,
    NoSpace,
    PathRefused,
    ProcessEnded,
    ProcessError,
    ProcessWaitTimeout,
    RefusedByRunner,
    SandboxBusy,
    SandboxError,
    SandboxExists,
    SandboxFailed,
    SandboxGone,
    SandboxNotFound,
    SandboxTimeoutError,
    StaleEpoch,
    TierUnavailable,
)
from sandboxes.names import check_name, runtime_name
from sandboxes.process import Process, ProcessLogs
from sandboxes.results import ExecResult, TurnResult
from sandboxes.sandbox import Sandbox, connect_sandbox
from sandboxes.spec import ImageSpec, Lack, Limits, Probe, SandboxInfo, SandboxSpec, SandboxState
from sandboxes.tier import Tier
from sandboxes.tiers.process import ProcessTier
from sandboxes.tiers.unsafe import UnsafeTier
from sandboxes.workspace import FileInfo

__all__ = [
    "ExecResult",
    "FileAlreadyExists",
    "FileDenied",
    "FileError",
    "FileInfo",
    "FileIsDirectory",
    "FileMissing",
    "FileNotDirectory",
    "ImageSpec",
    "InvalidSpec",
    "Lack",
    "Limits",
    "NoSpace",
    "PathRefused",
    "Probe",
    "Process",
    "ProcessEnded",
    "ProcessError",
    "ProcessLogs",
    "ProcessTier",
    "ProcessWaitTimeout",
    "RefusedByRunner",
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
    "StaleEpoch",
    "Tier",
    "TierUnavailable",
    "TurnResult",
    "UnsafeTier",
    "check_name",
    "connect_sandbox",
    "runtime_name",
]
