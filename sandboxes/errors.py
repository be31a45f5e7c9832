"""Everything that can go wrong with a sandbox.

    SandboxError
    ├── SandboxTimeoutError      the command ran out of time (TimeoutError); carries the partial result
    ├── SandboxNotFound          no living sandbox has this name
    ├── SandboxExists            a living sandbox has this name already
    ├── SandboxGone              it ended while we talked to it, or does not answer (ConnectionError)
    ├── SlotGone                 a warm slot cannot be claimed (any more): create from nothing
    ├── SandboxFailed            it could not be created or destroyed; says at which step
    ├── StaleEpoch               a newer holder of the lease exists: stop, do not retry
    ├── TierUnavailable          this host cannot offer the tier; says what is missing and what to do
    ├── UnknownTier              there is no tier of this name (ValueError)
    ├── ImageNotBuilt            the tier starts from built images, and this one is not; says how to build it
    ├── UnknownImage             there is no image folder of this name
    ├── ImageBuildFailed         an image could not be built; carries the builder's last lines
    ├── InvalidSpec              the caller's spec or argument is wrong (ValueError)
    │   └── DataInUse            another living sandbox has the agent's /data
    ├── FurnishingFailed         what a workspace starts with could not be put there; says which entry
    ├── PoolFull                 the node has no room, and nobody gives way; says when to try again
    ├── IllegalTransition        the pool was about to do what a state does not allow: a bug of ours
    ├── PoolUnavailable          the pool's book cannot be written
    ├── SandboxBusy              a limit of the sandbox is reached: tasks, processes, sessions
    ├── RefusedByRunner          the runner could not do what it was asked; `code` says why
    ├── ProcessError
    │   ├── ProcessEnded         the process ended before what was waited for happened
    │   └── ProcessWaitTimeout   it did not happen in time (TimeoutError)
    ├── GitError                 a repository could not be checked out (credentials left out)
    │   ├── RepositoryNotFound
    │   ├── BranchNotFound
    │   ├── GitDenied            it wants credentials, or others
    │   ├── RepositoryUnreachable  no network, or not to there
    │   └── GitMissing           there is no git inside
    ├── PortError                a port of the sandbox cannot be reached
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


class SlotGone(_Named):
    """A warm slot cannot be claimed: it is taken, dead, or made for something else. Create from nothing."""

    _sentence = "warm slot {sandbox} cannot be claimed: {reason}"


class SandboxFailed(_Named):
    """The sandbox could not be created or destroyed."""

    _sentence = "sandbox {sandbox} failed: {reason}"


class SandboxBusy(_Named):
    """A limit of the sandbox is reached."""

    _sentence = "sandbox {sandbox} is busy: {reason}"


class PoolFull(SandboxError):
    """The node has as many sandboxes as it may have, and none of them gives way."""

    def __init__(self, capacity: int, in_use: int, retry_after_s: float) -> None:
        super().__init__(capacity, in_use, retry_after_s)
        self.capacity, self.in_use, self.retry_after_s = capacity, in_use, retry_after_s

    def __str__(self) -> str:
        return (
            f"{self.in_use} of {self.capacity} sandboxes are in use, and none of them is idle: "
            f"try again in {self.retry_after_s:g} s, or raise sandbox.slots"
        )


class IllegalTransition(SandboxError):
    """A sandbox of the pool was about to change in a way that its state does not allow; nothing changed."""

    def __init__(self, sandbox: str, state: str, cause: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(sandbox, state, cause, story)
        self.sandbox, self.state, self.cause, self.story = sandbox, state, cause, story

    def __str__(self) -> str:
        before = f" (before: {'; '.join(self.story)})" if self.story else ""
        return f"sandbox {self.sandbox} is {self.state}, which {self.cause!r} cannot follow{before}"


class PoolUnavailable(SandboxError):
    """The book of the pool cannot be read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"the pool's book {self.path} cannot be used: {self.reason}"


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


class UnknownTier(SandboxError, ValueError):
    """There is no tier of this name."""

    def __init__(self, tier: str, known: str) -> None:
        super().__init__(tier, known)
        self.tier, self.known = tier, known

    def __str__(self) -> str:
        return f"there is no tier {self.tier!r}: there is {self.known}"


class ImageNotBuilt(SandboxError):
    """The tier starts sandboxes from built images, and this one is not there."""

    def __init__(self, image: str, remedy: str) -> None:
        super().__init__(image, remedy)
        self.image, self.remedy = image, remedy

    def __str__(self) -> str:
        return f"the image {self.image} is not built: {self.remedy}"


class UnknownImage(SandboxError, ValueError):
    """There is no image folder of this name."""

    def __init__(self, image: str, known: str) -> None:
        super().__init__(image, known)
        self.image, self.known = image, known

    def __str__(self) -> str:
        return f"there is no image {self.image!r}: there is {self.known}"


class ImageBuildFailed(SandboxError):
    """An image could not be built; `lines` are the last that the builder told."""

    def __init__(self, image: str, reason: str, lines: tuple[str, ...] = (), remedy: str = "") -> None:
        super().__init__(image, reason, lines, remedy)
        self.image, self.reason, self.lines, self.remedy = image, reason, lines, remedy

    def __str__(self) -> str:
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"the image {self.image} cannot be built ({self.reason}){remedy}"


class InvalidSpec(SandboxError, ValueError):
    """The caller asked for something that cannot be; `field` says where."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class DataInUse(InvalidSpec):
    """The agent's /data is written by another of its sandboxes, and only one may at a time."""

    def __init__(self, owner: str, holder: str) -> None:
        super().__init__("data_dir", f"the /data of {owner} is in use by sandbox {holder}")
        self.args = (owner, holder)
        self.owner, self.holder = owner, holder


class FurnishingFailed(SandboxError):
    """An entry of the workspace could not be put into the sandbox."""

    def __init__(self, sandbox: str, entry: str, reason: str) -> None:
        super().__init__(sandbox, entry, reason)
        self.sandbox, self.entry, self.reason = sandbox, entry, reason

    def __str__(self) -> str:
        return f"the workspace of {self.sandbox} could not be started: {self.entry}: {self.reason}"


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


class GitError(SandboxError):
    """A repository could not be checked out."""

    def __init__(self, repository: str, reason: str) -> None:
        super().__init__(repository, reason)
        self.repository, self.reason = repository, reason

    def __str__(self) -> str:
        return f"{self.repository} could not be checked out: {self.reason}"


class RepositoryNotFound(GitError):
    """There is no such repository."""


class BranchNotFound(GitError):
    """The repository has no such branch or tag."""


class GitDenied(GitError):
    """It wants credentials, or others."""


class RepositoryUnreachable(GitError):
    """The sandbox has no network, or not to there."""


class GitMissing(GitError):
    """There is no git inside."""


class PortError(_Named):
    """A port of the sandbox cannot be reached."""


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
