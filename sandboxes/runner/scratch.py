"""The scratch directories of a sandbox, and what turns leave in them.

Every turn gets a temporary directory of its own (TMPDIR). What it puts beside it, straight into /tmp or
/dev/shm, goes too: when the last of several overlapping turns ends, all that appeared there since the first
began is removed.
"""

from __future__ import annotations

import os

from .removal import remove_entries, remove_tree


class Scratch:
    """Hands out temporary directories and cleans up behind turns.

    Args:
        directory: where temporary directories are made (`/tmp` inside a sandbox).
        swept: directories in which a turn's additions are removed; never one that others share.
    """

    def __init__(self, directory: str, swept: tuple[str, ...]) -> None:
        self.directory = directory
        self._swept = tuple(path for path in swept if os.path.isdir(path))
        self._before: dict[str, frozenset[str]] = {}
        self._turns = 0
        self._owned: set[str] = set()

    def make(self, name: str) -> str:
        """Make a temporary directory that no turn's end sweeps away; the caller removes it."""
        path = os.path.join(self.directory, name)
        os.mkdir(path, 0o700)
        self._owned.add(name)
        return path

    def remove(self, name: str) -> None:
        """Remove a temporary directory made here."""
        self._owned.discard(name)
        path = os.path.join(self.directory, name)
        try:
            os.rmdir(path)
            return
        except OSError:
            pass  # not empty: the long way
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(fd, name)
        except OSError:
            pass  # what cannot be removed dies with the sandbox
        finally:
            os.close(fd)

    def turn_begins(self) -> None:
        """Remember what is there already."""
        if self._turns == 0:
            self._before = {path: frozenset(os.listdir(path)) for path in self._swept}
        self._turns += 1

    def turn_ends(self) -> None:
        """Remove what turns have added, once none of them runs any more."""
        self._turns -= 1
        if self._turns:
            return
        for path in self._swept:
            owned = self._owned if path == self.directory else set()
            remove_entries(path, self._before.get(path, frozenset()) | owned)
