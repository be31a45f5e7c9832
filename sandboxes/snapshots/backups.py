"""Backups of any directory: snapshots that a person takes and names, kept until they expire.

A backup is whole by itself, belongs to nobody's lease, and is found by its id (a UUID). It may be restored
elsewhere, but never over something: a restore that fails leaves nothing. Calls of one node are serialised.
"""

import contextlib
import fcntl
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.snapshots.errors import BackupExpired, BackupNotFound, BackupRefused, SnapshotMissing
from sandboxes.snapshots.manifest import Manifest
from sandboxes.snapshots.snapshots import Snapshots, is_backup, owner_of_backup

DEFAULT_TTL_S: Final = 259_200  # three days
MAX_TTL_S: Final = 10 * 365 * 86_400
MAX_NAME_CHARS: Final = 256
EXPIRY_MARGIN_MS: Final = 60_000  # one that expires sooner may be gone before it is read
WAIT_S: Final = 600.0  # for the one that runs
WAIT_STEP_S: Final = 0.05
_EPOCH: Final = 1  # a backup has one writer and is written once


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """One backup: `directory` is what it was taken of; sizes are bytes, before and after compression."""

    backup_id: str
    name: str
    directory: str
    created_ms: int
    expires_ms: int
    raw_bytes: int
    stored_bytes: int
    files: int
    excludes: tuple[str, ...]
    skipped: tuple[str, ...]
    absent: tuple[str, ...] = ()


class Backups:
    """See the module.

    Args:
        snapshots: where they are kept.
        work: directory of this node for the lock and passing files.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(self, snapshots: Snapshots, work: Path, *, clock: Callable[[], int]) -> None:
        self._snapshots, self._work, self._clock = snapshots, work, clock
        work.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(
        self, directory: Path, *, name: str = "", ttl_s: int = DEFAULT_TTL_S, excludes: Sequence[str] = ()
    ) -> Backup:
        """Back up a directory; links in it are kept as links and not followed.

        Args:
            directory: what to back up; the caller sees to it that nothing writes there meanwhile.
            name: for people.
            ttl_s: seconds until it expires.
            excludes: paths within it to leave out.

        Raises:
            InvalidSpec: name, time or an exclude cannot be.
            BackupRefused: it is no directory, or the store is in it.
            SnapshotError: it could not be read or kept; nothing is left.
        """
        if len(name) > MAX_NAME_CHARS or any(ord(character) < 32 for character in name):
            raise InvalidSpec("name", f"it has at most {MAX_NAME_CHARS} characters, all of them visible")
        if not 0 < ttl_s <= MAX_TTL_S:
            raise InvalidSpec("ttl_s", f"{ttl_s} is not within 1 and {MAX_TTL_S} seconds")
        real = directory.resolve()
        if not real.is_dir():
            raise BackupRefused(str(directory), "it is no directory")
        if self._work.resolve().is_relative_to(real):
            raise BackupRefused(str(directory), "the backups themselves are in it")
        backup_id = str(uuid.uuid4())
        note = {"name": name, "directory": str(real), "expires_ms": self._clock() + ttl_s * 1000}
        with self._serialised():
            index = self._work / f"{backup_id}.index"
            try:
                taken = self._snapshots.take(
                    owner_of_backup(backup_id),
                    real,
                    epoch=_EPOCH,
                    index=index,
                    excludes=excludes,
                    note=json.dumps(note),
                )
            finally:
                index.unlink(missing_ok=True)
        return _backup(backup_id, taken.manifest, taken.absent)

    def restore(self, backup_id: str, target: Path) -> Backup:
        """Make a directory of a backup; it must not exist, or be empty. It appears at once and whole.

        Raises:
            BackupNotFound, BackupExpired: it cannot be had.
            BackupRefused: there is something at the target.
            SnapshotError: it is damaged or cannot be read; nothing is left.
        """
        backup = self.find(backup_id)
        if backup.expires_ms - EXPIRY_MARGIN_MS <= self._clock():
            raise BackupExpired(backup_id, "take another; backup has --ttl")
        with self._serialised():
            if target.is_symlink() or (target.exists() and not target.is_dir()):
                raise BackupRefused(str(target), "it is no directory")
            was_there = target.exists()
            if was_there and any(target.iterdir()):
                raise BackupRefused(str(target), "it is not empty; choose another place")
            if was_there:
                target.rmdir()
            index = self._work / f"{uuid.uuid4()}.index"
            try:
                self._snapshots.restore(owner_of_backup(backup_id), target, index=index, strict=True)
            except BaseException:
                if was_there:
                    target.mkdir()
                raise
            finally:
                index.unlink(missing_ok=True)
        return backup

    def find(self, backup_id: str) -> Backup:
        """Return what is known of a backup.

        Raises:
            BackupNotFound: there is none of this id.
            SnapshotError: it is damaged, or the store cannot be read.
        """
        try:
            canonical = str(uuid.UUID(backup_id))
        except ValueError:
            raise BackupNotFound(backup_id[:80], "an id is a UUID; see `skylease snapshots list`") from None
        try:
            manifest = self._snapshots.newest(owner_of_backup(canonical))
        except SnapshotMissing:
            manifest = None
        if manifest is None:
            raise BackupNotFound(canonical, "see `skylease snapshots list`")
        return _backup(canonical, manifest)

    def list(self) -> list[Backup]:
        """Return all backups that can be read, the oldest first."""
        found = []
        for owner in set(self._snapshots.store.owners()):
            if is_backup(owner):
                with contextlib.suppress(BackupNotFound):  # forgotten at this moment
                    found.append(self.find(owner.partition("-")[2]))
        return sorted(found, key=lambda backup: (backup.created_ms, backup.backup_id))

    def forget(self, backup_id: str) -> Backup:
        """Let a backup go; what only it holds is removed with the next collection.

        Raises:
            BackupNotFound: there is none of this id.
        """
        backup = self.find(backup_id)
        self._snapshots.forget(owner_of_backup(backup.backup_id))
        return backup

    def verify(self, backup_id: str) -> Backup:
        """Read all of a backup and compare it with what was written.

        Raises:
            SnapshotCorrupt, SnapshotMissing: it is not whole.
        """
        backup = self.find(backup_id)
        self._snapshots.verify(owner_of_backup(backup.backup_id))
        return backup

    def sweep(self) -> int:
        """Forget what has expired; returns how many."""
        expired = [backup for backup in self.list() if backup.expires_ms <= self._clock()]
        for backup in expired:
            self._snapshots.forget(owner_of_backup(backup.backup_id))
        return len(expired)

    @contextlib.contextmanager
    def _serialised(self) -> Iterator[None]:
        with open(self._work / "backups.lock", "wb") as file:
            deadline = time.monotonic() + WAIT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise BackupRefused(str(self._work), "another one is still running") from None
                    time.sleep(WAIT_STEP_S)
            yield


def _backup(backup_id: str, manifest: Manifest, absent: tuple[str, ...] = ()) -> Backup:
    note = json.loads(manifest.note or "{}")
    return Backup(
        backup_id=backup_id,
        name=str(note.get("name", "")),
        directory=str(note.get("directory", "")),
        created_ms=manifest.created_ms,
        expires_ms=int(note.get("expires_ms", 0)),
        raw_bytes=sum(layer.raw_bytes for layer in manifest.layers),
        stored_bytes=manifest.stored_bytes,
        files=sum(layer.entries for layer in manifest.layers),
        excludes=manifest.excludes,
        skipped=manifest.skipped,
        absent=absent,
    )
