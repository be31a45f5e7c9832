"""What a runner can be asked to do: the table of operations behind the protocol of `wire.py`."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import bridge, tree
from .files import Files, PathRefused
from .processes import MAX_PROCESSES, Background, port_is_open
from .scratch import Scratch
from .task import Capture, Task, describe
from .wire import MAX_BODY_BYTES, MAX_OUTPUT_BYTES, Head

if TYPE_CHECKING:
    from .connection import Connection
    from .jobs import Unit, Work
    from .serve import Runner
    from .starter import Errand

MAX_TASKS = 64  # commands and turns at once
TURN_DATA_BYTES = 96 << 10  # a larger state goes in a file; the kernel refuses strings of 128 KiB
Answer = tuple[dict[str, Any], bytes]

_CODES = {
    errno.ENOENT: "not_found",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EAGAIN: "no_process",
}


class Refused(Exception):
    """The request cannot be carried out; `code` is one of the protocol's words."""

    def __init__(self, code: str, message: str = "", **detail: Any) -> None:
        super().__init__(code)
        self.code, self.message, self.detail = code, message, detail


def refusal(error: Exception) -> Head:
    """Return the head of the answer that tells of an error."""
    if isinstance(error, Refused):
        return {"error": error.code, "message": error.message, "detail": error.detail}
    if isinstance(error, PathRefused):
        return {"error": "path_refused", "message": str(error)}
    if isinstance(error, OSError):
        return {"error": _CODES.get(error.errno or 0, "failed"), "message": error.strerror or str(error)}
    if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
        return {"error": "invalid", "message": f"{type(error).__name__}: {error}"}
    return {"error": "failed", "message": f"{type(error).__name__}: {error}"}


class Session:
    """An env and a working directory that commands can share, with a temporary directory of their own."""

    def __init__(self, env: dict[str, str], cwd: str, tmp: str) -> None:
        self.env, self.cwd, self.tmp = env, cwd, tmp


