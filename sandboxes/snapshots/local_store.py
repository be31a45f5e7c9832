"""A store in a directory of this node.

ROOT/blobs/ab/abcdef…   layers and manifests, by digest
ROOT/heads/OWNER.json   what an owner's snapshots are
ROOT/lock               held while a head changes
ROOT/blobs.lock         held while a blob is put in place or removed
ROOT/new/               files being written; what a crash leaves here is swept

A file is written under a temporary name and renamed: it is there whole, or not. Blobs are synced, with their
directories and all at once, before a head is written that leads to them; a head is synced before it is
renamed.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sandboxes.names import check_name
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotMissing, StoreUnavailable
from sandboxes.snapshots.manifest import check_digest
from sandboxes.snapshots.scan import sweep_old
from sandboxes.snapshots.store import MAX_KEPT, Head, Store, Stored, advanced, head_bytes, parse_head

MAX_HEAD_BYTES: Final = 64 << 10
SYNCERS: Final = 4  # threads that wait for the disk together


class LocalStore(Store):
    """See the module. Any number of processes of this node may use one directory.

    Args:
        root: the directory.
        is_copy: another store has all of it, and what a crash of the machine tears is noticed when it is
        read: nothing
            is synced.
    """

    def __init__(self, root: Path, *, is_copy: bool = False) -> None:
        self.root, self._is_copy = root.absolute(), is_copy
        self._unsynced: list[Path] = []
        self._syncing = threading.Lock()
        self._blobs, self._heads, self._new = (self.root / name for name in ("blobs", "heads", "new"))
        with self._usable():
            for directory in (self._blobs, self._heads, self._new):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, digest: str, source: Path) -> None:
        """Move the file in when it is on the same file system, else copy it."""
        target = self._path(digest)
        with self._usable():
            temporary = self._temporary()
            try:
                try:
                    os.rename(source, temporary)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    shutil.copyfile(source, temporary)
                self._install(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)

    def put_bytes(self, digest: str, content: bytes) -> None:
        """Write the bytes."""
        target, temporary = self._path(digest), self._temporary()
        with self._usable():
            try:
                temporary.write_bytes(content)
                self._install(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)

    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Look at the file."""
        with self._usable():
            try:
                return self._path(digest).stat().st_size == stored_bytes
            except FileNotFoundError:
                return False

    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Return the store's own file."""
        path = self._path(digest)
        with self._usable():
            if not path.is_file():
                raise SnapshotMissing(digest, f"it is not in {self.root}")
        return path

    def read(self, digest: str, limit: int) -> bytes:
        """Read a blob's bytes."""
        with self._usable():
            try:
                with open(self._path(digest), "rb") as file:
                    return file.read(limit + 1)
            except FileNotFoundError:
                raise SnapshotMissing(digest, f"it is not in {self.root}") from None

    def head(self, owner: str) -> Head | None:
        """Read an owner's head."""
        with self._usable():
            try:
                with open(self._head(owner), "rb") as file:
                    raw = file.read(MAX_HEAD_BYTES)
            except FileNotFoundError:
                return None
        return parse_head(owner, raw)

    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Change an owner's head under the lock."""
        with self._usable(), self._locked():
            head = advanced(owner, self.head(owner), epoch, manifest, keep)
            self._sync_blobs()
            self._write_head(owner, head)
            return head

    def keep_head(self, owner: str, head: Head) -> None:
        """Write the head that another store has, if it is not here; for copies of it."""
        with self._usable(), self._locked():
            with contextlib.suppress(SnapshotCorrupt):
                if self.head(owner) == head:
                    return
            self._write_head(owner, head)

    def forget(self, owner: str) -> None:
        """Remove an owner's head."""
        with self._usable(), self._locked():
            self._head(owner).unlink(missing_ok=True)
            self._sync(self._heads)

    def owners(self) -> Iterator[str]:
        """Yield the owners of all heads, sorted."""
        with self._usable():
            names = sorted(os.listdir(self._heads))
        yield from (name.removesuffix(".json") for name in names if name.endswith(".json"))

    def blobs(self) -> Iterator[Stored]:
        """Yield every blob."""
        with self._usable():
            for directory in sorted(os.listdir(self._blobs)):
                for entry in os.scandir(self._blobs / directory):
                    with contextlib.suppress(FileNotFoundError, SnapshotCorrupt):
                        status = entry.stat()
                        yield Stored(
                            digest=check_digest(entry.name, "of a blob"),
                            stored_bytes=status.st_size,
                            written_ms=status.st_mtime_ns // 1_000_000,
                        )

    def remove(self, digest: str, before_ms: int) -> bool:
        """Remove a blob unless it has been written since."""
        path = self._path(digest)
        with self._usable(), self._locked("blobs.lock"):
            try:
                if path.stat().st_mtime_ns // 1_000_000 >= before_ms:
                    return False
                path.unlink()
            except FileNotFoundError:
                return False
            return True

    def sweep(self, before_ms: int) -> int:
        """Remove what crashes left half written before this time; returns how many files."""
        with self._usable():
            return sweep_old(self._new, before_ms)

    def _path(self, digest: str) -> Path:
        return self._blobs / check_digest(digest, "of a blob")[:2] / digest

    def _head(self, owner: str) -> Path:
        return self._heads / f"{check_name(owner)}.json"

    def _temporary(self) -> Path:
        return self._new / secrets.token_hex(16)

    def _write_head(self, owner: str, head: Head) -> None:
        temporary = self._temporary()
        try:
            with open(temporary, "wb") as file:
                file.write(head_bytes(head))
                file.flush()
                if not self._is_copy:
                    os.fsync(file.fileno())
            os.replace(temporary, self._head(owner))
            self._sync(self._heads)
        finally:
            temporary.unlink(missing_ok=True)

    def _install(self, temporary: Path, target: Path) -> None:
        if not target.parent.exists():
            target.parent.mkdir(mode=0o700, exist_ok=True)
        with self._locked("blobs.lock"):  # or `remove` might find the old file too old, and remove this one
            os.replace(temporary, target)
        if not self._is_copy:
            self._unsynced += [target, target.parent, self._blobs]

    def _sync_blobs(self) -> None:
        """Make durable what was put: at once, since the file system then writes its journal once for all."""
        with self._syncing:  # whoever comes second waits for what the first one took over
            paths, self._unsynced = dict.fromkeys(self._unsynced), []
            if paths:
                with ThreadPoolExecutor(SYNCERS) as pool:
                    list(pool.map(self._sync, paths))

    def _sync(self, path: Path) -> None:
        if self._is_copy:
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # collected meanwhile
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _locked(self, name: str = "lock") -> Iterator[None]:
        with open(self.root / name, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # held for a few file operations only
            yield

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(str(self.root), error.strerror or str(error)) from error
