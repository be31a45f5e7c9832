"""A conversation with a sandbox, line by line: what is typed runs in one session of it."""

import asyncio
import shlex
import sys
from typing import Final

from sandboxes import Sandbox, SandboxTimeoutError

# What a line changes is written down when its shell ends, however it ends, and read by the next one's.
_AROUND: Final = """\
[ -f "$TMPDIR/.shell" ] && . "$TMPDIR/.shell" && cd "$PWD"
trap 'code=$?; export PWD; export -p >"$TMPDIR/.shell"; exit $code' 0
eval {line}
"""
WORDS_OF_FAREWELL: Final = ("exit", "logout", "quit")


class Shell:
    """One conversation."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def talk(self, deadline_s: float) -> int:
        """Read lines from standard input until it ends; returns the last exit code."""
        session, code = await self._sandbox.create_session(), 0
        try:
            while line := await asyncio.to_thread(self._read):
                if line.strip() in WORDS_OF_FAREWELL:
                    break
                code = await self._do(session, line, deadline_s)
        finally:
            await self._sandbox.delete_session(session)
        return code

    async def _do(self, session: str, line: str, deadline_s: float) -> int:
        try:
            result = await self._sandbox.exec(
                ["/bin/sh", "-c", _AROUND.format(line=shlex.quote(line))], session=session, timeout=deadline_s
            )
        except SandboxTimeoutError as error:
            result = error.result
        sys.stdout.write(result.stdout_text)
        sys.stderr.write(result.stderr_text)
        if result.truncated:
            sys.stderr.write("(its output was cut)\n")
        sys.stdout.flush()
        sys.stderr.flush()
        return result.exit_code

    def _read(self) -> str:
        if sys.stdin.isatty():
            sys.stderr.write(f"{self._sandbox.name}$ ")
            sys.stderr.flush()
        return sys.stdin.readline()
