"""A job being run: feeds stdin, collects output up to a cap, ends the whole process tree, then says how it
went.

Completion follows the exit of the main process, never end-of-file on its pipes: what a child of it still
holds open is read for `DRAIN_S` and then cut.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from . import tree
from .jobs import Unit, Work, exit_code
from .loop import READ, WRITE, Loop, Timer
from .starter import Errand

DRAIN_S = 0.05  # reading on after the exit while leftovers hold the pipes
KILL_AGAIN_S = 0.002  # between two passes over a tree that is being killed
STOP_AFTER_PASSES = 3  # a tree that forks faster than we kill is stopped first
CHUNK_BYTES = 1 << 16


class Capture:
    """One output stream: the first `cap` bytes, or the last ones when it is a ring."""

    __slots__ = ("cap", "dropped", "kept", "ring")

    def __init__(self, cap: int, *, ring: bool = False) -> None:
        self.kept = bytearray()
        self.cap, self.ring, self.dropped = cap, ring, 0

    def add(self, chunk: bytes) -> None:
        """Keep what fits and count the rest."""
        if not self.ring and len(self.kept) == self.cap:  # full: gigabytes may follow
            self.dropped += len(chunk)
            return
        self.kept += chunk
        excess = len(self.kept) - self.cap
        if excess > 0:
            if self.ring:
                del self.kept[:excess]
            else:
                del self.kept[self.cap :]
            self.dropped += excess


class Task:
    """A unit at work. `done(task)` is called once, when nothing of its process tree is left.

    Args:
        strays: returns the pids of processes whose unit has ended.
    """

    def __init__(
        self,
        loop: Loop,
        unit: Unit | Errand,
        work: Work,
        stdin: bytes,
        *,
        timeout_s: float | None,
        captures: tuple[Capture, Capture],
        strays: Callable[[], list[int]],
        done: Callable[[Task], None],
        on_output: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._unit, self._stdin = loop, unit, memoryview(stdin)
        self.out, self.err = captures
        self._strays, self._on_output = strays, on_output
        self._done: Callable[[Task], None] | None = done
        self.exit_code: int | None = None
        self.timed_out = self.cancelled = False
        self._passes = 0
        self._started = time.monotonic()
        self.duration_s = 0.0
        self._timers: list[Timer] = []
        self._streams = {unit.stdout: self.out, unit.stderr: self.err}
        for fd in self._streams:
            loop.watch(fd, READ, functools.partial(self._on_readable, fd))
        unit.give(work)
        self._feed()
        if timeout_s is not None:
            self._timers.append(loop.later(timeout_s, self._expire))

    @property
    def truncated(self) -> bool:
        """Whether output was dropped."""
        return bool(self.out.dropped or self.err.dropped)

    def cancel(self) -> None:
        """End the tree; `done` is called when it is gone."""
        self.cancelled = True
        self._kill()

    def signal(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        if self.exit_code is None:
            tree.signal_all([self._unit.pid, *tree.descendants(self._unit.pid)], number)

    def exited(self, status: int, *, alone: bool = False) -> None:
        """The main process was reaped; `alone`: nothing else of its tree is left."""
        self.duration_s = time.monotonic() - self._started
        self.exit_code = exit_code(status)
        self._unit.let_go()
        ended = [self._read(fd, rounds=64) for fd in list(self._streams)]
        if alone or not self._strays():
            self._finish()
        elif all(ended) or self._passes:
            self._kill()
        else:
            self._timers.append(self._loop.later(DRAIN_S, self._kill))

    def _feed(self, _: int = 0) -> None:
        try:
            while self._stdin:
                self._stdin = self._stdin[os.write(self._unit.stdin, self._stdin[: 1 << 20]) :]
        except BlockingIOError:
            self._loop.watch(self._unit.stdin, WRITE, self._feed)
            return
        except OSError:
            pass  # the process does not read all of its stdin: its right
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._unit.stdin >= 0:
            self._loop.unwatch(self._unit.stdin)
            os.close(self._unit.stdin)
            self._unit.stdin = -1

    def _on_readable(self, fd: int, _: int) -> None:
        self._read(fd)

    def _read(self, fd: int, rounds: int = 1) -> bool:
        """Read what is there (up to `rounds` chunks); True at the stream's end."""
        capture = self._streams.get(fd)
        if capture is None:
            return True
        for _ in range(rounds):
            try:
                chunk = os.read(fd, CHUNK_BYTES)
            except BlockingIOError:
                return False
            if not chunk:
                del self._streams[fd]
                self._loop.unwatch(fd)
                return True
            capture.add(chunk)
            if self._on_output is not None:
                self._on_output()
        return False

    def _expire(self) -> None:
        if self.exit_code is None:
            self.timed_out = True
            self._kill()

    def _kill(self) -> None:
        """Kill the tree, again and again until nothing of it is left."""
        if self._done is None:
            return
        self._passes += 1
        with tree.stopped(self._passes > STOP_AFTER_PASSES):
            ended = self.exit_code is not None
            doomed = self._strays() if ended else tree.descendants(self._unit.pid)
            tree.signal_all(doomed, signal.SIGKILL)
            if not ended:
                self._unit.kill()
        if doomed or not ended:
            self._timers.append(self._loop.later(KILL_AGAIN_S * min(self._passes, 25), self._kill))
        else:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        for timer in self._timers:
            timer.cancel()
        for fd in list(self._streams):
            self._read(fd, rounds=64)
        for fd in list(self._streams):
            self._loop.unwatch(fd)
        self._streams.clear()
        self._close_stdin()
        self._unit.close()
        if done is not None:
            done(self)


def describe(task: Task) -> tuple[dict[str, Any], bytes]:
    """Return the answer of a finished command or turn."""
    head = {
        "exit_code": task.exit_code,
        "timed_out": task.timed_out,
        "cancelled": task.cancelled,
        "truncated": task.truncated,
        "duration_s": task.duration_s,
        "stdout_len": len(task.out.kept),
    }
    return head, bytes(task.out.kept + task.err.kept)
