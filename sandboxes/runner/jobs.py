"""Jobs: one command or one turn, run by a process of its own.

A `Unit` is a fork that sleeps until it is told what to become: a command (execve) or a turn script (compiled
code run in the fork, with the image's modules already imported). A spare unit is kept waiting, so neither a
fork nor the start of an interpreter is on the way of a turn. Units are used once.

Each unit is a child subreaper, also after execve: what its processes do (double fork, setsid), they stay its
descendants until it exits, and become children of the runner at that moment. So a child of the runner that is
no unit is always a leftover of a unit that has ended.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import json
import os
import resource
import signal
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from . import tree

_CODE: dict[str, tuple[tuple[int, int, int], types.CodeType]] = {}

Work = dict[str, Any]

# Handled before the real work is there. The first write to a page after a fork copies it, at 2-4 microseconds
# each: so both sides of a fork touch, while nobody waits, what they will need when somebody does.
REHEARSAL: Work = {
    "kind": "turn",
    "env": {"NAME": "value"},
    "cwd": "/",
    "rlimits": {},
    "numbers": [1, 2.5, None, True],
}


class Unit:
    """A process that waits for its work, seen from the runner."""

    __slots__ = ("_control", "pid", "stderr", "stdin", "stdout")

    def __init__(self) -> None:
        control_r, control_w = os.pipe()
        in_r, in_w = os.pipe()
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            _main(in_r, out_w, err_w, control_r)
        for fd in (control_r, in_r, out_w, err_w):
            os.close(fd)
        for fd in (in_w, out_r, err_r):
            os.set_blocking(fd, False)
        self.pid, self._control = pid, control_w
        self.stdin, self.stdout, self.stderr = in_w, out_r, err_r

    def give(self, work: Work) -> None:
        """Tell the process what to become; one that was murdered meanwhile is not told."""
        view = memoryview(encoded(work))
        with contextlib.suppress(BrokenPipeError):
            while view:  # it is blocked in read, so this ends
                view = view[os.write(self._control, view) :]
        os.close(self._control)
        self._control = -1

    def close(self) -> None:
        """Release the descriptors that are still open."""
        for fd in (self._control, self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self._control = self.stdin = self.stdout = self.stderr = -1


def encoded(work: Work) -> bytes:
    """Return the work in the form in which it travels to its process: JSON, ended by the end of the pipe."""
    return json.dumps(work).encode()


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


def _keep_only(*fds: int) -> None:
    """Move `fds` to 0, 1, 2, … and close everything else."""
    high = [os.dup2(fd, 900 + index, inheritable=False) for index, fd in enumerate(fds)]
    for index, fd in enumerate(high):
        os.dup2(fd, index, inheritable=index < 3)
    os.closerange(len(fds), 1 << 20)


def _main(in_r: int, out_w: int, err_w: int, control: int) -> NoReturn:
    """Sleep until told what to become, then become it; never returns to the runner's code."""
    code = 126
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(in_r, out_w, err_w, control)
        os.setsid()
        tree.become_subreaper()
        _open_streams()
        encoded(json.loads(encoded(REHEARSAL)))
        raw = b"".join(iter(lambda: os.read(3, 1 << 16), b""))
        os.close(3)
        if not raw:
            os._exit(0)  # the runner has ended
        work: Work = json.loads(raw)
        _limit(work["rlimits"])
        tree.set_dumpable(True)
        os.chdir(work["cwd"])
        os.umask(0o022)
        code = _run_script(work) if work["kind"] == "turn" else _run_command(work)
    except BaseException as error:  # noqa: BLE001 - the edge of a process: it must end here, whatever happened
        os.write(2, f"skylease: {error}\n".encode())
    finally:
        os._exit(code)


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
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [path]
    sys.path[:0] = [os.path.dirname(path)]
    sys.path += [part for part in work["sys_path"] if os.path.isdir(part)]
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
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


def _open_streams() -> None:
    """Make fresh objects for the standard streams: those that were inherited stand for the runner's."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace")  # type: ignore[misc]


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    raw = open(fd, "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
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
