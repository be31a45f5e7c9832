"""What is in a workspace, and what has changed since the last look.

A change is seen by size, modification time, status-change time and inode: the last two cannot be set from
inside, so nobody hides one. What changed so shortly before a scan that the file system's clock may not tell a
later change from it counts as changed once more (as git does with its index).
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from sandboxes.errors import InvalidSpec
from sandboxes.runner.removal import remove_tree
from sandboxes.snapshots.errors import SnapshotRefused

MAX_ENTRIES: Final = 2_000_000
MAX_DEPTH: Final = 256  # directories within each other
CLOCK_TICK_NS: Final = 20_000_000  # file systems stamp with the kernel's tick, 1-10 ms; twice that
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
INDEX_VERSION: Final = 1
_KINDS: Final = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}


class Entry(NamedTuple):
    """One file, directory, link or pipe. `kind` is f, d, l or p; times are nanoseconds."""

    kind: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int


Index = dict[str, Entry]  # by path relative to the workspace; bytes that are no UTF-8 are surrogate-escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What is in a tree: `skipped` is what cannot be archived (sockets, devices, mounts), `absent` what was
    to be left out and is not there.
    """

    index: Index
    skipped: tuple[str, ...]
    at_ns: int
    absent: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What the files hold in all."""
        return sum(entry.size for entry in self.index.values())


def scan(tree: Path, excludes: Sequence[str] = ()) -> Scan:
    """Return what is in a tree; no link is followed.

    Args:
        tree: the workspace; nothing in it should be running.
        excludes: paths relative to it that are left out, with all below them.

    Raises:
        InvalidSpec: an excluded path is not one within the tree.
        SnapshotRefused: the tree is deeper or larger than any that is archived.
        OSError: it cannot be read.
    """
    at_ns = time.time_ns()
    left_out = {_within(path) for path in excludes}
    index: Index = {}
    skipped: list[str] = []
    seen: set[str] = set()
    fd = os.open(tree, DIRECTORY)
    try:
        device = os.fstat(fd).st_dev
        _walk(fd, "", device, left_out, seen, index, skipped, 0)
    finally:
        os.close(fd)
    absent = tuple(sorted(left_out - seen))
    return Scan(index=index, skipped=tuple(sorted(skipped)), at_ns=at_ns, absent=absent)


def _walk(
    fd: int,
    prefix: str,
    device: int,
    left_out: set[str],
    seen: set[str],
    index: Index,
    skipped: list[str],
    depth: int,
) -> None:
    if depth > MAX_DEPTH:
        raise SnapshotRefused(prefix[:80], f"directories are more than {MAX_DEPTH} deep")
    with os.scandir(fd) as listing:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in listing]
    for name, status in found:
        path = prefix + name
        if path in left_out:
            seen.add(path)
            continue
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None or status.st_dev != device:
            skipped.append(path)
            continue
        index[path] = Entry(
            kind,
            stat.S_IMODE(status.st_mode) & 0o1777,  # set-id bits mean nothing inside, and harm outside
            status.st_size if kind == "f" else 0,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            status.st_nlink if kind == "f" else 1,
        )
        if len(index) > MAX_ENTRIES:
            raise SnapshotRefused(prefix[:80], f"more than {MAX_ENTRIES} files")
        if kind == "d":
            inner = open_directory(name, fd)
            try:
                _walk(inner, path + "/", device, left_out, seen, index, skipped, depth + 1)
            finally:
                os.close(inner)


def open_directory(name: str, parent_fd: int) -> int:
    """Open a directory that its owner may have locked; when we are that owner, its mode is put back
    afterwards.
    """
    try:
        return os.open(name, DIRECTORY, dir_fd=parent_fd)
    except PermissionError:
        return _unlocked(name, parent_fd, 0o500, DIRECTORY)


def open_file(name: str, parent_fd: int) -> int:
    """Open a regular file for reading, whatever its mode; a pipe put there meanwhile does not block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    except PermissionError:
        return _unlocked(name, parent_fd, 0o400, flags)


def _unlocked(name: str, parent_fd: int, bits: int, flags: int) -> int:
    status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    os.chmod(name, mode | bits, dir_fd=parent_fd)
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    finally:
        os.chmod(name, mode, dir_fd=parent_fd)


def changed(now: Scan, before: Mapping[str, Entry], before_at_ns: int) -> tuple[list[str], list[str]]:
    """Return (what is new or changed, what is gone) since an index scanned at a time, each sorted."""
    edge = before_at_ns - CLOCK_TICK_NS
    new = [path for path, entry in now.index.items() if before.get(path) != entry or entry.ctime_ns >= edge]
    return sorted(new), sorted(before.keys() - now.index.keys())


def save_index(file: Path, manifest: str, scanned: Scan) -> None:
    """Write the index of a snapshot beside the workspace; losing it costs a full snapshot, nothing else."""
    content = {
        "version": INDEX_VERSION,
        "manifest": manifest,
        "at_ns": scanned.at_ns,
        "skipped": scanned.skipped,
        "entries": scanned.index,
    }
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
    os.replace(temporary, file)


def load_index(file: Path, manifest: str) -> Scan | None:
    """Return the index of this snapshot; None: there is none that can be used."""
    try:
        content = json.loads(file.read_bytes())
        if content["version"] != INDEX_VERSION or content["manifest"] != manifest:
            return None
        return Scan(
            index={path: Entry(*entry) for path, entry in content["entries"].items()},
            skipped=tuple(content["skipped"]),
            at_ns=int(content["at_ns"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sweep_old(directory: Path, before_ms: int) -> int:
    """Remove what a crash left in a directory of work in progress before this time; returns how much."""
    fd = os.open(directory, DIRECTORY)
    try:
        swept = 0
        for name in os.listdir(fd):
            with contextlib.suppress(FileNotFoundError):  # finished at this moment
                if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime_ns // 1_000_000 < before_ms:
                    remove_tree(fd, name)
                    swept += 1
        return swept
    finally:
        os.close(fd)


def _within(path: str) -> str:
    parts = path.strip("/").split("/")
    if path.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InvalidSpec("excludes", f"{path!r} is not a path within the workspace")
    return "/".join(parts)
