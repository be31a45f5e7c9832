"""Holds a sandbox to its memory from inside, where the kernel around it cannot: in gVisor.

To the node a gVisor sandbox is one process, so the node's limit ends it as a whole. Here the largest process
is ended before that, as a kernel's out-of-memory killer does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from .loop import Loop

LOOK_S = 0.025  # gVisor hands out below 1 GB/s under ptrace; the node's limit leaves over 100 MiB beyond ours
GRACE_S = 2.0  # for what was ended to give its memory back, unless more is taken meanwhile
WORTH_BYTES = 4 << 20  # to end something smaller would gain nothing


class Guard:
    """Looks at the memory in use while anything runs.

    Args:
        loop: of the runner.
        limit_bytes: of all processes, /tmp and /dev/shm together.
        candidates: returns the pids that may be ended; empty: nothing runs.
    """

    def __init__(self, loop: Loop, limit_bytes: int, candidates: Callable[[], list[int]]) -> None:
        self._loop, self._limit, self._candidates = loop, limit_bytes, candidates
        self._watching = False
        self._ended_at, self._ended_when = 0, 0.0  # memory in use when a process was last ended, and the time

    def wake(self) -> None:
        """Look from now on, until nothing runs any more."""
        if not self._watching:
            self._watching = True
            self._loop.later(LOOK_S, self._look)

    def _look(self) -> None:
        candidates = self._candidates()
        used = used_bytes()
        if used <= self._limit:
            self._ended_at = 0
        elif used > self._ended_at + WORTH_BYTES or time.monotonic() - self._ended_when > GRACE_S:
            doomed = largest(candidates)
            if doomed is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(doomed, signal.SIGKILL)
                self._ended_at, self._ended_when = used, time.monotonic()
        if candidates:
            self._loop.later(LOOK_S, self._look)
        else:
            self._watching = False


def used_bytes(path: str = "/proc/meminfo") -> int:
    """Return how much of the sandbox's memory is in use."""
    with open(path, "rb") as file:
        lines = (line.split() for line in file)
        found = {line[0]: int(line[1]) << 10 for line in lines if len(line) > 1 and line[1].isdigit()}
    return found[b"MemTotal:"] - found[b"MemFree:"]


def largest(pids: list[int]) -> int | None:
    """Return the process that has most memory; None if none is worth ending."""
    best, most = None, WORTH_BYTES
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
        if resident > most:
            best, most = pid, resident
    return best
