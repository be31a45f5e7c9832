"""Processes by their number: whether they run, killing them, stopping many for good or for a while."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from sandboxes import activity
from sandboxes.activity import Frost
from sandboxes.runner.tree import read_stat

STOP_DEADLINE_S: Final = 2.0  # for a tree to take SIGSTOP


def kill_process(pid: int) -> None:
    """Send SIGKILL to a process, and reap it should it be our child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def stop_tree(find: Callable[[], list[int]]) -> tuple[tuple[int, int], ...]:
    """Stop processes until `find` returns none that runs; return (pid, start time) of each that we stopped.

    Those that had been stopped before are not ours to continue.

    Raises:
        OSError: they multiply faster than they can be stopped; all run on.
    """
    stopped: dict[tuple[int, int], None] = {}
    deadline = time.monotonic() + STOP_DEADLINE_S
    while True:
        seen = [(pid, found[2], found[1]) for pid in find() if (found := read_stat(pid))]
        # D: a parent whose vforked child was stopped before its exec; its own stop comes right after
        running = [
            (pid, start_ticks)
            for pid, start_ticks, state in seen
            if state not in "TtZX" and not (state == "D" and (pid, start_ticks) in stopped)
        ]
        fresh = [process for process in running if process not in stopped]
        if not running:
            return tuple(stopped)
        for pid, start_ticks in fresh:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped[(pid, start_ticks)] = None
        if time.monotonic() > deadline:
            activity.melt(Frost(tier="", stopped=tuple(stopped)))
            raise OSError("its processes do not stop")
        if not fresh:
            time.sleep(0.0005)


def read_proc(pid: int, name: str) -> bytes:
    """Return what /proc has of a process in a file; by plain calls: it is asked of every process there is.

    Raises:
        OSError: there is no such process (any more).
    """
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    found = read_stat(pid)
    return found is not None and found[1] not in "ZX"
