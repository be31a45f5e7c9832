"""A small event loop: descriptors, timers and dead children. One thread, so it can fork at any time."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """A call that will be made once, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not make the call; harmless when it was made already."""
        self.call = None


class Loop:
    """Calls back when a descriptor is ready, a time has come or a child has ended."""

    def __init__(self, on_child: Callable[[int, int], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._on_child = on_child
        self._stopping = False
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.watch(wake_r, READ, lambda _: self._drain(wake_r))

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` whenever `fd` is ready; replaces an earlier watch of it."""
        try:
            self._selector.modify(fd, events, call)
        except KeyError:
            self._selector.register(fd, events, call)

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless when nothing watches."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Make a call after so many seconds."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def stop(self) -> None:
        """Let `run` return after the calls that are due now."""
        self._stopping = True

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopping:
            for key, events in self._selector.select(self._patience()):
                key.data(events)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                call = heapq.heappop(self._timers)[2].call
                if call is not None:
                    call()

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _drain(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fd, 4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_child(pid, status)
