"""A job being run: feeds stdin, collects output up to a cap, ends the whole process tree, then says how it went.

Completion follows the exit of the main process, never end-of-file on its pipes: what a child of it still holds open is
read for `DRAIN_S` and then cut.
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

DRAIN_S = 0.05  # reading on after the exit while leftovers hold the pipes
KILL_AGAIN_S = 0.002  # between two passes over a tree that is being killed
FREEZE_AFTER_PASSES = 3  # a tree that forks faster than we kill is stopped first
CHUNK_BYTES = 1 << 16


class Capture:
    """One output stream: the first `cap` bytes, or the last ones when it is a ring."""

    __slots__ = ("cap", "dropped", "kept", "ring")

    def __init__(self, cap: int, *, ring: bool = False) -> None:
        self.kept = bytearray()
        self.cap, self.ring, self.dropped = cap, ring, 0

    def add(self, chunk: bytes) -> None:
        """Keep what fits and count the rest."""
        self.kept += chunk
        excess = len(self.kept) - self.cap
        if excess > 0:
            if self.ring:
                del self.kept[:excess]
            else:
                del self.kept[self.cap :]
            self.dropped += excess


class Task:
    """A unit at work. `done(task)` is called once, when nothing of its process tree is left."""

    def __init__(
        self,
        loop: Loop,
        unit: Unit,
        work: Work,
        stdin: bytes,
        *,
        timeout_s: float | None,
        captures: tuple[Capture, Capture],
        done: Callable[[Task], None],
        on_output: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._unit, self._stdin = loop, unit, memoryview(stdin)
        self.out, self.err = captures
        self._done: Callable[[Task], None] | None = done
        self._on_output = on_output
        self.exit_code: int | None = None
        self.timed_out = self.cancelled = False
        self._passes = 0
        self._started = time.monotonic()
        self.duration_s = 0.0
        self._timers: list[Timer] = []
        self._streams = {unit.stdout: self.out, unit.stderr: self.err}
        for fd in self._streams:
            loop.watch(fd, READ, functools.partial(self._on_readable, fd))
        loop.watch(unit.control.fileno(), READ, self._on_report)
        try:
            unit.give(work)
        except OSError:
            self._loop.later(0, self._kill)  # main was murdered before it began
        self._feed()
        if timeout_s is not None:
            self._timers.append(loop.later(timeout_s, self._expire))

    @property
    def pid(self) -> int:
        """The warden's pid."""
        return self._unit.pid

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
        tree.signal_all(tree.descendants(self._unit.pid), number)

    def warden_exited(self, status: int) -> None:
        """The loop reaped our warden: its tree is gone, or the warden was murdered and its children are orphans."""
        if self._done is None:
            return
        self._on_report(READ)
        if self._done is None:
            return
        if self.exit_code is None:
            self.exit_code = exit_code(status) or 128 + signal.SIGKILL
        self._finish()

    def _feed(self, _: int = 0) -> None:
        unit = self._unit
        if unit.stdin < 0:
            return
        try:
            while self._stdin:
                self._stdin = self._stdin[os.write(unit.stdin, self._stdin[: 1 << 20]) :]
        except BlockingIOError:
            self._loop.watch(unit.stdin, WRITE, self._feed)
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
            except OSError:
                chunk = b""
            if not chunk:
                del self._streams[fd]
                self._loop.unwatch(fd)
                return True
            capture.add(chunk)
            if self._on_output is not None:
                self._on_output()
        return False

    def _on_report(self, _: int) -> None:
        control = self._unit.control
        if control.fileno() < 0 or self.exit_code is not None:
            return
        report = self._unit.report()
        self._loop.unwatch(control.fileno())
        if report is None:
            return  # warden_exited follows
        self.duration_s = time.monotonic() - self._started
        self.exit_code, alone = report
        ended = [self._read(fd, rounds=64) for fd in list(self._streams)]
        if alone:
            self._finish()
        elif all(ended):
            self._kill()
        else:
            self._timers.append(self._loop.later(DRAIN_S, self._kill))

    def _expire(self) -> None:
        if self.exit_code is None:
            self.timed_out = True
            self._kill()

    def _kill(self) -> None:
        """Kill the tree, again and again until the warden has nothing left to wait for."""
        if self._done is None:
            return
        self._passes += 1
        tree.kill_descendants(self._unit.pid, freeze=self._passes > FREEZE_AFTER_PASSES)
        self._timers.append(self._loop.later(KILL_AGAIN_S * min(self._passes, 25), self._kill))

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
        self._loop.unwatch(self._unit.control.fileno())
        self._unit.close()
        self.duration_s = self.duration_s or time.monotonic() - self._started
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
