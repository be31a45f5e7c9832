"""The file operations of the runner: every path is resolved beneath one of the sandbox's writable roots."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import struct
from typing import Any

from .removal import remove_tree

MAX_PIECE_BYTES = 4 << 20  # of a file in one frame
MAX_LISTED = 10_000  # entries in one answer
_OPENAT2 = 437  # the same number on every architecture
_RESOLVE = 0x02 | 0x08  # RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH, linux/openat2.h
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
Answer = dict[str, Any]


class PathRefused(Exception):
    """The path leads outside the roots, or is no path at all."""


class Files:
    """File operations over virtual roots, such as `/workspace` (in the process tier: real ones)."""

    def __init__(self, roots: dict[str, str]) -> None:
        self._fds = {name: os.open(path, _DIRECTORY) for name, path in roots.items()}
        self._paths = dict(roots)
        self._uploads: dict[str, tuple[int, int, str, str]] = {}

    def real_directory(self, path: str) -> str:
        """Return the real path of a directory given as a virtual one.

        Raises:
            OSError, PathRefused: there is no such directory beneath a root.
        """
        root, parts = self._locate(path)
        os.close(self._open(root, parts, _DIRECTORY))
        return os.path.join(self._paths[root], *parts)

    def read(self, path: str, offset: int, length: int) -> tuple[Answer, bytes]:
        """Return a piece of a regular file, with the file's size and mode."""
        fd = self._open(*self._locate(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(found.st_mode):
                raise PathRefused(f"{path} is not a regular file")
            piece = os.pread(fd, min(length, MAX_PIECE_BYTES), offset)
            return {"size": found.st_size, "mode": stat.S_IMODE(found.st_mode)}, piece
        finally:
            os.close(fd)

    def write(self, head: Answer, piece: bytes) -> Answer:
        """Append a piece to an upload; the last piece puts the file in its place, whole."""
        token = head.get("token") or ""
        if token not in self._uploads:
            token = self._start_upload(str(head["path"]), head.get("mode"))
        fd, parent, temporary, name = self._uploads[token]
        try:
            view = memoryview(piece)
            while view:
                view = view[os.write(fd, view) :]
            if not head.get("last"):
                return {"token": token}
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise PathRefused(f"{head['path']} is a directory")
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except (OSError, PathRefused):
            self.abandon(token)
            raise
        del self._uploads[token]
        os.close(fd)
        os.close(parent)
        return {"token": token}

    def abandon(self, token: str) -> None:
        """Forget an upload that will not be finished."""
        if token not in self._uploads:
            return
        fd, parent, temporary, _ = self._uploads.pop(token)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        os.close(fd)
        os.close(parent)

    def list_directory(self, path: str, recursive: bool) -> Answer:
        """Return the entries of a directory, sorted by path, at most `MAX_LISTED`."""
        root, parts = self._locate(path)
        top = self._open(root, parts, _DIRECTORY)
        found: list[Answer] = []
        try:
            for base, directories, names, fd in os.fwalk(".", dir_fd=top):
                directories.sort()
                for name in sorted(directories + names):
                    if len(found) == MAX_LISTED:
                        return {"entries": found, "truncated": True}
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        found.append(
                            {"path": os.path.normpath(os.path.join(base, name)), **_describe(status)}
                        )
                if not recursive:
                    break
        finally:
            os.close(top)
        found.sort(key=lambda entry: str(entry["path"]))
        return {"entries": found, "truncated": False}

    def mkdir(self, path: str) -> Answer:
        """Make a directory and its parents; it may exist."""
        root, parts = self._locate(path)
        for depth in range(1, len(parts) + 1):
            with self._parent(root, parts[:depth]) as (parent, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
        os.close(self._open(root, parts, _DIRECTORY))
        return {}

    def delete(self, path: str, recursive: bool) -> Answer:
        """Remove a file or link; a directory only when `recursive`."""
        with self._parent(*self._locate(path)) as (parent, name):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and not recursive:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            remove_tree(parent, name)
        return {}

    def rename(self, source: str, target: str) -> Answer:
        """Move a file or directory, replacing a file at the target."""
        with (
            self._parent(*self._locate(source)) as (from_fd, from_name),
            self._parent(*self._locate(target)) as (to_fd, to_name),
        ):
            os.rename(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)
        return {}

    def status(self, path: str) -> Answer:
        """Return what a path is; a link is described, not followed."""
        root, parts = self._locate(path)
        if not parts:
            return {"exists": True, **_describe(os.fstat(self._fds[root]))}
        try:
            with self._parent(root, parts) as (parent, name):
                return {"exists": True, **_describe(os.stat(name, dir_fd=parent, follow_symlinks=False))}
        except (FileNotFoundError, NotADirectoryError):
            return {"exists": False}

    def _start_upload(self, path: str, mode: object) -> str:
        with self._parent(*self._locate(path)) as (parent, name):
            if not isinstance(mode, int):
                mode = 0o644
                with contextlib.suppress(OSError):
                    mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) & 0o777
            token = secrets.token_hex(8)
            temporary = f".skylease-upload-{token}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=parent)
            os.fchmod(fd, mode & 0o777)
            self._uploads[token] = (fd, os.dup(parent), temporary, name)
        return token

    def _locate(self, path: str) -> tuple[str, list[str]]:
        """Split a virtual path into its root and the components below it.

        Raises:
            PathRefused: it climbs with `..`, holds a NUL, or is under no root.
        """
        if not isinstance(path, str) or "\0" in path:
            raise PathRefused("a path is a string without NUL")
        if not path.startswith("/"):
            path = "/workspace/" + path
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise PathRefused(f"{path} climbs with '..'")
        root = "/" + (parts[0] if parts else "")
        if root not in self._fds:
            raise PathRefused(f"{path} is under none of {', '.join(sorted(self._fds))}")
        return root, parts[1:]

    def _open(self, root: str, parts: list[str], flags: int) -> int:
        return open_beneath(self._fds[root], "/".join(parts) or ".", flags)

    @contextlib.contextmanager
    def _parent(self, root: str, parts: list[str]) -> Any:
        """Yield the open directory that holds the last component, and that component."""
        if not parts:
            raise PathRefused(f"{root} itself cannot be replaced")
        fd = self._open(root, parts[:-1], _DIRECTORY)
        try:
            yield fd, parts[-1]
        finally:
            os.close(fd)


def open_beneath(root_fd: int, relative: str, flags: int) -> int:
    """Open a path so that no link can lead out of the root.

    Raises:
        PathRefused: it would.
        OSError: it cannot be opened.
    """
    how = struct.pack("QQQ", flags, 0, _RESOLVE)
    for _ in range(8):  # EAGAIN: something was renamed meanwhile
        fd = int(_libc.syscall(_OPENAT2, root_fd, os.fsencode(relative), how, len(how)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    if number in (errno.EXDEV, errno.ELOOP):
        raise PathRefused(f"{relative} leads outside through a link")
    if number in (
        errno.ENOSYS,
        errno.EPERM,
    ):  # an old kernel, or a filter around us: refuse every link instead
        return _walk(root_fd, relative, flags)
    raise OSError(number, os.strerror(number), relative)


def _walk(root_fd: int, relative: str, flags: int) -> int:
    fd = os.dup(root_fd)
    parts = relative.split("/")
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            wanted = (flags if last else _DIRECTORY) | os.O_NOFOLLOW
            inner = os.open(part, wanted, dir_fd=fd)
            os.close(fd)
            fd = inner
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(
            f"/proc/self/fd/{root_fd}/{relative}"
        ):
            raise PathRefused(f"{relative} leads through a link") from None
        raise
    return fd


def _describe(status: os.stat_result) -> Answer:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((word for test, word in kinds if test(status.st_mode)), "other")
    return {
        "kind": kind,
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modified_ms": status.st_mtime_ns // 1_000_000,
    }
