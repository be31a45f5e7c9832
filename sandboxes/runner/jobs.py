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
import fcntl
import io
import json
import os
import resource
import signal
import sys
import termios
import threading
import traceback
import types
from typing import Any, NoReturn

from . import identity, tree

# By the runner or a starter; a command starts afresh.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NOTHING = compile("None", "nothing", "exec")
_PATH: list[str] = []  # where a unit looks for modules, beside the script's own directories
PIPE_BYTES = 1 << 15  # what a pipe holds at least without a reader
_CODE: dict[str, tuple[tuple[int, int, int], types.CodeType]] = {}

Work = dict[str, Any]


def rehearsal(config: dict[str, Any]) -> Work:
    """Return a turn that nobody asked for, to be handled up to its script before a real one is there.

    The first write to a page after a fork copies it, at 2-4 microseconds each. So both sides of a fork touch,
    while nobody waits, what they will need when somebody does.
    """
    env = {**config["env"], "TMPDIR": config["tmp"], "TURN_DATA": "{}", "TURN_NUMBER": "1"}
    work = {"kind": "turn", "env": env, "cwd": config["home"], "rlimits": {"RLIMIT_CORE": 0}}
    return {**work, "script": config["script"], "sys_path": config["user_site"], "numbers": [1, 2.5, None]}


class Unit:
    """A process that waits for its work, seen from the runner.

    Args:
        first: what it rehearses with (see `rehearsal`); None: its work is there already.
    """

    __slots__ = ("_control", "_first", "doomed", "nurse", "pid", "stderr", "stdin", "stdout", "theirs")

    def __init__(self, first: Work | None = None) -> None:
        self._first = None if first is None else encoded(first)
        self.pid = self.nurse = 0  # nurse: the nursery's pid, if that is to reap it
        in_r, self.stdin = os.pipe()
        self.stdout, out_w = os.pipe()
        self.stderr, err_w = os.pipe()
        control_r, self._control = os.pipe()
        self.theirs = [in_r, out_w, err_w, control_r]
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        self.doomed = False

    @classmethod
    def forked(cls, first: Work | None = None) -> Unit:
        """Return a unit that is a fork of this process."""
        unit = cls(first)
        try:
            unit.fork()
        except OSError:
            unit.close()
            raise
        return unit

    def fork(self) -> None:
        """Make the process; again for one that was murdered before it looked at its work."""
        mark, self.nurse = identity.next_mark(), 0
        self.pid = os.fork()
        if self.pid == 0:
            _main(mark, self._first, *self.theirs)
        identity.register(mark, self.pid)

    def give(self, work: Work) -> None:
        """Tell the process what to become."""
        tree.signal_all([self.pid], signal.SIGCONT)  # the agent may have stopped it
        view = memoryview(encoded(work))
        if len(view) > PIPE_BYTES:
            os.close(self.theirs.pop())  # if nobody reads any more, we must be told
        with contextlib.suppress(BrokenPipeError):
            while view:  # it is blocked in read, so this ends
                view = view[os.write(self._control, view) :]
        os.close(self._control)
        self._control = -1

    @property
    def was_murdered(self) -> bool:
        """Whether the process, which has ended, never looked at its work, though nobody here killed it."""
        if self.doomed or len(self.theirs) < 4:
            return False
        unread = bytearray(4)
        fcntl.ioctl(self.theirs[-1], termios.FIONREAD, unread)
        return any(unread)

    def kill(self) -> None:
        """Kill the process itself."""
        self.doomed = True
        tree.signal_all([self.pid], signal.SIGKILL)
        if self.nurse:
            tree.signal_all([self.nurse], signal.SIGCONT)  # the agent may have stopped it

    def let_go(self) -> None:
        """Close the process's ends of its pipes here, so that they can end."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        """Release the descriptors that are still open."""
        self.let_go()
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


def keep_only(*fds: int) -> None:
    """Move `fds` to 0, 1, 2, … and close everything else."""
    high = [os.dup2(fd, 900 + index, inheritable=False) for index, fd in enumerate(fds)]
    for index, fd in enumerate(high):
        os.dup2(fd, index, inheritable=index < 3)
    os.closerange(len(fds), 1 << 20)


def _main(mark: int | None, first: bytes | None, *fds: int) -> NoReturn:
    """Live as a fork of the runner; never returns to its code."""
    code = 126
    try:
        settle(mark, *fds)
        _open_streams()
        _PATH[:] = sys.path
        if first is not None:
            _rehearse(json.loads(first))
        code = _work()
    except BaseException as error:  # noqa: BLE001 - the edge of a process: it must end here, whatever happened
        os.write(2, f"skylease: {error}\n".encode())
    finally:
        os._exit(code)


def live(mark: int | None, fds: list[int]) -> NoReturn:
    """Live as a fork of the nursery, which has done all that needs no more than the image."""
    code = 126
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for index, fd in enumerate(fds):
            os.dup2(fd, index, inheritable=index < 3)
        os.closerange(len(fds), 1 << 20)
        os.setsid()
        _belong(mark)
        code = _work()
    except BaseException as error:  # noqa: BLE001 - the same edge
        os.write(2, f"skylease: {error}\n".encode())
    finally:
        os._exit(code)


def _work() -> int:
    """Sleep until told what to become, become it, and return the exit code."""
    raw = b"".join(iter(lambda: os.read(3, 1 << 16), b""))
    os.close(3)
    if not raw:
        os._exit(0)  # the runner has ended
    work: Work = json.loads(raw)
    _prepare(work, dumpable=True)
    return _run_script(work) if work["kind"] == "turn" else become(work["argv"], work["env"])


def look_like(first: Work) -> None:
    """Look like an interpreter that is about to run the script, so that forks need not."""
    _open_streams()
    _PATH[:] = sys.path
    _rehearse(first)


def _rehearse(work: Work) -> None:
    """Do what any turn does before its script begins; the real one does all of it again."""
    with contextlib.suppress(OSError):
        _prepare(work, dumpable=False)
        module = _dress(work)
        load_code(work["script"])
        exec(_NOTHING, module.__dict__)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.write("")
    sys.stdout.flush()
    sys.stderr.flush()


def _prepare(work: Work, *, dumpable: bool) -> None:
    limit(work["rlimits"])
    tree.set_dumpable(dumpable)
    volunteer()
    os.chdir(work["cwd"])
    os.umask(0o022)


def settle(mark: int | None, *fds: int) -> None:
    """Be a process of its own, no part of the runner: with these descriptors only, as 0, 1, 2, …"""
    signal.set_wakeup_fd(-1)
    default_signals()
    keep_only(*fds)
    os.setsid()
    _belong(mark)


def default_signals() -> None:
    """Handle none of the signals that the runner handles."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _belong(mark: int | None) -> None:
    if mark is None:
        tree.become_subreaper()
    else:
        identity.become_agent(mark)


