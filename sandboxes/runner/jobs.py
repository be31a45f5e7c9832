"""Jobs: one command or one turn, run by a process of its own under a warden.

`Unit` forks two processes: the *warden*, a child subreaper that waits and reports, and under it the *main* process, which
sleeps until it is told what to become: a command (execve) or a turn script (compiled code run in the fork, with the
image's modules already imported). A spare unit is kept waiting, so no fork and no interpreter start is on the way of a
turn. Units are used once.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from . import tree

LENGTH = struct.Struct("!I")
REPORT = struct.Struct("!i?")  # wait status of main, whether main was the last process of its tree
_CODE: dict[str, tuple[tuple[int, int, int], types.CodeType]] = {}

Work = dict[str, Any]


class Unit:
    """A warden and its main process, seen from the runner."""

    __slots__ = ("control", "pid", "stderr", "stdin", "stdout")

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        in_r, in_w = os.pipe()
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            _warden(in_r, out_w, err_w, theirs.fileno())
        for fd in (in_r, out_w, err_w):
            os.close(fd)
        theirs.close()
        for fd in (in_w, out_r, err_r):
            os.set_blocking(fd, False)
        ours.setblocking(False)
        self.pid, self.control = pid, ours
        self.stdin, self.stdout, self.stderr = in_w, out_r, err_r

    def give(self, work: Work) -> None:
        """Tell the main process what to become."""
        raw = json.dumps(work).encode()
        self.control.settimeout(5.0)  # main is blocked in recv; only a murdered one does not read
        try:
            self.control.sendall(LENGTH.pack(len(raw)) + raw)
        finally:
            self.control.setblocking(False)

    def report(self) -> tuple[int, bool] | None:
        """Return (exit code, whether nothing is left running), None if the warden died without a word."""
        try:
            raw = self.control.recv(REPORT.size)
        except OSError:
            raw = b""
        if len(raw) != REPORT.size:
            return None
        status, alone = REPORT.unpack(raw)
        return exit_code(status), alone

    def close(self) -> None:
        """Release the descriptors that are still open."""
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdin = self.stdout = self.stderr = -1
        self.control.close()


def exit_code(status: int) -> int:
    """Return a wait status as a shell would: 128 + the signal's number if a signal ended it."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def load_code(path: str) -> types.CodeType | None:
    """Return the compiled script, from memory if the file has not changed; None if it cannot be compiled."""
    try:
        found = os.stat(path)
        key = (found.st_ino, found.st_mtime_ns, found.st_size)
        cached = _CODE.get(path)
        if cached is not None and cached[0] == key:
            return cached[1]
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    _CODE[path] = (key, code)
    return code


def _warden(in_r: int, out_w: int, err_w: int, control: int) -> NoReturn:
    """Wait for main and for whatever it leaves behind; never returns to the runner's code."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(in_r, out_w, err_w, control)
        tree.become_subreaper()
        main = os.fork()
        if main == 0:
            _main(3)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)  # or the pipes would never end
        os.close(null)
        pid = -1
        while pid != main:
            pid, status = os.waitpid(-1, 0)
        os.write(3, REPORT.pack(status, _reap_all(os.WNOHANG)))
        _reap_all(0)
    finally:
        os._exit(0)


def _reap_all(flags: int) -> bool:
    """Reap children until there are none (True) or, with WNOHANG, none is ready (False)."""
    while True:
        try:
            if os.waitpid(-1, flags)[0] == 0:
                return False
        except ChildProcessError:
            return True


def _keep_only(*fds: int) -> None:
    """Move `fds` to 0, 1, 2, … and close everything else."""
    high = [os.dup2(fd, 900 + index, inheritable=False) for index, fd in enumerate(fds)]
    for index, fd in enumerate(high):
        os.dup2(fd, index, inheritable=index < 3)
    os.closerange(len(fds), 1 << 20)


def _main(control: int) -> NoReturn:
    """Sleep until told what to become, then become it."""
    code = 126
    try:
        os.setsid()
        work = _receive(control)
        os.close(control)
        if work is None:
            os._exit(0)
        _limit(work["rlimits"])
        tree.set_dumpable(True)
        os.chdir(work["cwd"])
        os.umask(0o022)
        code = _run_script(work) if work["kind"] == "turn" else _run_command(work)
    except BaseException as error:  # noqa: BLE001 - the edge of a process: it must end here, whatever happened
        os.write(2, f"skylease: {error}\n".encode())
    finally:
        os._exit(code)


def _receive(control: int) -> Work | None:
    raw = bytearray()
    size = LENGTH.size
    while len(raw) < size:
        chunk = os.read(control, size - len(raw))
        if not chunk:
            return None
        raw += chunk
        if size == LENGTH.size and len(raw) == size:
            size += LENGTH.unpack(raw)[0]
    work: Work = json.loads(raw[LENGTH.size :])
    return work


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def _run_command(work: Work) -> int:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    argv: list[str] = work["argv"]
    try:
        os.execvpe(argv[0], argv, work["env"])
    except OSError as error:
        os.write(2, f"skylease: {argv[0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def _run_script(work: Work) -> int:
    """Run the turn script as `__main__` of this fork and return its exit code."""
    path: str = work["script"]
    os.environ.clear()
    os.environ.update(work["env"])
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace")  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [path]
    sys.path[:0] = [os.path.dirname(path)]
    sys.path += [part for part in work["sys_path"] if os.path.isdir(part)]
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    gc.unfreeze()
    try:
        code = load_code(path)
        if code is None:
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
        result = 0
    except SystemExit as stop:
        result = _exit_value(stop.code)
    except BaseException as error:  # noqa: BLE001 - a script may raise anything; it is reported as Python would
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace)
        result = 1
    return _finish(result)


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    raw = open(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=fd == 2)


def _exit_value(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return 1


def _finish(result: int) -> int:
    """Do what the interpreter does at its end: wait for threads, run atexit functions, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the same edge: a failing atexit function or a closed pipe
        traceback.print_exc()
        result = result or 120
    sys.stderr.flush()
    return result
