"""Writing a layer: a zstd-compressed tar with what changed under `files/` and what is gone in `removed.json`.

Any tar reads it (`tar --zstd -xf LAYER --strip-components=1 files`). Headers are made by the standard
library's tarfile; contents are copied past it, which is several times faster.
"""

import errno
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import zstandard

from sandboxes.snapshots.errors import SnapshotError
from sandboxes.snapshots.manifest import Layer
from sandboxes.snapshots.scan import DIRECTORY, Entry, Index, open_directory, open_file

FILES: Final = "files"
REMOVED: Final = "removed.json"
COMPRESSION_LEVEL: Final = 1  # the fastest; 3 takes a third longer for a few per cent
PIECE_BYTES: Final = 1 << 20
_TYPES: Final = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "p": tarfile.FIFOTYPE}


class _Hashed:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = sha256()
        self.written = 0

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        self.written += len(content)
        return self._file.write(content)


def write_layer(
    file: Path,
    tree: Path,
    index: Index,
    paths: Sequence[str],
    removed: Sequence[str],
    watch: Callable[[int], None] = lambda size: None,
) -> Layer:
    """Write the layer of these paths of a tree to a file, and return what it is; `watch` is told the size of
    each file.

    Raises:
        SnapshotError: a file changed while it was read (something in the workspace was running).
        OSError: something cannot be read, or the file cannot be written.
    """
    with open(file, "wb") as target:
        hashed = _Hashed(target)
        with zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).stream_writer(
            cast(BinaryIO, hashed), closefd=False
        ) as out:
            content = json.dumps(list(removed), separators=(",", ":")).encode()
            out.write(_header(REMOVED, Entry("f", 0o600, len(content), 0, 0, 0, 1)))
            out.write(content + _padding(len(content)))
            with _Tree(tree) as source:
                raw_bytes = _write_entries(out, source, index, paths, watch)
            out.write(b"\0" * 2 * tarfile.BLOCKSIZE)
    return Layer(
        digest=hashed.hash.hexdigest(),
        stored_bytes=hashed.written,
        raw_bytes=raw_bytes,
        entries=len(paths),
    )


def _write_entries(
    out: Any, source: "_Tree", index: Index, paths: Iterable[str], watch: Callable[[int], None]
) -> int:
    raw_bytes = 0
    first_names: dict[int, str] = {}
    for path in paths:
        entry = index[path]
        if entry.links > 1:
            first = first_names.setdefault(entry.inode, path)
            if first != path:
                out.write(_header(f"{FILES}/{path}", entry, hard_link=f"{FILES}/{first}"))
                continue
        link = source.link(path) if entry.kind == "l" else ""
        out.write(_header(f"{FILES}/{path}", entry, link=link))
        if entry.kind == "f":
            source.copy(path, entry.size, out)
            out.write(_padding(entry.size))
            raw_bytes += entry.size
            watch(entry.size)
    return raw_bytes


class _Tree:
    """Opens what is in a tree by descending from its root without following links; the last directory is
    kept open.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, DIRECTORY)
        self._at: tuple[str, int] = ("", os.dup(self._root))

    def __enter__(self) -> "_Tree":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._at[1])
        os.close(self._root)

    def link(self, path: str) -> str:
        directory, name = self._parent(path)
        return os.readlink(name, dir_fd=directory)

    def copy(self, path: str, size: int, out: Any) -> None:
        directory, name = self._parent(path)
        try:
            fd = open_file(name, directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                raise SnapshotError(path, "it changed while it was being archived") from error
            raise
        with open(fd, "rb", buffering=0) as file:
            left = size
            while left:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    break
                out.write(piece)
                left -= len(piece)
            if left or file.read(1):
                raise SnapshotError(path, "it changed while it was being archived")

    def _parent(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        if parent != self._at[0]:
            fd = os.dup(self._root)
            for part in parent.split("/") if parent else ():
                inner = open_directory(part, fd)
                os.close(fd)
                fd = inner
            os.close(self._at[1])
            self._at = (parent, fd)
        return self._at[1], name


def _header(name: str, entry: Entry, *, link: str = "", hard_link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.LNKTYPE if hard_link else _TYPES[entry.kind]
    info.linkname = hard_link or link
    info.size = entry.size if info.type == tarfile.REGTYPE else 0
    info.mode = entry.mode
    seconds, nanoseconds = divmod(entry.mtime_ns, 10**9)
    info.pax_headers = {"mtime": f"{seconds}.{nanoseconds:09d}"}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
