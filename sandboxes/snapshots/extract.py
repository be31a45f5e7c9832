"""Restoring a layer: every byte of it is a stranger's until it has been checked.

The layer's digest is compared before anything is read from it. Then each entry must be a file, directory,
link or pipe whose path leads into the workspace through real directories only; sizes and counts must be those
of the manifest. An archive that breaks a rule is refused whole: the caller throws the half-made directory
away.

Symbolic links may point anywhere, as those of a virtual environment do: they are data to us and are never
followed.
"""

import json
import os
import stat
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from sandboxes.runner.removal import remove_tree
from sandboxes.snapshots.archive import MAX_REMOVED_BYTES, Archive, Member
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotRefused
from sandboxes.snapshots.layer import FILES, PIECE_BYTES, REMOVED
from sandboxes.snapshots.manifest import Layer
from sandboxes.snapshots.scan import DIRECTORY, MAX_DEPTH, open_directory

MAX_WINDOW_BYTES: Final = 8 << 20  # of zstd's memory; level 1 needs 512 KiB
MAX_PATH_BYTES: Final = 32 << 10
MAX_LINK_BYTES: Final = 4_095  # Linux' PATH_MAX without the NUL
MAX_NAME_BYTES: Final = 255  # Linux' NAME_MAX


def verify_file(file: Path, layer: Layer) -> None:
    """Compare a file with the layer that it should be.

    Raises:
        SnapshotCorrupt: it is another.
    """
    digest = sha256()
    size = 0
    with open(file, "rb", buffering=0) as source:
        while piece := source.read(PIECE_BYTES):
            size += len(piece)
            if size > layer.stored_bytes:
                break
            digest.update(piece)
    if size != layer.stored_bytes or digest.hexdigest() != layer.digest:
        raise SnapshotCorrupt(layer.digest, "its bytes are not those that were written")


def apply_layer(
    file: BinaryIO,
    layer: Layer,
    target: Path,
    uid: int | None = None,
    watch: Callable[[int], None] = lambda size: None,
) -> None:
    """Apply a verified layer to a directory: remove what is gone, write what is new.

    Args:
        file: the layer's bytes.
        layer: what the manifest says of them.
        target: the directory so far.
        uid: the owner of what is written (only root can give one); None: ourselves.
        watch: called with the size of each entry that was written.

    Raises:
        SnapshotRefused: it holds what no sandbox of ours puts there.
        SnapshotCorrupt: it is no archive, or not what the manifest says.
        OSError: it cannot be written.
    """
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(file)
    root = os.open(target, DIRECTORY)
    try:
        _Application(Archive(reader, layer), root, layer, uid).apply(watch)
    except (zstandard.ZstdError, EOFError, ValueError) as error:
        raise SnapshotCorrupt(layer.digest, f"it is no archive ({error})") from None
    finally:
        os.close(root)


