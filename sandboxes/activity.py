"""Whether somebody uses a sandbox, kept by the kernel; and the note by which a frozen one is thawed.

DIRECTORY/activity.lock   held shared (flock) by every request, exclusively by freeze, sleep and eviction; its
                          modification time is when the last request ended
DIRECTORY/frozen.json     exists while the sandbox is frozen, and says how to thaw it
DIRECTORY/unready         exists while somebody who keeps all others out renews what the workspace starts with

Both lie in the sandbox's own directory, which nothing inside can see: who could write the note could have us
write anywhere. A holder that crashes gives its lock back by dying. A request that has the lock and finds the
note thaws the sandbox itself; as long as it holds the lock nobody can freeze it again.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandboxes.errors import SandboxFailed, SandboxGone
from sandboxes.runner.tree import read_stat

LOCK_NAME: Final = "activity.lock"
NOTE_NAME: Final = "frozen.json"
UNREADY_NAME: Final = "unready"
LOCK_DEADLINE_S: Final = 60.0  # to get in while somebody freezes or snapshots it
LOCK_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Frost:
    """How a sandbox was frozen, which says how to thaw it: by writing files, by continuing processes, or if
    it has neither only by its tier.
    """

    tier: str
    files: tuple[tuple[str, str], ...] = ()  # (path, what to write)
    stopped: tuple[tuple[int, int], ...] = ()  # (pid, its start time in ticks)


class Activity:
    """The shared lock of one holder: taken with the first of its requests, given back with the last."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._lock, self._note = str(directory / LOCK_NAME), str(directory / NOTE_NAME)
        self._unready = str(directory / UNREADY_NAME)
        self._requests = 0
        self._fd = -1

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold the lock during a request, with the sandbox thawed.

        Raises:
            SandboxGone: there is no such sandbox, or somebody keeps it for a minute.
            SandboxFailed: it cannot be thawed.
        """
        fd = self._fd if self._requests else -1
        if fd < 0:
            fd = await self._locked()
            if self._requests:  # another request of ours was faster
                os.close(fd)
            else:
                self._fd = fd
        self._requests += 1
        try:
            if os.path.exists(self._note):
                await thaw(self._directory, self._name)
            if os.path.exists(self._unready):  # who wrote that had the lock, which we have now: it died
                raise SandboxGone(self._name, "its workspace is half renewed: acquire it again")
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                os.utime(self._fd)
                os.close(self._fd)  # with the last descriptor of it, the lock goes
                self._fd = -1

    async def _locked(self) -> int:
        deadline = time.monotonic() + LOCK_DEADLINE_S
        fd = _open_lock(self._lock, self._name)
        try:
            while not _try_lock(fd, fcntl.LOCK_SH):
                if time.monotonic() > deadline:
                    raise SandboxGone(self._name, f"it is being put to sleep for {LOCK_DEADLINE_S:g} s")
                await asyncio.sleep(LOCK_POLL_S)
        except BaseException:
            os.close(fd)
            raise
        return fd


class Alone(Activity):
    """The activity of somebody who holds the lock exclusively: see `alone`."""

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Take no lock: it is held."""
        if os.path.exists(self._note):
            await thaw(self._directory, self._name)
        yield


@contextlib.asynccontextmanager
async def alone(directory: Path, name: str, *, wait_s: float) -> AsyncIterator[Activity | None]:
    """Hold the lock exclusively and give what a `Sandbox` of the holder may use it with; None: somebody has
    used the sandbox all the time that was waited.

    Raises:
        SandboxGone: there is no such sandbox.
    """
    fd = _open_lock(str(directory / LOCK_NAME), name)
    try:
        deadline = time.monotonic() + wait_s
        while not (got := _try_lock(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            await asyncio.sleep(LOCK_POLL_S)
        yield Alone(directory, name) if got else None
    finally:
        os.close(fd)


def note_unready(directory: Path) -> None:
    """Say that a sandbox is not to be used until `forget_unready`, whoever dies before."""
    (directory / UNREADY_NAME).touch()


def forget_unready(directory: Path) -> None:
    """Say that a sandbox may be used again."""
    (directory / UNREADY_NAME).unlink(missing_ok=True)


@contextlib.contextmanager
def idle(directory: Path, name: str, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock exclusively, so that no request can run; yields False if somebody uses the sandbox."""
    fd = _open_lock(str(directory / LOCK_NAME), name)
    try:
        deadline = time.monotonic() + wait_s
        while not (got := _try_lock(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(LOCK_POLL_S)
        yield got
    finally:
        os.close(fd)


def is_used(directory: Path) -> bool:
    """Say whether a request runs now. It may end, and another begin, before the caller has done anything."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # nobody has asked for anything yet
        return False
    try:
        return not _try_lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def note_used(directory: Path, at_ms: int) -> None:
    """Say when a sandbox was last used, in epoch milliseconds: of one that is new, when it was made."""
    path = directory / LOCK_NAME
    os.close(_open_lock(str(path), directory.name))
    os.utime(path, ns=(at_ms * 1_000_000,) * 2)


def last_used_ms(directory: Path) -> int | None:
    """Return when the last request ended, epoch milliseconds; None: there was none."""
    try:
        return os.stat(directory / LOCK_NAME).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None


def is_frozen(directory: Path) -> bool:
    """Say whether a sandbox is frozen."""
    return (directory / NOTE_NAME).exists()


def note_frost(directory: Path, frost: Frost) -> None:
    """Write down how the sandbox is thawed; before it is frozen, so that no death in between strands it."""
    path = directory / NOTE_NAME
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(frost)), encoding="utf-8")
    os.replace(temporary, path)


def noted_frost(directory: Path) -> Frost | None:
    """Return how a sandbox was frozen, None if it is not."""
    try:
        noted = json.loads((directory / NOTE_NAME).read_bytes())
    except FileNotFoundError:
        return None
    return Frost(tier=noted["tier"], files=noted["files"], stopped=noted["stopped"])


async def thaw(directory: Path, name: str) -> None:
    """Let a frozen sandbox run; does nothing for one that is not frozen.

    Raises:
        SandboxFailed: it cannot be thawed, and why.
    """
    frost = noted_frost(directory)
    if frost is None:
        return
    if frost.files or frost.stopped:
        try:
            melt(frost)
        except OSError as error:
            raise SandboxFailed(name, f"it cannot be thawed: {error}") from None
        forget_frost(directory)
    else:
        from sandboxes.tiers.registry import open_tier  # only where the holder cannot do it by itself

        await open_tier(frost.tier, directory.parent).thaw(name)


def melt(frost: Frost) -> None:
    """Thaw by writing and continuing what the note says.

    Raises:
        OSError: a file cannot be written.
    """
    for path, value in frost.files:
        with contextlib.suppress(FileNotFoundError):  # the sandbox has ended
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
    for pid, start_ticks in reversed(frost.stopped):  # the runner was stopped first: it goes on last
        found = read_stat(pid)
        if found is not None and found[2] == start_ticks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def forget_frost(directory: Path) -> None:
    """Remove the note of a sandbox that runs again."""
    (directory / NOTE_NAME).unlink(missing_ok=True)


def _open_lock(path: str, name: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SandboxGone(name, f"there is no directory of it ({error.strerror})") from None


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