class Operations:
    """Carries out requests; owns sessions, tasks, processes and files."""

    def __init__(self, runner: Runner) -> None:
        config = runner.config
        self._runner: Runner = runner
        self._config: dict[str, Any] = config
        self._open()
        self._sessions: dict[str, Session] = {}
        self._processes: dict[str, Background] = {}
        self._tasks: set[Task] = set()
        self._bridges = 0
        self._numbers = itertools.count(1)
        self._counts = {"turns": 0, "commands": 0}

    def _open(self) -> None:
        config = self._config
        self._files: Files = Files(config["roots"], config["rlimits"].get("RLIMIT_FSIZE"))
        self._scratch = Scratch(config["tmp"], tuple(config["swept"]))

    def reopen(self) -> None:
        """Take the directories as the configuration now names them; nothing was done yet."""
        self._files.close()
        self._open()

    @property
    def busy(self) -> bool:
        """Whether a command, a turn or a bridge to a port is running (background processes do not count)."""
        return bool(self._tasks or self._bridges)

    @property
    def crowded(self) -> bool:
        """Whether several commands or turns are running."""
        return len(self._tasks) > 1

    def start(self, connection: Connection, request: object, head: Head, body: bytes) -> None:
        """Begin a request; the answer is sent when its work has ended.

        Raises:
            Exception: the request cannot be carried out; see `refusal`.
        """
        op = head["op"]
        if op in ("exec", "turn"):
            getattr(self, "_" + op)(connection, request, head, body)
        elif op == "process_poll":
            process = self._process(head)
            wait_s = min(float(head["wait_s"]), 30.0)
            process.poll(
                head["out_from"], head["err_from"], wait_s, lambda h, b: connection.reply(request, h, b)
            )
        elif op == "cancel":
            cancel = connection.cancels.get(head["target"])
            if cancel is not None:
                cancel()
            connection.reply(request, {})
        elif op == "claim":
            self._runner.claim(body)
            connection.reply(request, {})
        elif op == "bridge":
            self._bridge(connection, request, head)
        elif op == "write":
            answer = self._files.write(head, body)
            if not head.get("last"):
                connection.on_close.append(lambda: self._files.abandon(answer["token"]))
            connection.reply(request, answer)
        elif op in _TABLE:
            connection.reply(request, *_TABLE[op](self, head))
        else:
            raise Refused("invalid", f"unknown operation {op!r}")

    # commands and turns

    def _exec(self, connection: Connection, request: object, head: Head, body: bytes) -> None:
        work = self._command(head)
        self._counts["commands"] += 1
        self._run(connection, request, work, body, head, lambda: None)

    def _turn(self, connection: Connection, request: object, head: Head, body: bytes) -> None:
        name = f"turn-{next(self._numbers)}-{secrets.token_hex(4)}"
        self._room_for_a_task()
        self._scratch.turn_begins()
        tmp = self._scratch.make(name)

        def clean() -> None:
            self._scratch.remove(name)
            self._scratch.turn_ends()

        try:
            env = {**self._config["env"], **head.get("env", {}), "TMPDIR": tmp, **_turn_data(body, tmp)}
            env["TURN_NUMBER"] = str(head["turn"])
            work = self._work("turn", env, self._config["home"])
            work.update(script=self._config["script"], sys_path=self._config["user_site"])
            self._counts["turns"] += 1
            self._run(connection, request, work, body, head, clean)
        except BaseException:
            clean()
            raise

    def _run(
        self,
        connection: Connection,
        request: object,
        work: Work,
        stdin: bytes,
        head: Head,
        clean: Callable[[], None],
    ) -> None:
        self._room_for_a_task()
        cap = min(int(head.get("cap", MAX_OUTPUT_BYTES)), (MAX_BODY_BYTES >> 1) - 1)

        def done(task: Task) -> None:
            self._tasks.discard(task)
            connection.cancels.pop(request, None)
            clean()  # before the answer: what a turn left is gone when its caller goes on
            connection.reply(request, *describe(task))
            self._runner.spare_soon()
            if work["kind"] == "command":
                self._runner.starter_soon()
            else:
                self._runner.nursery_soon()

        captures = (Capture(cap), Capture(cap))
        timeout_s = float(head["timeout_s"])
        task = self._make_task(work, stdin, started=True, timeout_s=timeout_s, captures=captures, done=done)
        self._tasks.add(task)
        connection.cancels[request] = task.cancel
        self._runner.spare_soon()  # while the other processor works, nobody waits for the fork

    def _make_task(self, work: Work, stdin: bytes, *, started: bool = False, **rest: Any) -> Task:
        """Return a new task; `started`: by a starter if one is idle, for it ends with its request."""
        holder: list[Task] = []
        unit: Unit | Errand | None = None
        if started and work["kind"] == "command":
            unit = self._runner.take_errand(work, lambda status, alone: holder[0].exited(status, alone=alone))
        if unit is None:
            unit = self._runner.take_unit(lambda status: holder[0].exited(status))
        holder.append(Task(self._runner.loop, unit, work, stdin, strays=self._runner.strays, **rest))
        return holder[0]

    def _room_for_a_task(self) -> None:
        if len(self._tasks) >= MAX_TASKS:
            raise Refused("too_many", f"{MAX_TASKS} commands or turns are running already")

    def _command(self, head: Head) -> Work:
        argv = head["argv"]
        if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
            raise Refused("invalid", "argv must be a list of strings without NUL, not empty")
        session = self._session(head.get("session"))
        cwd = head.get("cwd") or session.cwd
        env = {**self._config["env"], "TMPDIR": session.tmp, **session.env, **head.get("env", {})}
        work = self._work("command", env, self._files.real_directory(cwd))
        work["argv"] = argv
        return work

    def _work(self, kind: str, env: dict[str, str], cwd: str) -> Work:
        for name, value in env.items():
            if not isinstance(value, str) or "\0" in name + value or "=" in name or not name:
                raise Refused("invalid", f"environment variable {name!r} cannot be set")
        return {"kind": kind, "env": env, "cwd": cwd, "rlimits": self._config["rlimits"]}

    # sessions

    def _session(self, number: str | None) -> Session:
        if number is None:
            return Session({}, "/workspace", self._scratch.directory)
        if number not in self._sessions:
            raise Refused("not_found", f"there is no session {number}")
        return self._sessions[number]

    def _session_create(self, head: Head) -> Answer:
        number = str(head.get("session") or f"session-{next(self._numbers)}")
        if number in self._sessions:
            raise Refused("exists", f"session {number} exists")
        if not number.replace("-", "").replace("_", "").isalnum() or len(number) > 64:
            raise Refused("invalid", "a session's id is at most 64 letters, digits, '-' and '_'")
        cwd = head.get("cwd") or "/workspace"
        self._files.real_directory(cwd)
        tmp = self._scratch.make(f"{number}-{secrets.token_hex(4)}")
        self._sessions[number] = Session(dict(head.get("env", {})), cwd, tmp)
        return {"session": number}, b""

    def _session_delete(self, head: Head) -> Answer:
        session = self._session(str(head["session"]))
        for process in self._processes.values():
            if process.session == head["session"] and process.task is not None and not process.ended:
                process.task.cancel()
        del self._sessions[str(head["session"])]
        self._scratch.remove(os.path.basename(session.tmp))
        return {}, b""

    # background processes

    def _process(self, head: Head) -> Background:
        number = str(head["process"])
        if number not in self._processes:
            raise Refused("not_found", f"there is no process {number}")
        return self._processes[number]

    def _process_start(self, head: Head) -> Answer:
        ended = [number for number, process in self._processes.items() if process.ended]
        if len(self._processes) >= MAX_PROCESSES:
            if not ended:
                raise Refused("too_many", f"{MAX_PROCESSES} background processes are running already")
            del self._processes[ended[0]]
        number = f"process-{next(self._numbers)}"
        process = Background(head["argv"], head.get("session"))
        process.start(self._runner.loop, self._make_task, self._command(head))
        self._processes[number] = process
        return {"process": number}, b""

    def _process_kill(self, head: Head) -> Answer:
        process = self._process(head)
        number = int(head.get("signal", signal.SIGKILL))
        if process.task is not None and not process.ended:
            if number == signal.SIGKILL:
                process.task.cancel()
            else:
                process.task.signal(number)
        return {}, b""

    def _process_list(self, _: Head) -> Answer:
        return {"processes": [process.summary(number) for number, process in self._processes.items()]}, b""

    def _bridge(self, connection: Connection, request: object, head: Head) -> None:
        """Give the client's connection to a process that joins it to a port."""
        if self._bridges >= bridge.MAX_BRIDGES:
            raise Refused("too_many", f"{bridge.MAX_BRIDGES} connections to ports are open already")
        pid = connection.hand_over(lambda sock: bridge.fork(sock, request, int(head["port"])))
        self._bridges += 1
        self._runner.watch_child(pid, self._bridge_ended)

    def _bridge_ended(self, _: int) -> None:
        self._bridges -= 1

    def _port(self, head: Head) -> Answer:
        return {"open": port_is_open(int(head["port"]))}, b""

    # the sandbox itself

    def _stats(self, _: Head) -> Answer:
        return {
            "epoch": self._runner.epoch,
            "python": ".".join(map(str, sys.version_info[:3])),
            "uptime_s": time.monotonic() - self._runner.started,
            "processes": len(tree.descendants(os.getpid())),
            "running": len(self._tasks),
            "sessions": sorted(self._sessions),
            **self._counts,
        }, b""

    def _park(self, _: Head) -> Answer:
        self._runner.park_soon()
        return {}, b""

    def _read(self, head: Head) -> Answer:
        return self._files.read(head["path"], int(head["offset"]), int(head["length"]))

    def _list(self, head: Head) -> Answer:
        return self._files.list_directory(head["path"], bool(head.get("recursive"))), b""

    def _abandon(self, head: Head) -> Answer:
        self._files.abandon(str(head["token"]))
        return {}, b""

    def _delete(self, head: Head) -> Answer:
        return self._files.delete(head["path"], bool(head.get("recursive"))), b""


