"""Reading what the host has for a workspace: beneath a directory that the operator has named, links
unfollowed.

All is held in memory while it travels, so that what was hashed is what is written; hence the limits.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sandboxes.errors import InvalidSpec
from sandboxes.furnishing.entries import MAX_DEPTH, MAX_NAME_BYTES, MAX_PATH_BYTES, WHOLE, Source

MAX_FILES: Final = 5_000  # files and directories that one workspace gets from the host
MAX_FILE_BYTES: Final = 16 << 20  # one of them
MAX_TOTAL_BYTES: Final = 64 << 20  # all of them
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What should be at a path: a file with this content, or a directory when `content` is None."""

    content: bytes | None = field(default=None, repr=False)
    executable: bool = False

    @property
    def mode(self) -> int:
        """Permission bits inside."""
        return 0o755 if self.executable else 0o644

    @property
    def sha256(self) -> str | None:
        """The digest of the content; None of a directory."""
        return None if self.content is None else sha256(self.content).hexdigest()


Tree = dict[str, Wanted]  # by path in /workspace
DIRECTORY: Final = Wanted()


class HostFiles:
    """Reads sources, and counts what one workspace gets in all. `skipped` are links and special files."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self._files = self._bytes = 0

    def read(self, source: Source, path: str) -> Tree:
        """Return what a source comes to at a path in /workspace ("." is /workspace itself).

        Raises:
            InvalidSpec: it is not there, is or lies behind a link, is larger than may be, or cannot be read.
        """
        tree: Tree = {}
        try:
            with self._opened(source) as fd:
                self._take(fd, path, str(source), tree, 0)
        except OSError as error:
            raise InvalidSpec("source", f"{source} cannot be read ({error.strerror})") from None
        return tree

    def exists(self, source: Source) -> bool:
        """Say whether there is anything at a source, a link included.

        Raises:
            InvalidSpec: the directory it should be in cannot be looked at.
        """
        parent, _, name = source.path.rpartition("/")
        try:
            with self._opened(Source(base=source.base, path=parent or WHOLE)) as fd:
                os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise InvalidSpec("source", f"{source} cannot be read ({error.strerror})") from None
        return True

    def is_link(self, source: Source) -> bool:
        """Say whether a source that exists is a link."""
        return os.path.islink(source.base / source.path)

    @contextmanager
    def _opened(self, source: Source) -> Iterator[int]:
        fd = os.open(source.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            parts = [] if source.path == WHOLE else source.path.split("/")
            for depth, part in enumerate(parts, 1):
                inner = os.open(part, _DIRECTORY if depth < len(parts) else _FILE, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def _take(self, fd: int, path: str, shown: str, tree: Tree, depth: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            tree[path] = self._file(fd, bool(mode & 0o100), shown)
        elif stat.S_ISDIR(mode):
            if path != WHOLE:
                self._count(0, shown)
                tree[path] = DIRECTORY
            self._directory(fd, "" if path == WHOLE else f"{path}/", shown, tree, depth)
        else:
            raise InvalidSpec("source", f"{shown} is neither a file nor a directory")

    def _directory(self, fd: int, prefix: str, shown: str, tree: Tree, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InvalidSpec("source", f"directories in {shown} are more than {MAX_DEPTH} deep")
        for name in sorted(os.listdir(fd)):
            inside, outside = prefix + name, f"{shown}/{name}"
            kind = stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR):
                self.skipped.append(outside)
                continue
            if not _is_name(inside, name):
                raise InvalidSpec("source", f"{outside!r} has a name that is too long, or no Unicode text")
            inner = os.open(name, _DIRECTORY if kind == stat.S_IFDIR else _FILE, dir_fd=fd)
            try:
                self._take(inner, inside, outside, tree, depth + 1)
            finally:
                os.close(inner)

    def _file(self, fd: int, executable: bool, shown: str) -> Wanted:
        size = os.fstat(fd).st_size
        if size > MAX_FILE_BYTES:
            raise InvalidSpec("source", f"{shown} has {size} bytes, more than {MAX_FILE_BYTES}")
        with open(os.dup(fd), "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InvalidSpec("source", f"{shown} grows while it is read")
        self._count(len(content), shown)
        return Wanted(content=content, executable=executable)

    def _count(self, size: int, shown: str) -> None:
        self._files, self._bytes = self._files + 1, self._bytes + size
        if self._files > MAX_FILES:
            raise InvalidSpec("source", f"with {shown} it is more than {MAX_FILES} files")
        if self._bytes > MAX_TOTAL_BYTES:
            raise InvalidSpec("source", f"with {shown} it is more than {MAX_TOTAL_BYTES} bytes")


def hash_of(tree: Mapping[str, Wanted]) -> str:
    """Return the SHA-256 of a tree: paths, exec bits and contents, in the order of the paths; "" of an empty
    one.
    """
    if not tree:
        return ""
    sha = sha256()
    for path in sorted(tree):
        wanted = tree[path]
        kind = "d" if wanted.content is None else "x" if wanted.executable else "f"
        sha.update(f"{kind}{path}\0{wanted.sha256 or ''}\0".encode())
    return sha.hexdigest()


def _is_name(path: str, name: str) -> bool:
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return False
    return len(raw) <= MAX_PATH_BYTES and len(name.encode()) <= MAX_NAME_BYTES
