"""A background process inside a sandbox, and waiting for what it does."""

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from sandboxes.errors import ProcessEnded, ProcessWaitTimeout
from sandboxes.runner.wire import Head

POLL_S: Final = 10.0  # the runner answers earlier when there is news
PORT_POLL_S: Final = 0.02
LOG_BYTES: Final = 1 << 20  # searched in each stream: what the runner keeps
T = TypeVar("T")


class Ask(Protocol):
    """Sends a request to the runner and returns the answer's head and body."""

    async def __call__(
        self, head: Head, body: bytes = b"", *, deadline_s: float = 30.0
    ) -> tuple[Head, bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLogs:
    """The newest output of a background process, at most 1 MiB of each stream."""

    stdout: bytes
    stderr: bytes


class Process:
    """A background process; it belongs to the sandbox, not to this object."""

    def __init__(self, ask: Ask, process_id: str) -> None:
        self._ask, self.id = ask, process_id

    async def logs(self) -> ProcessLogs:
        """Return what it has written so far."""
        _, out, err = await self._poll(0, 0, 0.0)
        return ProcessLogs(stdout=out, stderr=err)

    async def wait(self, timeout: float = 60.0) -> int:
        """Return the exit code, once it has ended.

        Raises:
            ProcessWaitTimeout: it still runs after `timeout` seconds.
        """
        return await self._until("its end", timeout, lambda head, _out, _err: _exit_code(head))

    async def wait_for_log(self, pattern: str, timeout: float = 60.0) -> str:
        """Return the first match of a regular expression in either stream; what was written before counts,
        too.

        Raises:
            ProcessEnded: it ended without writing that.
            ProcessWaitTimeout: it still runs and has not written that within `timeout` seconds.
        """
        search = re.compile(pattern)

        def found(head: Head, out: str, err: str) -> str | None:
            match = search.search(out) or search.search(err)
            if match is None and not head["running"]:
                raise ProcessEnded(self.id, f"{pattern!r} in its log", f"it ended with {head['exit_code']}")
            return match.group() if match else None

        return await self._until(f"{pattern!r} in its log", timeout, found)

    async def wait_for_port(self, port: int, timeout: float = 60.0) -> None:
        """Return once something inside the sandbox accepts connections on this loopback port.

        Raises:
            ProcessEnded: the process ended before that.
            ProcessWaitTimeout: that did not happen within `timeout` seconds.
        """
        awaited = f"port {port}"
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if (await self._ask({"op": "port", "port": port}))[0]["open"]:
                        return
                    head, _, _ = await self._poll(0, 0, 0.0)
                    if not head["running"]:
                        raise ProcessEnded(self.id, awaited, f"it ended with {head['exit_code']}")
                    await asyncio.sleep(PORT_POLL_S)
        except TimeoutError:
            raise ProcessWaitTimeout(self.id, awaited, f"not within {timeout:g} s") from None

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to its whole process tree; harmless when it has ended."""
        await self._ask({"op": "process_kill", "process": self.id, "signal": int(number)})

    async def _poll(self, out_from: int, err_from: int, wait_s: float) -> tuple[Head, bytes, bytes]:
        head = {
            "op": "process_poll",
            "process": self.id,
            "out_from": out_from,
            "err_from": err_from,
            "wait_s": wait_s,
        }
        answer, body = await self._ask(head)
        cut = int(answer["stdout_len"])
        return answer, body[:cut], body[cut:]

    async def _until(self, awaited: str, timeout: float, judge: Callable[[Head, str, str], T | None]) -> T:
        """Ask for the log again and again until `judge(head, stdout, stderr)` returns something."""
        out, err = b"", b""
        out_from = err_from = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    head, more_out, more_err = await self._poll(out_from, err_from, POLL_S)
                    out, err = (out + more_out)[-LOG_BYTES:], (err + more_err)[-LOG_BYTES:]
                    out_from, err_from = int(head["out_offset"]), int(head["err_offset"])
                    verdict = judge(head, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
                    if verdict is not None:
                        return verdict
        except TimeoutError:
            raise ProcessWaitTimeout(self.id, awaited, f"not within {timeout:g} s") from None


def _exit_code(head: Head) -> int | None:
    return None if head["running"] else int(head["exit_code"])