def volunteer(pid: int | str = "self") -> None:
    """When memory runs out, let the kernel end this process and its children before the runner."""
    with contextlib.suppress(OSError):
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"800")
        finally:
            os.close(fd)


def limit(limits: dict[str, int]) -> None:
    """Set the resource limits of this process and of what it starts."""
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def become(argv: list[str], env: dict[str, str]) -> int:
    """Become a command; returns the exit code for one that cannot be run."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        return cannot_run(argv[0], error, 2)


def cannot_run(word: str, error: OSError, stderr: int) -> int:
    """Say why a command cannot be run, and return its exit code."""
    with contextlib.suppress(OSError):
        os.write(stderr, f"skylease: {word}: {error.strerror}\n".encode())
    return 127 if isinstance(error, FileNotFoundError) else 126


def _run_script(work: Work) -> int:
    """Run the turn script as `__main__` of this fork and return its exit code."""
    path: str = work["script"]
    module = _dress(work)
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


def _dress(work: Work) -> types.ModuleType:
    """Make this process look like an interpreter that was started with the script."""
    path: str = work["script"]
    env: dict[str, str] = work["env"]
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [path]
    user_site = [part for part in work["sys_path"] if os.path.isdir(part)]
    sys.path[:] = [os.path.dirname(path), *_PATH, *user_site]
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    return module


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
