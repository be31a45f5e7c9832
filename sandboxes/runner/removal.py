"""Removing trees that a stranger made: any depth, any permissions, any names, never through a link."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove a file, link or directory with all it holds; it may be absent.

    Directories below are moved up into the first one before they are emptied, so neither the depth of the
    tree nor the length of its paths matters (a recursive removal fails on a tree a few thousand levels deep).

    Raises:
        OSError: something could not be removed (a mount point, a file of another owner).
    """
    try:
        mode = os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent_fd)
        return
    top = _open_directory(parent_fd, name)
    fresh = (f".skylease-removal-{number}" for number in itertools.count())
    try:
        while True:
            inner = _empty(top)
            if not inner:
                break
            for directory in inner:
                _lift(top, directory, fresh)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent_fd)


def remove_entries(directory: str, keep: frozenset[str] = frozenset()) -> None:
    """Remove everything in `directory` but the entries named in `keep`; what cannot be removed stays."""
    try:
        fd = os.open(directory, _DIRECTORY)
    except OSError:
        return
    try:
        for name in os.listdir(fd):
            if name not in keep:
                with contextlib.suppress(OSError):
                    remove_tree(fd, name)
    finally:
        os.close(fd)


def _open_directory(parent_fd: int, name: str) -> int:
    os.chmod(name, 0o700, dir_fd=parent_fd)  # the stranger may have locked it
    return os.open(name, _DIRECTORY, dir_fd=parent_fd)


def _empty(directory_fd: int) -> list[str]:
    """Unlink what is not a directory and return the names of the directories."""
    inner = []
    with os.scandir(directory_fd) as entries:
        listing = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listing:
        if is_directory:
            inner.append(name)
        else:
            os.unlink(name, dir_fd=directory_fd)
    return inner


def _lift(top: int, name: str, fresh: Iterator[str]) -> None:
    """Empty `top/name` by moving its directories up into `top`, then remove it."""
    fd = _open_directory(top, name)
    try:
        for inner in _empty(fd):
            os.chmod(inner, 0o700, dir_fd=fd)
            while True:
                target = next(fresh)
                if not _exists(top, target):
                    break
            os.rename(inner, target, src_dir_fd=fd, dst_dir_fd=top)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)


def _exists(directory_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
