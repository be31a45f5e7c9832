"""The files of a sandbox, over its runner: paths are relative to /workspace, or absolute under /workspace,
/data or /tmp.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandboxes.errors import (
    FileAlreadyExists,
    FileDenied,
    FileError,
    FileIsDirectory,
    FileMissing,
    FileNotDirectory,
    InvalidSpec,
    NoSpace,
    PathRefused,
    RefusedByRunner,
    SandboxError,
)
from sandboxes.runner.wire import Head

PIECE_BYTES: Final = 4 << 20
MAX_FILE_BYTES: Final = 1 << 30  # read into memory at once
LOOK_PATHS: Final = 1_000  # asked for at once: their names must fit a frame's head
LOOK_NAME_BYTES: Final = 256 << 10
LOOK_BYTES: Final = 8 << 20  # to be digested at once: the runner does nothing else meanwhile
_ERRORS: Final[dict[str, type[FileError]]] = {
    "not_found": FileMissing,
    "is_directory": FileIsDirectory,
    "not_directory": FileNotDirectory,
    "exists": FileAlreadyExists,
    "denied": FileDenied,
    "no_space": NoSpace,
    "path_refused": PathRefused,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """An entry of a directory."""

    path: str  # relative to the directory that was listed
    kind: str  # "file", "directory", "link" or "other"
    size: int  # bytes
    mode: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is at a path, a link itself and not what it leads to."""

    kind: str | None  # as of a FileInfo; None: nothing
    size: int = 0  # bytes
    mode: int = 0
    sha256: str | None = None  # of a file that has the size that was asked for


class Workspace(ABC):
    """File operations; paths are resolved inside the sandbox, and no link leads out of its directories."""

    @abstractmethod
    async def _ask(
        self, head: Head, body: bytes = b"", *, deadline_s: float = 30.0
    ) -> tuple[Head, bytes]: ...

    async def read_file(self, path: str) -> bytes:
        """Return a file's bytes, at most 1 GiB.

        Raises:
            FileMissing, FileIsDirectory, PathRefused, FileDenied: it cannot be read.
        """
        pieces: list[bytes] = []
        total = 0
        async for piece in self.stream_file(path):
            pieces.append(piece)
            total += len(piece)
            if total > MAX_FILE_BYTES:
                raise InvalidSpec("path", f"{path} has more than {MAX_FILE_BYTES} bytes")
        return b"".join(pieces)

    async def stream_file(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file of any size in pieces, none larger than 4 MiB.

        Raises:
            FileMissing, FileIsDirectory, PathRefused, FileDenied: it cannot be read.
        """
        offset = 0
        while True:
            head = {"op": "read", "path": path, "offset": offset, "length": PIECE_BYTES}
            answer, piece = await self._file(path, head)
            if piece:
                yield piece
            offset += len(piece)
            if not piece or offset >= int(answer["size"]):
                return

    async def write_file(
        self, path: str, content: bytes | AsyncIterable[bytes], *, mode: int | None = None
    ) -> None:
        """Write a file; it appears at once and whole.

        Args:
            path: its directory must exist.
            content: all of it, or pieces of it as they come.
            mode: permission bits; default those of the file it replaces, or 0o644.

        Raises:
            FileMissing, FileIsDirectory, PathRefused, FileDenied, NoSpace: it was not written.
        """
        token, waiting = "", b""
        pieces = _pieces(content) if isinstance(content, bytes) else content
        try:
            async for piece in pieces:
                for start in range(0, len(piece), PIECE_BYTES):
                    if waiting:
                        token = await self._write(path, token, waiting, mode, last=False)
                    waiting = piece[start : start + PIECE_BYTES]
            token = await self._write(path, token, waiting, mode, last=True)
        except BaseException:
            if token:
                with contextlib.suppress(SandboxError):
                    await self._ask({"op": "abandon", "token": token})
            raise

    async def _write(self, path: str, token: str, piece: bytes, mode: int | None, *, last: bool) -> str:
        head = {"op": "write", "path": path, "token": token, "last": last, "mode": mode}
        return str((await self._file(path, head, piece))[0]["token"])

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """Return what is in a directory, sorted by path; at most 10,000 entries.

        Raises:
            FileMissing, FileNotDirectory, PathRefused, FileDenied: it cannot be listed.
        """
        answer, _ = await self._file(path, {"op": "list", "path": path, "recursive": recursive})
        return [_file_info(entry) for entry in answer["entries"]]

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; it may exist."""
        await self._file(path, {"op": "mkdir", "path": path})

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or with `recursive` a directory and all it holds.

        Raises:
            FileMissing, FileIsDirectory, PathRefused, FileDenied: it was not removed.
        """
        await self._file(path, {"op": "delete", "path": path, "recursive": recursive})

    async def rename(self, path: str, target: str) -> None:
        """Move a file or directory, replacing a file at the target."""
        await self._file(path, {"op": "rename", "path": path, "target": target})

    async def exists(self, path: str) -> bool:
        """Say whether there is anything at this path; a link counts, wherever it leads."""
        return bool((await self._file(path, {"op": "status", "path": path}))[0]["exists"])

    async def look(self, paths: Mapping[str, int | None]) -> dict[str, Seen]:
        """Return what is at each of these paths, in as few requests as can be.

        Args:
            paths: with the size in bytes that a file there should have, for its digest; None: no digest.

        Raises:
            PathRefused: one leads out of the sandbox's directories.
        """
        found: dict[str, Seen] = {}
        for batch in _batches(paths):
            head: Head = {"op": "look", "paths": [[path, paths[path]] for path in batch]}
            answer, _ = await self._file(batch[0], head)
            found.update(zip(batch, map(_seen, answer["found"]), strict=True))
        return found

    async def _file(self, path: str, head: Head, body: bytes = b"") -> tuple[Head, bytes]:
        try:
            return await self._ask(head, body)
        except RefusedByRunner as refused:
            kind = _ERRORS.get(refused.code)
            if kind is None:
                raise
            raise kind(path, refused.reason) from None


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _file_info(entry: dict[str, Any]) -> FileInfo:
    return FileInfo(
        path=str(entry["path"]),
        kind=str(entry["kind"]),
        size=int(entry["size"]),
        mode=int(entry["mode"]),
        modified_ms=int(entry["modified_ms"]),
    )


def _batches(paths: Mapping[str, int | None]) -> Iterator[list[str]]:
    batch: list[str] = []
    names = sizes = 0
    for path, size in paths.items():
        names, sizes = names + len(path.encode()) + 16, sizes + (size or 0)
        if batch and (len(batch) == LOOK_PATHS or names > LOOK_NAME_BYTES or sizes > LOOK_BYTES):
            yield batch
            batch, names, sizes = [], len(path.encode()) + 16, size or 0
        batch.append(path)
    if batch:
        yield batch


def _seen(told: dict[str, Any]) -> Seen:
    if not told["exists"]:
        return Seen(kind=None)
    digest = told.get("sha256")
    return Seen(
        kind=str(told["kind"]),
        size=int(told["size"]),
        mode=int(told["mode"]),
        sha256=None if digest is None else str(digest),
    )
