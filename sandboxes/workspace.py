"""The files of a sandbox, over its runner: paths are relative to /workspace, or absolute under /workspace,
/data or /tmp.
"""

from abc import ABC, abstractmethod
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
)
from sandboxes.runner.wire import Head

PIECE_BYTES: Final = 4 << 20
MAX_FILE_BYTES: Final = 1 << 30  # read into memory at once
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
        offset = 0
        while True:
            head = {"op": "read", "path": path, "offset": offset, "length": PIECE_BYTES}
            answer, piece = await self._file(path, head)
            pieces.append(piece)
            offset += len(piece)
            size = int(answer["size"])
            if size > MAX_FILE_BYTES:
                raise InvalidSpec("path", f"{path} has {size} bytes, more than {MAX_FILE_BYTES}")
            if not piece or offset >= size:
                return b"".join(pieces)

    async def write_file(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a file; it appears at once and whole.

        Args:
            path: its directory must exist.
            content: all of it.
            mode: permission bits; default those of the file it replaces, or 0o644.

        Raises:
            FileMissing, FileIsDirectory, PathRefused, FileDenied, NoSpace: it was not written.
        """
        token = ""
        for start in range(0, max(1, len(content)), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            last = start + PIECE_BYTES >= len(content)
            head = {"op": "write", "path": path, "token": token, "last": last, "mode": mode}
            token = str((await self._file(path, head, piece))[0]["token"])

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

    async def _file(self, path: str, head: Head, body: bytes = b"") -> tuple[Head, bytes]:
        try:
            return await self._ask(head, body)
        except RefusedByRunner as refused:
            kind = _ERRORS.get(refused.code)
            if kind is None:
                raise
            raise kind(path, refused.reason) from None


def _file_info(entry: dict[str, Any]) -> FileInfo:
    return FileInfo(
        path=str(entry["path"]),
        kind=str(entry["kind"]),
        size=int(entry["size"]),
        mode=int(entry["mode"]),
        modified_ms=int(entry["modified_ms"]),
    )