class _Application:
    """One layer on its way into a directory."""

    def __init__(self, archive: Archive, root: int, layer: Layer, uid: int | None) -> None:
        self._archive, self._root, self._layer, self._uid = archive, root, layer, uid
        self._at: tuple[str, int] = ("", os.dup(root))
        self._written: set[str] = set()  # regular files of this layer: what a hard link may name
        self._directories: dict[
            str, tuple[int, int]
        ] = {}  # mode and mtime_ns, set when nothing is written any more
        self._last_path = ""

    def apply(self, watch: Callable[[int], None]) -> None:
        try:
            members = self._archive.members()
            self._remove(next(members, None))
            raw_bytes = entries = 0
            for member in members:
                entries += 1
                raw_bytes += member.size
                if raw_bytes > self._layer.raw_bytes or entries > self._layer.entries:
                    raise SnapshotRefused(self._layer.digest, "more than its manifest says")
                try:
                    self._write(member)
                except FileNotFoundError:
                    raise SnapshotRefused(
                        self._layer.digest, f"{member.name[:80]!r} has no directory"
                    ) from None
                watch(member.size)
            if (raw_bytes, entries) != (self._layer.raw_bytes, self._layer.entries):
                raise SnapshotCorrupt(self._layer.digest, "less than its manifest says")
            self._finish_directories()
        finally:
            os.close(self._at[1])

    def _remove(self, member: Member | None) -> None:
        if member is None or member.name != REMOVED or member.size > MAX_REMOVED_BYTES:
            raise SnapshotCorrupt(self._layer.digest, f"it does not begin with {REMOVED}")
        content = b"".join(self._archive.content(member))
        try:
            removed = json.loads(content)
        except (ValueError, RecursionError):
            raise SnapshotCorrupt(self._layer.digest, f"{REMOVED} is no JSON") from None
        if not isinstance(removed, list) or not all(isinstance(path, str) for path in removed):
            raise SnapshotCorrupt(self._layer.digest, f"{REMOVED} is no list of paths")
        for path in sorted(removed, reverse=True):  # what is in a directory before the directory
            parent, name = self._split(path)
            try:
                remove_tree(self._enter(parent), name)
            except FileNotFoundError:
                continue  # its directory is gone already
            self._directories.pop(path, None)

    def _write(self, member: Member) -> None:
        path, parent, name = self._path(member.name)
        if path <= self._last_path:  # so nothing is written twice, and a directory comes before what is in it
            raise SnapshotRefused(self._layer.digest, f"{path[:80]!r} is not in order")
        self._last_path = path
        fd = self._enter(parent)
        if member.type == tarfile.DIRTYPE:
            self._directory(path, name, fd, member)
            return
        try:
            self._make(member, name, fd)
        except FileExistsError:  # of an earlier layer
            remove_tree(fd, name)
            self._directories.pop(path, None)
            self._make(member, name, fd)
        if member.type == tarfile.REGTYPE:
            self._written.add(path)

    def _make(self, member: Member, name: str, fd: int) -> None:
        """Make what is not a directory.

        Raises:
            FileExistsError: there is something; nothing of the member has been read.
        """
        if member.type == tarfile.REGTYPE:
            self._file(member, name, fd)
        elif member.type == tarfile.LNKTYPE:
            self._hard_link(member, name, fd)
        elif member.type == tarfile.SYMTYPE:
            if not 0 < len(os.fsencode(member.link)) <= MAX_LINK_BYTES or "\0" in member.link:
                raise SnapshotRefused(self._layer.digest, f"{name[:80]!r} is a link to nothing")
            os.symlink(member.link, name, dir_fd=fd)
            self._own(name, fd, member)
        else:
            os.mkfifo(name, 0o600, dir_fd=fd)
            self._own(name, fd, member)

    def _file(self, member: Member, name: str, fd: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=fd)
        try:
            for piece in self._archive.content(member):
                while piece:
                    piece = piece[os.write(file, piece) :]
            if self._uid is not None:
                os.fchown(file, self._uid, self._uid)
            os.fchmod(file, member.mode & 0o1777)
            os.utime(file, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(file)

    def _directory(self, path: str, name: str, fd: int, member: Member) -> None:
        try:
            is_directory = stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if not is_directory:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            is_directory = False
        if not is_directory:
            os.mkdir(name, 0o700, dir_fd=fd)
        if self._uid is not None:
            os.chown(name, self._uid, self._uid, dir_fd=fd, follow_symlinks=False)
        os.chmod(name, 0o700, dir_fd=fd)  # as long as we write into it
        self._directories[path] = (member.mode & 0o1777, member.mtime_ns)

    def _hard_link(self, member: Member, name: str, fd: int) -> None:
        source, parent, source_name = self._path(member.link)
        if source not in self._written:
            raise SnapshotRefused(
                self._layer.digest, f"{name[:80]!r} is a link to {source[:80]!r}, which is no file of it"
            )
        source_fd = self._open(parent)
        try:
            os.link(source_name, name, src_dir_fd=source_fd, dst_dir_fd=fd, follow_symlinks=False)
        finally:
            os.close(source_fd)

    def _own(self, name: str, fd: int, member: Member) -> None:
        if self._uid is not None:
            os.chown(name, self._uid, self._uid, dir_fd=fd, follow_symlinks=False)
        if member.type != tarfile.SYMTYPE:
            os.chmod(name, member.mode & 0o1777, dir_fd=fd)
        os.utime(name, ns=(member.mtime_ns, member.mtime_ns), dir_fd=fd, follow_symlinks=False)

    def _finish_directories(self) -> None:
        for path, (mode, mtime_ns) in sorted(self._directories.items(), reverse=True):
            parent, _, name = path.rpartition("/")
            fd = self._open(parent)
            try:
                os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=fd, follow_symlinks=False)
                os.chmod(name, mode, dir_fd=fd)
            finally:
                os.close(fd)

    def _path(self, name: str) -> tuple[str, str, str]:
        """Return an entry's path in the workspace, its directory and its name there."""
        prefix, slash, path = name.partition("/")
        if prefix != FILES or not slash:
            raise SnapshotRefused(self._layer.digest, f"{name[:80]!r} is not below {FILES}/")
        return (path, *self._split(path))

    def _split(self, path: str) -> tuple[str, str]:
        parts = path.split("/")
        if len(os.fsencode(path)) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH + 2:
            raise SnapshotRefused(self._layer.digest, f"a path of {len(parts)} parts")
        for part in parts:
            if part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > MAX_NAME_BYTES:
                raise SnapshotRefused(self._layer.digest, f"the path {path[:80]!r}")
        parent, _, name = path.rpartition("/")
        return parent, name

    def _enter(self, parent: str) -> int:
        """Return the directory of a path, through real directories only; the last one is kept open."""
        if parent != self._at[0]:
            fd = self._open(parent)
            os.close(self._at[1])
            self._at = (parent, fd)
        return self._at[1]

    def _open(self, parent: str) -> int:
        fd = os.dup(self._root)
        path = ""
        for part in parent.split("/") if parent else ():
            path = f"{path}/{part}" if path else part
            try:
                inner = open_directory(part, fd)
            except NotADirectoryError:
                raise SnapshotRefused(
                    self._layer.digest, f"{parent[:80]!r} leads through something else"
                ) from None
            finally:
                os.close(fd)
            self._make_writable(path, inner)
            fd = inner
        return fd

    def _make_writable(self, path: str, fd: int) -> None:
        """Remember how a directory of an earlier layer looks, and open it for our writing."""
        status = os.fstat(fd)
        if path not in self._directories:
            self._directories[path] = (stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        if status.st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