def _turn_data(state: bytes, tmp: str) -> dict[str, str]:
    if len(state) < TURN_DATA_BYTES and b"\0" not in state:
        try:
            return {"TURN_DATA": state.decode()}
        except UnicodeDecodeError:
            pass
    path = os.path.join(tmp, "turn_data.json")
    with open(path, "wb") as file:
        file.write(state)
    return {"TURN_DATA_FILE": path}


_TABLE: dict[str, Callable[[Operations, Head], Answer]] = {
    "renew": lambda self, head: ({"epoch": self._runner.epoch}, b""),
    "park": Operations._park,
    "session_create": Operations._session_create,
    "session_delete": Operations._session_delete,
    "process_start": Operations._process_start,
    "process_kill": Operations._process_kill,
    "process_list": Operations._process_list,
    "port": Operations._port,
    "stats": Operations._stats,
    "read": Operations._read,
    "list": Operations._list,
    "delete": Operations._delete,
    "abandon": Operations._abandon,
    "mkdir": lambda self, head: (self._files.mkdir(head["path"]), b""),
    "rename": lambda self, head: (self._files.rename(head["path"], head["target"]), b""),
    "look": lambda self, head: (self._files.look(head["paths"]), b""),
    "status": lambda self, head: (self._files.status(head["path"]), b""),
}
