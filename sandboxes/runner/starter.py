"""Starters: processes that start one command after another, so that no command waits for a fork.

To fork an interpreter copies its page tables, and afterwards each first write on either side copies a page:
milliseconds. A starter makes the command by `posix_spawn`, which copies nothing. It is a child subreaper: if
it has no child after a command, nothing of that command is left, and it can start another. Else it ends,
which hands what is left to the runner (see `jobs.py`), and another takes its place.

The agent's processes can kill or stop a starter, like all that has their uid, but not trace it. To kill the
one that has started them ends their command; any other is replaced.
"""

from __future__ import annotations

import array
import errno
import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from . import identity, jobs, tree
from .jobs import Work
from .loop import READ, Loop

NAME = b"skylease"  # or an agent's `pkill python` would end what starts its commands
MAX_ORDER_BYTES = 1 << 16  # less than a socket's buffer holds; a longer command gets a unit of its own
_REPORT = struct.Struct("!i?")  # wait status, whether nothing of the command is left
_ROOM_FOR_FDS = socket.CMSG_SPACE(3 * array.array("i").itemsize)
Ended = Callable[[int, bool], None]


class Starter:
    """A process that starts commands, seen from the runner.

    Args:
        loop: of the runner.
        limits: name -> value of the resource limits of every command.
        on_idle: called with the starter when it can take another command.
    """

    def __init__(self, loop: Loop, limits: dict[str, int], on_idle: Callable[[Starter], None]) -> None:
        self._loop, self._on_idle = loop, on_idle
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errand: Errand | None = None
        self._told: tuple[int, bool] | None = None
        self._unheard = False
        self._mark = identity.next_mark()
        with theirs:
            try:
                self.pid = os.fork()
            except OSError:
                self._socket.close()
                raise
            if self.pid == 0:
                _main(theirs.fileno(), self._mark, limits)
        identity.register(self._mark, self.pid)
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), READ, self._on_report)

    def take(self, order: bytes, ended: Ended) -> Errand:
        """Return the command that this order stands for, not started yet."""
        self._told = None
        self._errand = Errand(self, order, ended)
        return self._errand

    def send(self, order: bytes, fds: list[int]) -> None:
        """Have a command started."""
        try:
            os.kill(self.pid, signal.SIGCONT)  # the agent may have stopped it
            socket.send_fds(self._socket, [order], fds)
        except OSError:
            self._unheard = True  # murdered: it is reaped soon

    def inherit(self, errand: Errand) -> None:
        """Carry out what another did not."""
        self._told, self._errand = None, errand
        errand.change(self)

    def reaped(self, status: int) -> Errand | None:
        """Tell its command that it has ended: it left something, became the command, or was killed.

        Returns:
            The command, if it was murdered before it looked at it.
        """
        self._told = self._told or self._report()
        errand, self._errand = self._errand, None
        self.close()
        if errand is not None:
            if self._unheard and not errand.doomed:
                return errand
            errand.ended(status if self._told is None or errand.doomed else self._told[0], False)
        return None

    def close(self) -> None:
        """Let it end, if it has not."""
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _report(self) -> tuple[int, bool] | None:
        """Return the wait status of the command and whether nothing of it is left, None at the end."""
        try:
            raw = self._socket.recv(_REPORT.size)
        except ConnectionResetError:  # it ended with something unread
            self._unheard = True
            return None
        except OSError:
            return None
        return _REPORT.unpack(raw) if len(raw) == _REPORT.size else None

    def _on_report(self, _: int) -> None:
        report, errand = self._report(), self._errand
        if report is None or errand is None:
            self._loop.unwatch(self._socket.fileno())  # it ends, and is reaped soon
            return
        self._told = report
        status, is_clean = report
        if errand.doomed or not is_clean:
            return
        if self._mark is not None and tree.descendants(self.pid):  # no subreaper: see `identity`
            tree.signal_all([self.pid], signal.SIGKILL)
            return
        self._errand = None
        errand.ended(status, True)
        self._on_idle(self)


class Errand:
    """One command that a starter starts; it stands for a `Unit`.

    Attributes:
        ended: called with the wait status, and whether nothing of the command is left.
        doomed: it was killed, and the starter with it.
    """

    __slots__ = ("_order", "_starter", "_theirs", "doomed", "ended", "pid", "stderr", "stdin", "stdout")

    def __init__(self, starter: Starter, order: bytes, ended: Ended) -> None:
        in_r, self.stdin = os.pipe()
        self.stdout, out_w = os.pipe()
        self.stderr, err_w = os.pipe()
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        self._theirs = [in_r, out_w, err_w]
        self._starter, self._order = starter, order
        self.pid, self.ended, self.doomed = starter.pid, ended, False

    def give(self, _: Work) -> None:
        """Have the command started."""
        self._starter.send(self._order, self._theirs)

    def change(self, starter: Starter) -> None:
        """Have the command started by another."""
        self._starter, self.pid = starter, starter.pid
        starter.send(self._order, self._theirs)

    def let_go(self) -> None:
        """Close the process's ends of its pipes here, so that they can end."""
        for fd in self._theirs:
            os.close(fd)
        self._theirs = []

    def kill(self) -> None:
        """Kill the starter; what it has started becomes the runner's."""
        self.doomed = True
        tree.signal_all([self.pid], signal.SIGKILL)

    def close(self) -> None:
        """Release the descriptors that are still open."""
        self.let_go()
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)


