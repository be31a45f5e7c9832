"""Which repositories are out of step, on disk: a tap that is killed reads their archives when it is back.

A line for each change, appended at once; a torn last line is that of a change that nobody was told of. When
most lines are out of date, the file is written anew in one step.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

from firehose.cursor_file import replace_file
from firehose.errors import SyntaxInvalid, WindowUnavailable
from firehose.syntax import Did, parse_did

MAX_STALE_LINES: Final = 4096  # beside those in force


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A repository that has to be read whole."""

    host: str = ""  # of its PDS, if it is known
    failures: int = 0  # in a row
    not_before_ms: int = 0  # epoch milliseconds: when it may be tried


class ResyncJournal:
    """The open file; a context manager."""

    def __init__(self, path: Path) -> None:
        """Take the place; nothing is opened yet."""
        self.path = path
        self.pending: dict[Did, Pending] = {}
        self._file: TextIO | None = None
        self._lines = 0

    def __enter__(self) -> Self:
        """Read what was pending, and go on from there.

        Raises: WindowUnavailable: it cannot be read or written.
        """
        try:
            text = self.path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        for line in text.split("\n"):
            self._take(line)
        self._rewrite()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def note(self, did: Did, pending: Pending | None) -> None:
        """A repository is out of step, or (None) in step again or gone.

        Raises: WindowUnavailable: the disk refuses.
        """
        if pending is None and self.pending.pop(did, None) is None:
            return
        if pending is not None:
            if self.pending.get(did) == pending:
                return
            self.pending[did] = pending
        if self._file is None:
            return
        try:
            self._file.write(_line(did, pending))
            self._file.flush()
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        self._lines += 1
        if self._lines > 2 * len(self.pending) + MAX_STALE_LINES:
            self._rewrite()

    def _take(self, line: str) -> None:
        """One line of the file; what is no such line is torn, and says nothing."""
        try:
            told = json.loads(line)
            did = parse_did(told["did"])
            if told["host"] is None:
                self.pending.pop(did, None)
                return
            self.pending[did] = Pending(
                host=str(told["host"]),
                failures=int(told["failures"]),
                not_before_ms=int(told["not_before_ms"]),
            )
        except (ValueError, LookupError, TypeError, SyntaxInvalid, RecursionError):
            return

    def _rewrite(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        lines = [_line(did, pending) for did, pending in self.pending.items()]
        replace_file(self.path, "".join(lines).encode())
        try:
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        self._lines = len(lines)


def _line(did: Did, pending: Pending | None) -> str:
    told: dict[str, object] = {"did": did, "host": None}
    if pending is not None:
        told |= {
            "host": pending.host,
            "failures": pending.failures,
            "not_before_ms": pending.not_before_ms,
        }
    return json.dumps(told) + "\n"
