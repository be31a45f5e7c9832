"""Who is a guest in a sandbox, kept by the kernel: a guest that crashes has left.

DIRECTORY/guests.lock  held shared (flock) by every guest, exclusively by who puts the sandbox away
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from sandboxes.errors import SandboxBusy, SandboxGone

GUESTS_NAME: Final = "guests.lock"
POLL_S: Final = 0.005


@contextmanager
def stay(directory: Path, name: str) -> Iterator[None]:
    """Be a guest in a sandbox: it is not put away meanwhile.

    Raises:
        SandboxGone: there is no such sandbox, or it is being put away.
    """
    fd = _open(directory, name)
    try:
        if not _try_flock(fd, fcntl.LOCK_SH):
            raise SandboxGone(name, "it is being put away")
        yield
    finally:
        os.close(fd)


@asynccontextmanager
async def alone(directory: Path, name: str, wait_s: float) -> AsyncIterator[None]:
    """Wait for the guests of a sandbox to leave, and let none in.

    Raises:
        SandboxBusy: one did not leave in time.
        SandboxGone: there is no such sandbox.
    """
    fd = _open(directory, name)
    deadline = time.monotonic() + wait_s
    try:
        while not _try_flock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise SandboxBusy(name, "others share it, and have not left")
            await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(fd)


def _open(directory: Path, name: str) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(directory / GUESTS_NAME, flags, 0o600)
    except OSError as error:
        raise SandboxGone(name, f"there is no directory of it ({error.strerror})") from None


def _try_flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
