"""The nursery: a process that forks the units, so that the runner need not.

After a fork both sides copy each page that they write to, and a runner writes to some three hundred for each
request. The nursery writes to few; and as it looks like an interpreter about to run the script, its forks
have little to do. They are no children of the runner: the nursery reaps them and tells. What descends from
them becomes the runner's when they end (see `jobs.py`), and so do they when the nursery is murdered; until
there is another, the runner forks.
"""

from __future__ import annotations

import array
import functools
import gc
import marshal
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from . import identity, jobs, tree
from .jobs import Unit, Work
from .loop import READ, Loop

BIRTH_DEADLINE_S = 1.0  # for a unit that somebody waits for; then the runner forks one itself
_MESSAGE = struct.Struct("!?ii")  # whether it was born (else it ended), pid, wait status
_ROOM_FOR_FDS = socket.CMSG_SPACE(4 * array.array("i").itemsize)
_MAX_ORDER_BYTES = 1 << 13  # the path of the script


class Nursery:
    """The process that forks units, seen from the runner.

    Args:
        loop: of the runner.
        first: what it rehearses with, see `jobs.rehearsal`.
        reaped: called with pid and wait status of a unit that has ended.
        born: called with a unit that was ordered: it has a pid now, or there will be none.
    """

    def __init__(
        self,
        loop: Loop,
        first: Work,
        reaped: Callable[[int, int], None],
        born: Callable[[Unit], None],
    ) -> None:
        self._loop, self._reaped, self._born = loop, reaped, born
        self._is_over = False
        self._ordered: list[tuple[int | None, Unit]] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.pid = os.fork()
            except OSError:
                self._socket.close()
                raise
            if self.pid == 0:
                _main(theirs.fileno(), first)
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), READ, self._on_message)

    def order(self, script: str) -> Unit:
        """Return a unit that will have a pid soon.

        Raises:
            OSError: the nursery was murdered, or takes no orders.
        """
        unit, mark = Unit(), identity.next_mark()
        try:
            tree.signal_all([self.pid], signal.SIGCONT)  # the agent may have stopped it
            socket.send_fds(self._socket, [marshal.dumps((mark, script))], unit.theirs)
        except OSError:
            unit.close()
            raise
        self._ordered.append((mark, unit))
        return unit

    def wait(self, unit: Unit) -> bool:
        """Wait until a unit has a pid; False if that takes too long."""
        ready = select.poll()
        ready.register(self._socket.fileno(), select.POLLIN)
        while not unit.pid and not unit.doomed and ready.poll(BIRTH_DEADLINE_S * 1000):
            message = self._message()
            if message is None:
                break
            if message[0]:
                self._on_birth(message[1])
            else:  # whoever waits is in the middle of something
                self._loop.later(0.0, functools.partial(self._heed, message))
        return bool(unit.pid)

    def ended(self) -> None:
        """It was reaped: hear its last words."""
        while True:
            message = self._message()
            if message is None:
                break
            self._heed(message)
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _message(self) -> tuple[bool, int, int] | None:
        try:
            raw = self._socket.recv(_MESSAGE.size)
        except BlockingIOError:
            return None  # `wait` has taken what was there
        except OSError:
            raw = b""
        self._is_over = len(raw) < _MESSAGE.size
        return None if self._is_over else _MESSAGE.unpack(raw)

    def _on_message(self, _: int) -> None:
        message = self._message()
        if message is not None:
            self._heed(message)
        elif self._is_over:
            self._loop.unwatch(self._socket.fileno())  # it is reaped soon

    def _heed(self, message: tuple[bool, int, int]) -> None:
        if message[0]:
            self._on_birth(message[1])
        else:
            self._reaped(message[1], message[2])

    def _on_birth(self, pid: int) -> None:
        mark, unit = self._ordered.pop(0)
        if pid > 0:
            unit.pid, unit.nurse = pid, self.pid
            identity.register(mark, pid)
        else:
            unit.doomed = True  # no process is to be had just now
        self._born(unit)


def _main(channel: int, first: Work) -> NoReturn:
    """Fork units until the runner ends."""
    try:
        signal.set_wakeup_fd(-1)
        jobs.default_signals()
        pipe_r, pipe_w = os.pipe()  # what a unit has there, too: so the objects over it fit
        jobs.keep_only(pipe_r, pipe_w, pipe_w, channel)
        os.setsid()
        jobs.look_like(first)
        with socket.socket(fileno=3) as runner:
            Midwife(runner).work()
    finally:
        os._exit(0)


class Midwife:
    """What the nursery does."""

    def __init__(self, runner: socket.socket) -> None:
        self._runner = runner
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)  # a handler alone may come too early
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()

    def work(self) -> None:
        """Carry out the orders of the runner, and tell it who has ended, until it ends."""
        ready = select.poll()
        ready.register(self._runner.fileno(), select.POLLIN)
        ready.register(self._wake_r, select.POLLIN)
        while True:
            for fd, _ in ready.poll():
                if fd == self._wake_r:
                    os.read(fd, 4096)
                    self._reap()
                elif not self._carry_out():
                    return

    def _carry_out(self) -> bool:
        raw, ancillary, _, _ = self._runner.recvmsg(_MAX_ORDER_BYTES, _ROOM_FOR_FDS, socket.MSG_CMSG_CLOEXEC)
        if not raw:
            return False
        mark, script = marshal.loads(raw)
        fds = array.array("i", b"".join(entry[2] for entry in ancillary)).tolist()
        jobs.load_code(script)  # so its forks have it compiled
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            jobs.live(mark, fds)
        for fd in fds:
            os.close(fd)
        self._runner.send(_MESSAGE.pack(True, pid, 0))
        return True

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._runner.send(_MESSAGE.pack(False, pid, status))
        except ChildProcessError:
            return
