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
MAX_LOOKED_BYTES = 32 << 20  # whose digests are told in one answer
MAX_PATH_BYTES = 4095  # as in Linux
MAX_LINKS = 40  # in one path, as in Linux
_OPENAT2 = 437  # the same number on every architecture
_RESOLVE = 0x02 | 0x08  # RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH, linux/openat2.h
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
Answer = dict[str, Any]


class PathRefused(Exception):
    """The path leads outside the roots, or is no path at all."""


class Files:
    """File operations over virtual roots, such as `/workspace` (in the process tier: real ones)."""

    def __init__(self, roots: dict[str, str], max_file_bytes: int | None = None) -> None:
        self._max_file_bytes = max_file_bytes
        self._fds = {name: os.open(path, _DIRECTORY) for name, path in roots.items()}
        self._paths = dict(roots)
        self._uploads: dict[str, tuple[int, int, str, str]] = {}

    def close(self) -> None:
        """Let the roots go."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

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
            if self._max_file_bytes is not None and os.fstat(fd).st_size + len(piece) > self._max_file_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))  # as the agent's processes would be told
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

    def look(self, wanted: list[list[Any]]) -> Answer:
        """Return what each path is, links unfollowed; of a regular file of the size that goes with it also
        the digest, so that its asker knows whether it holds what it should without moving it.
        """
        left = MAX_LOOKED_BYTES
        found = []
        for path, size in wanted[:MAX_LISTED]:
            self._locate(path)
            try:
                seen = self.status(path)
                if size is not None and seen.get("kind") == "file" and seen["size"] == size <= left:
                    left -= size
                    seen["sha256"] = self._digest(path, size)
            except (OSError, PathRefused):  # a link on the way leads outside or in a circle, or is locked
                seen = {"exists": False}
            found.append(seen)
        return {"found": found}

    def _digest(self, path: str, size: int) -> str | None:
        """Return the SHA-256 of a file that has this size and is no link; None: it is not that file."""
        root, parts = self._locate(path)
        with self._parent(root, parts) as (parent, name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            sha, left = _sha256(), size + 1  # one more: it may be growing
            while left and (piece := os.read(fd, min(left, 1 << 20))):
                sha.update(piece)
                left -= len(piece)
            return sha.hexdigest() if left == 1 else None
        finally:
            os.close(fd)

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
        for depth in range(len(parts), 0, -1):  # the innermost root wins: a mount may be several deep
            root = "/" + "/".join(parts[:depth])
            if root in self._fds:
                return root, parts[depth:]
        raise PathRefused(f"{path} is under none of {', '.join(sorted(self._fds))}")

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


def _sha256() -> Any:
    """Return a new SHA-256; only who looks at files pays for loading it."""
    import hashlib

    return hashlib.sha256()


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
    if number in (errno.ENOSYS, errno.EPERM):  # an old kernel, gVisor, or a filter around us
        return _walk(root_fd, relative, flags)
    raise OSError(number, os.strerror(number), relative)


def _walk(root_fd: int, relative: str, flags: int) -> int:
    """Do in steps what openat2 does in one: each component is opened unfollowed, links are resolved here.

    No step asks for O_DIRECTORY: together with O_NOFOLLOW, gVisor follows the link all the same.
    """
    if len(os.fsencode(relative)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), relative)
    above: list[int] = []  # the directories between the root and `fd`
    fd = os.dup(root_fd)
    left = [part for part in relative.split("/") if part not in ("", ".")]
    links = 0
    try:
        while left:
            part = left.pop(0)
            if part == "..":
                if not above:
                    raise PathRefused(f"{relative} leads outside through a link")
                os.close(fd)
                fd = above.pop()
                continue
            target = _link_target(fd, part)
            if target is not None:
                links += 1
                if target.startswith("/") or links > MAX_LINKS:
                    raise PathRefused(f"{relative} leads outside through a link")
                left[:0] = [word for word in target.split("/") if word not in ("", ".")]
                continue
            inner = _step(fd, part, flags if not left else os.O_PATH | _DIRECTORY)
            above.append(fd)
            fd = inner
        if not above:  # the root itself
            inner = _step(fd, ".", flags)
            above.append(fd)
            fd = inner
        return fd
    except BaseException:
        os.close(fd)
        raise
    finally:
        for each in above:
            os.close(each)


def _link_target(fd: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _step(fd: int, name: str, flags: int) -> int:
    wants_directory = bool(flags & os.O_DIRECTORY)
    extra = os.O_NOFOLLOW | (os.O_NONBLOCK if wants_directory else 0)
    try:
        inner = os.open(name, (flags & ~os.O_DIRECTORY) | extra, dir_fd=fd)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it has become a link since we looked
            raise PathRefused(f"{name} leads outside through a link") from None
        raise
    mode = os.fstat(inner).st_mode
    if stat.S_ISLNK(mode) or (wants_directory and not stat.S_ISDIR(mode)):
        os.close(inner)
        if stat.S_ISLNK(mode):
            raise PathRefused(f"{name} leads outside through a link")
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    return inner


def _describe(status: os.stat_result) -> Answer:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((word for test, word in kinds if test(status.st_mode)), "other")
    return {
        "kind": kind,
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modified_ms": status.st_mtime_ns // 1_000_000,
    }
