"""A sandbox as its user sees it: commands, turns, sessions, processes. Files are in `workspace.py`.

`connect_sandbox` needs only the standard library and the path of the sandbox's directory: the agent's process
talks to the runner itself, so nothing else is on the way of a turn.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sandboxes.activity import Activity
from sandboxes.channel import SOCKET_NAME, Channel, open_stream
from sandboxes.errors import (
    InvalidSpec,
    PortError,
    RefusedByRunner,
    SandboxBusy,
    SandboxGone,
    SandboxTimeoutError,
    StaleEpoch,
)
from sandboxes.git import Repositories
from sandboxes.process import Process
from sandboxes.results import MAX_ACTION_BYTES, ExecResult, TurnResult, judge_turn
from sandboxes.runner.wire import MAX_BODY_BYTES, MAX_OUTPUT_BYTES, Head

GRACE_S: Final = 10.0  # for the runner to end a tree and answer, beyond a command's own time
REQUEST_DEADLINE_S: Final = 30.0  # for everything that is not a command
RUN_DIRECTORY: Final = "run"


class Sandbox(Repositories):
    """A living sandbox, held with an epoch. Cheap to make: it connects at the first request, and again if
    need be.

    One object serves one event loop; commands and turns may run at once.
    """

    def __init__(self, directory: Path, *, name: str, epoch: int, activity: Activity | None = None) -> None:
        self.directory, self.name, self.epoch = directory, name, epoch
        self._channel: Channel | None = None
        self._activity = activity or Activity(directory, name)  # another: who has kept everybody else out

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def socket(self) -> Path:
        """Where the runner listens."""
        return self.directory / RUN_DIRECTORY / SOCKET_NAME

    async def exec(
        self,
        argv: Sequence[str] | str,
        stdin: bytes = b"",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        session: str | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command and return what it did, as soon as it exits; what it leaves running is killed then.

        Args:
            argv: the command and its arguments, or a line for `/bin/sh -c`.
            stdin: all of its standard input, at most 32 MiB.
            timeout: seconds until the whole process tree is killed.
            env: added to the sandbox's and the session's variables.
            cwd: directory under /workspace, /data or /tmp; default the session's, or /workspace.
            session: id from `create_session`.
            max_output_bytes: cap of each stream; what is beyond it is dropped and flagged.

        Raises:
            SandboxTimeoutError: it ran out of time; carries the partial result.
            StaleEpoch, SandboxGone, SandboxBusy, InvalidSpec, RefusedByRunner: it was not run.
        """
        head = self._command_head(argv, env, cwd, session)
        head.update(op="exec", timeout_s=timeout, cap=max_output_bytes)
        result, timed_out = await self._run(head, stdin, timeout)
        if timed_out:
            raise SandboxTimeoutError(self.name, timeout, result)
        return result

    async def turn(
        self,
        state: bytes | Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        turn: int,
        timeout: float = 60.0,
    ) -> TurnResult:
        """Let the image's turn script decide one turn, in a fresh fork with an env, cwd and /tmp of its own.

        The script gets `state` on stdin and in TURN_DATA (when below 96 KiB, else in the file named by
        TURN_DATA_FILE), the number in TURN_NUMBER, and what `env` adds (AGENT_DID, GAME_ID). Whatever it
        does, this returns an action or a reason to skip.

        Raises:
            StaleEpoch, SandboxGone, SandboxBusy, InvalidSpec, RefusedByRunner: the script was not run.
        """
        raw = state if isinstance(state, bytes) else json.dumps(state, separators=(",", ":")).encode()
        head: Head = {"op": "turn", "env": dict(env or {}), "turn": turn, "timeout_s": timeout}
        head["cap"] = MAX_ACTION_BYTES + 1
        result, timed_out = await self._run(head, raw, timeout)
        return judge_turn(result, timeout_seconds=timeout, timed_out=timed_out)

    async def create_session(
        self, *, session: str | None = None, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> str:
        """Make a session (an env, a cwd and a temporary directory that commands share) and return its id."""
        head: Head = {"op": "session_create", "session": session, "env": dict(env or {}), "cwd": cwd}
        return str((await self._ask(head))[0]["session"])

    async def delete_session(self, session: str) -> None:
        """End a session: its background processes are killed, its temporary directory is removed."""
        await self._ask({"op": "session_delete", "session": session})

    async def start_process(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        session: str | None = None,
    ) -> Process:
        """Start a background process; it runs until it exits, is killed, or the sandbox ends."""
        head = self._command_head(argv, env, cwd, session)
        answer, _ = await self._ask({**head, "op": "process_start"})
        return Process(self._ask, str(answer["process"]))

    def process(self, process_id: str) -> Process:
        """Return a background process that `list_processes` has told of, whoever started it."""
        return Process(self._ask, process_id)

    @contextlib.asynccontextmanager
    async def open_port(self, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to what listens on a loopback port inside the sandbox; closed at the end of the block.

        As long as it is open, it counts as a request: the sandbox is not frozen.

        Raises:
            PortError: nothing listens there.
            StaleEpoch, SandboxGone, SandboxBusy: it was not asked.
        """
        async with self._activity.request():
            head = {"id": 1, "op": "bridge", "port": port, "epoch": self.epoch}
            reader, writer, answer = await open_stream(self.socket, self.name, head)
            try:
                if "error" in answer:
                    raise self._error(
                        str(answer["error"]), str(answer.get("message", "")), answer.get("detail")
                    )
                yield reader, writer
            finally:
                writer.transport.abort()

    async def list_processes(self) -> list[dict[str, Any]]:
        """Return id, argv, running and exit_code of every background process that is still known."""
        return list((await self._ask({"op": "process_list"}))[0]["processes"])

    async def renew(self) -> None:
        """Push the sandbox's idle deadline back (every other request does so, too)."""
        await self._ask({"op": "renew"})

    async def stats(self) -> dict[str, Any]:
        """Return the runner's own numbers: epoch, uptime_s, processes, running, turns, commands, python."""
        answer = (await self._ask({"op": "stats"}))[0]
        return {key: value for key, value in answer.items() if key not in ("id", "ok")}

    async def close(self) -> None:
        """Drop the connection; the sandbox lives on."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _command_head(
        self, argv: Sequence[str] | str, env: Mapping[str, str] | None, cwd: str | None, session: str | None
    ) -> Head:
        words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        return {"argv": words, "env": dict(env or {}), "cwd": cwd, "session": session}

    async def _run(self, head: Head, stdin: bytes, timeout: float) -> tuple[ExecResult, bool]:
        if not 0 < timeout < float("inf"):
            raise InvalidSpec("timeout", f"{timeout} is not a number of seconds above 0")
        if len(stdin) > MAX_BODY_BYTES:
            raise InvalidSpec("stdin", f"{len(stdin)} bytes are more than {MAX_BODY_BYTES}")
        answer, body = await self._ask(head, stdin, deadline_s=timeout + GRACE_S)
        try:
            cut = int(answer["stdout_len"])
            result = ExecResult(
                exit_code=int(answer["exit_code"]),
                stdout=body[:cut],
                stderr=body[cut:],
                duration_seconds=float(answer["duration_s"]),
                truncated=bool(answer["truncated"]),
            )
            return result, bool(answer["timed_out"])
        except (KeyError, TypeError, ValueError) as error:
            raise SandboxGone(self.name, f"its runner answered nonsense ({error!r})") from None

    async def _ask(
        self, head: Head, body: bytes = b"", *, deadline_s: float = REQUEST_DEADLINE_S
    ) -> tuple[Head, bytes]:
        """Send a request with our epoch and return the answer, or raise what it tells."""
        async with self._activity.request():
            channel = await self._connected()
            answer, raw = await channel.request({**head, "epoch": self.epoch}, body, deadline_s=deadline_s)
        if "error" in answer:
            raise self._error(str(answer["error"]), str(answer.get("message", "")), answer.get("detail"))
        return answer, raw

    async def _connected(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open or channel.loop is not asyncio.get_running_loop():
            channel = self._channel = await Channel.open(self.socket, self.name)
        return channel

    def _error(self, code: str, message: str, detail: object) -> Exception:
        if code == "stale_epoch":
            current = detail.get("current") if isinstance(detail, dict) else None
            return StaleEpoch(self.name, self.epoch, current if isinstance(current, int) else self.epoch + 1)
        if code in ("too_many", "no_process"):
            return SandboxBusy(self.name, message)
        if code == "port_closed":
            return PortError(self.name, message)
        if code == "invalid":
            return InvalidSpec("request", message)
        return RefusedByRunner(self.name, code, message)


def connect_sandbox(directory_or_socket: Path | str, *, epoch: int) -> Sandbox:
    """Return the sandbox that lives in a directory (or listens at a socket in it), to be used with this
    epoch.

    Nothing is sent yet; the first request raises SandboxGone if nobody is there.
    """
    path = Path(directory_or_socket)
    directory = path.parent.parent if path.name == SOCKET_NAME else path
    return Sandbox(directory, name=directory.name, epoch=epoch)
