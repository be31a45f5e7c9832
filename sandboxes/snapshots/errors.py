"""What can go wrong with a snapshot.

    SandboxError
    └── SnapshotError
        ├── SnapshotMissing      there is none of this owner, or a layer of it is gone
        ├── SnapshotCorrupt      its bytes are not those it is named by, or not what a manifest is
        ├── SnapshotRefused      an archive that no sandbox of ours makes: a path outside, a device, a bomb
        ├── SnapshotStale        a newer holder of the lease has taken one already (fencing)
        ├── SnapshotVersion      it is of another format version
        ├── SnapshotTooLarge     more than the store or the settings allow; the sandbox stays
        ├── BackupNotFound       there is no backup of this id
        ├── BackupExpired        its time is over
        ├── BackupRefused        it cannot be taken of there, restored to there, or not now
        ├── SnapshotsOff         the store is `none:`; nothing sleeps
        └── StoreUnavailable     the store cannot be reached, is full, or does not do what a store must;
        nothing was
                                 lost, the sandbox stays

All take positional arguments and hand them to `Exception`, so that they survive pickling between processes.
"""

from sandboxes.errors import SandboxError


class SnapshotError(SandboxError):
    """Base of all errors of snapshots."""

    _sentence = "{subject}: {reason}"

    def __init__(self, subject: str, reason: str = "") -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = subject, reason

    def __str__(self) -> str:
        return self._sentence.format(subject=self.subject, reason=self.reason).rstrip(" :")


class SnapshotMissing(SnapshotError):
    """There is no snapshot of this owner, or a layer of it is gone."""

    _sentence = "there is no snapshot {subject}: {reason}"


class SnapshotCorrupt(SnapshotError):
    """The bytes are not those that the name promises, or no manifest."""

    _sentence = "snapshot {subject} is damaged: {reason}"


class SnapshotRefused(SnapshotError):
    """The archive holds what no sandbox of ours puts there; nothing of it was restored."""

    _sentence = "snapshot {subject} is refused whole: {reason}"


class SnapshotStale(SnapshotError):
    """A newer epoch of the lease has written already."""

    def __init__(self, subject: str, epoch: int, current: int) -> None:
        super().__init__(subject, f"epoch {epoch} is stale, {current} has written already")
        self.args = (subject, epoch, current)
        self.epoch, self.current = epoch, current


class SnapshotVersion(SnapshotError):
    """The snapshot was made by another version of the format."""

    _sentence = "snapshot {subject} has another format: {reason}"


class SnapshotTooLarge(SnapshotError):
    """More than the store or the settings allow."""

    def __init__(self, subject: str, size_bytes: int, limit_bytes: int, remedy: str) -> None:
        super().__init__(subject, f"{size_bytes} bytes, and {limit_bytes} are allowed: {remedy}")
        self.args = (subject, size_bytes, limit_bytes, remedy)
        self.size_bytes, self.limit_bytes, self.remedy = size_bytes, limit_bytes, remedy


class SnapshotsOff(SnapshotError):
    """No snapshots are kept here."""

    def __init__(self, subject: str = "none:") -> None:
        super().__init__(subject, "the setting snapshots.url keeps none, so nothing sleeps")
        self.args = (subject,)


class StoreUnavailable(SnapshotError):
    """The store cannot be reached, is full, or does not do what a store must."""

    _sentence = "the snapshot store {subject} cannot be used: {reason}"


class BackupNotFound(SnapshotError):
    """There is no backup of this id."""

    _sentence = "there is no backup {subject}: {reason}"


class BackupExpired(SnapshotError):
    """Its time is over."""

    _sentence = "backup {subject} has expired: {reason}"


class BackupRefused(SnapshotError):
    """It cannot be taken of there, or restored to there."""

    _sentence = "{subject} is refused: {reason}"