class Starters:
    """The starters of a runner; one that is idle is kept for the next command.

    Args:
        loop: of the runner.
        limits: returns what a new `Starter` needs to know.
        units: pid -> what to call with the wait status when it was reaped; starters are entered here.
    """

    def __init__(
        self, loop: Loop, limits: Callable[[], dict[str, int]], units: dict[int, Callable[[int], None]]
    ) -> None:
        self._loop, self._limits, self._units = loop, limits, units
        self.pids: set[int] = set()
        self._idle: Starter | None = None

    def take(self, work: Work, ended: Ended) -> Errand | None:
        """Return a command that a starter will start, None if none is idle or the command is too long."""
        starter = self._idle
        order = None if starter is None else marshal.dumps((work["argv"], work["env"], work["cwd"]))
        if starter is None or order is None or len(order) > MAX_ORDER_BYTES:
            return None
        self._idle = None
        return starter.take(order, ended)

    def refill(self) -> None:
        """Fork a starter if none is idle."""
        if self._idle is not None:
            return
        try:
            starter = Starter(self._loop, self._limits(), self._keep)
        except OSError:
            return  # out of processes or memory just now: the next command gets a unit of its own
        self.pids.add(starter.pid)
        self._units[starter.pid] = lambda status: self._ended(starter, status)
        self._idle = starter

    def _keep(self, starter: Starter) -> None:
        if self._idle is None:
            self._idle = starter
        else:
            starter.close()

    def _ended(self, starter: Starter, status: int) -> None:
        self.pids.discard(starter.pid)
        if self._idle is starter:
            self._idle = None
        errand = starter.reaped(status)
        if errand is not None:
            self.refill()
            if self._idle is None:
                errand.ended(status, False)
            else:
                self._idle.inherit(errand)
                self._idle = None


def _main(channel: int, mark: int | None, limits: dict[str, int]) -> NoReturn:
    """Start commands until the runner ends or one leaves something behind."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        jobs.settle(mark, null, null, null, channel)
        for number in jobs.IGNORED:
            signal.signal(number, signal.SIG_IGN)
        tree.set_name(NAME)
        jobs.limit(limits)
        os.umask(0o022)
        with socket.socket(fileno=3) as runner:
            while _serve(runner):
                pass
        os._exit(0)
    finally:
        os._exit(126)  # what it was to start was not started


def _serve(runner: socket.socket) -> bool:
    """Start one command and report its end; True if nothing of it is left."""
    raw, ancillary, _, _ = runner.recvmsg(MAX_ORDER_BYTES, _ROOM_FOR_FDS, socket.MSG_CMSG_CLOEXEC)
    if not raw:
        return False
    fds = array.array("i", b"".join(entry[2] for entry in ancillary)).tolist()
    argv, env, cwd = marshal.loads(raw)
    status = _run(argv, env, cwd, fds)
    is_clean = _nothing_left()
    runner.send(_REPORT.pack(status, is_clean))
    return is_clean


def _run(argv: list[str], env: dict[str, str], cwd: str, fds: list[int]) -> int:
    """Start a command, wait until it ends, and return its wait status."""
    try:
        os.chdir(cwd)
        pid = _spawn(argv, env, [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)])
    except (BlockingIOError, MemoryError, NotImplementedError):  # no process to be had, or no setsid
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os._exit(jobs.become(argv, env))
    except OSError as error:
        return jobs.cannot_run(argv[0], error, fds[2]) << 8
    finally:
        for fd in fds:
            os.close(fd)
    jobs.volunteer(pid)  # here: who cannot be traced cannot do it before
    ended = -1
    while ended != pid:
        ended, status = os.waitpid(-1, 0)
    return status


def _spawn(argv: list[str], env: dict[str, str], actions: list[tuple[int, int, int]]) -> int:
    """Start `argv[0]`, sought in the PATH of `env` as `os.execvpe` does, and return its pid."""
    if "/" in argv[0]:
        paths = [argv[0]]
    else:
        paths = [os.path.join(directory, argv[0]) for directory in os.get_exec_path(env)]
    first: OSError | None = None
    for path in paths:
        if len(paths) > 1 and not os.path.lexists(path):
            continue  # cheaper than to fail in a new process
        try:
            return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigdef=jobs.IGNORED)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except BlockingIOError:
            raise
        except OSError as error:
            first = first or error
    raise first or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _nothing_left() -> bool:
    """Reap what has ended, and say whether no child is left: then no descendant is."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False
