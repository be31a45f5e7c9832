"""Everything that can go wrong with a sandbox.

    SandboxError
    ├── SandboxTimeoutError      the command ran out of time (TimeoutError); carries the partial result
    ├── SandboxNotFound          no living sandbox has this name
    ├── SandboxExists            a living sandbox has this name already
    ├── SandboxGone              it ended while we talked to it, or does not answer (ConnectionError)
    ├── SandboxFailed            it could not be created or destroyed; says at which step
    ├── StaleEpoch               a newer holder of the lease exists: stop, do not retry
    ├── TierUnavailable          this host cannot offer the tier; says what is missing and what to do
    ├── InvalidSpec              the caller's spec or argument is wrong (ValueError)
    ├── SandboxBusy              a limit of the sandbox is reached: tasks, processes, sessions
    ├── RefusedByRunner          the runner could not do what it was asked; `code` says why
    ├── ProcessError
    │   ├── ProcessEnded         the process ended before what was waited for happened
    │   └── ProcessWaitTimeout   it did not happen in time (TimeoutError)
    └── FileError                a file operation failed; `path` says on what
        ├── PathRefused          the path leads out of the sandbox's directories
        ├── FileMissing          (FileNotFoundError)
        ├── FileIsDirectory      (IsADirectoryError)
        ├── FileNotDirectory     (NotADirectoryError)
        ├── FileAlreadyExists    (FileExistsError)
        ├── FileDenied           (PermissionError)
        └── NoSpace              a disk limit is reached

All take positional arguments and hand them to `Exception`, so that they survive pickling between processes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxes.results import ExecResult


class SandboxError(Exception):
    """Base of all errors of this room."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """A command ran out of time; by now its whole process tree is dead."""

    def __init__(self, sandbox: str, timeout_seconds: float, result: "ExecResult") -> None:
        super().__init__(sandbox, timeout_seconds, result)
        self.sandbox, self.timeout_seconds, self.result = sandbox, timeout_seconds, result

    def __str__(self) -> str:
        return (
            f"a command in {self.sandbox} did not end within {self.timeout_seconds:g} s and was killed "
            f"(it had written {len(self.result.stdout)} + {len(self.result.stderr)} bytes)"
        )


class _Named(SandboxError):
    _sentence = "{sandbox}: {reason}"

    def __init__(self, sandbox: str, reason: str = "") -> None:
        super().__init__(sandbox, reason)
        self.sandbox, self.reason = sandbox, reason

    def __str__(self) -> str:
        return self._sentence.format(sandbox=self.sandbox, reason=self.reason).rstrip(" :")


class SandboxNotFound(_Named):
    """No living sandbox has this name."""

    _sentence = "there is no living sandbox {sandbox}: {reason}"


class SandboxExists(_Named):
    """A living sandbox has this name already."""

    _sentence = "sandbox {sandbox} exists already: connect to it, or destroy it first"


class SandboxGone(_Named, ConnectionError):
    """The sandbox ended while we talked to it, or it does not answer."""

    _sentence = "sandbox {sandbox} is gone: {reason}"


class SandboxFailed(_Named):
    """The sandbox could not be created or destroyed."""

    _sentence = "sandbox {sandbox} failed: {reason}"


class SandboxBusy(_Named):
    """A limit of the sandbox is reached."""

    _sentence = "sandbox {sandbox} is busy: {reason}"


class StaleEpoch(SandboxError):
    """A newer holder of the lease has talked to this sandbox."""

    def __init__(self, sandbox: str, epoch: int, current: int) -> None:
        super().__init__(sandbox, epoch, current)
        self.sandbox, self.epoch, self.current = sandbox, epoch, current

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch} of sandbox {self.sandbox} is stale: its holder now has epoch {self.current}"
        )


class TierUnavailable(SandboxError):
    """This host cannot offer the tier."""

    def __init__(self, tier: str, what: str, remedy: str) -> None:
        super().__init__(tier, what, remedy)
        self.tier, self.what, self.remedy = tier, what, remedy

    def __str__(self) -> str:
        return f"this host cannot run sandboxes of the tier {self.tier}: {self.what}; {self.remedy}"


class InvalidSpec(SandboxError, ValueError):
    """The caller asked for something that cannot be; `field` says where."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class RefusedByRunner(SandboxError):
    """The runner could not do what it was asked."""

    def __init__(self, sandbox: str, code: str, reason: str) -> None:
        super().__init__(sandbox, code, reason)
        self.sandbox, self.code, self.reason = sandbox, code, reason

    def __str__(self) -> str:
        return f"sandbox {self.sandbox} refused ({self.code}): {self.reason}"


class ProcessError(SandboxError):
    """Something about a background process."""

    def __init__(self, process: str, awaited: str, detail: str) -> None:
        super().__init__(process, awaited, detail)
        self.process, self.awaited, self.detail = process, awaited, detail

    def __str__(self) -> str:
        return f"{self.process}: waited for {self.awaited}, but {self.detail}"


class ProcessEnded(ProcessError):
    """The process ended before what was waited for happened."""


class ProcessWaitTimeout(ProcessError, TimeoutError):
    """What was waited for did not happen in time."""


class FileError(SandboxError):
    """A file operation failed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PathRefused(FileError):
    """The path leads out of the directories that file operations may touch."""


class FileMissing(FileError, FileNotFoundError):
    """There is no such file or directory."""


class FileIsDirectory(FileError, IsADirectoryError):
    """It is a directory, and the operation wants a file (or `recursive=True`)."""


class FileNotDirectory(FileError, NotADirectoryError):
    """It is no directory."""


class FileAlreadyExists(FileError, FileExistsError):
    """It exists, or is a directory that is not empty."""


class FileDenied(FileError, PermissionError):
    """The sandbox's user may not do that."""


class NoSpace(FileError):
    """A limit of disk space or file size is reached."""
