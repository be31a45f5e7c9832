"""Host uids for sandboxes, when we are root: each living sandbox of this machine has one that nobody else
uses.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sandboxes.tiers.pids import read_proc

FIRST_UID: Final = 20_000
UID_COUNT: Final = 30_000  # up to 49,999: below /etc/subuid's usual 100,000 and systemd's dynamic users
CLAIMS: Final = Path(
    "/run/skylease/uids"
)  # one small file per uid in use, shared by all roots of the machine


class NoFreeUid(Exception):
    """All uids of the range are taken."""


class Uids:
    """Hands out uids of a range; a claim is a file that names the sandbox's directory."""

    def __init__(
        self,
        claims: Path = CLAIMS,
        *,
        first: int = FIRST_UID,
        count: int = UID_COUNT,
        in_use: Callable[[int], bool] | None = None,
    ) -> None:
        self._claims, self._first, self._count = claims, first, count
        self._in_use = in_use or is_used_otherwise

    def claim(self, directory: Path) -> int:
        """Return a uid for the sandbox that lives in `directory`; the same again if it has one.

        Raises:
            NoFreeUid: there is none left.
        """
        owner = os.fsencode(directory)
        start = int.from_bytes(hashlib.sha256(owner).digest()[:4]) % self._count
        with self._locked():
            for step in range(self._count):
                uid = self._first + (start + step) % self._count
                if self._take(uid, owner):
                    return uid
        raise NoFreeUid(f"all {self._count} uids from {self._first} on are in use")

    def release(self, uid: int, directory: Path) -> None:
        """Give a uid back, if it is the sandbox's."""
        path = self._claims / str(uid)
        with self._locked():
            if _holder(path) == os.fsencode(directory):
                path.unlink(missing_ok=True)

    def move(self, uid: int, before: Path, after: Path) -> None:
        """Have a uid belong to the directory that its sandbox's directory was renamed to."""
        path = self._claims / str(uid)
        with self._locked():
            if _holder(path) == os.fsencode(before):
                path.write_bytes(os.fsencode(after))

    def _take(self, uid: int, owner: bytes) -> bool:
        path = self._claims / str(uid)
        holder = _holder(path)
        if holder is not None and holder != owner and os.path.isdir(holder):
            return False
        if holder != owner and self._in_use(uid):
            return False
        path.write_bytes(owner)
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._claims.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._claims / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # held for a few file operations only
            yield
        finally:
            os.close(fd)


def is_used_otherwise(uid: int) -> bool:
    """Whether the uid belongs to an account, or a process runs with it."""
    try:
        pwd.getpwuid(uid)
        return True
    except KeyError:
        return bool(processes_of(uid))


def processes_of(uid: int) -> list[int]:
    """Return the pids of all processes, zombies left out, whose real uid this is."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            status = read_proc(int(name), "status")
            if int(status.partition(b"\nUid:")[2].split(None, 1)[0]) == uid and b"\nState:\tZ" not in status:
                found.append(int(name))
        except (OSError, IndexError, ValueError):  # it has ended
            continue
    return found


def _holder(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def give_tree(top: Path, uid: int) -> None:
    """Make `uid` the owner of a directory and all in it; links are not followed."""
    if os.stat(top, follow_symlinks=False).st_uid == uid:
        return
    for _, directories, names, fd in os.fwalk(top):
        os.fchown(fd, uid, uid)
        for name in directories + names:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_nlink == 1 or stat.S_ISDIR(
                found.st_mode
            ):  # a hard link may belong to somebody else as well
                os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
