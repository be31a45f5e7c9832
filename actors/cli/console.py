"""How commands talk: answers to stdout, progress to stderr, errors as one line."""

import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

T = TypeVar("T")

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
progress: Final = Console(stderr=True, highlight=False)


class Answer:
    """Where a command's answer goes. Only answers reach stdout, also when Ray or a child prints something."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        sys.stdout.flush()
        self._out: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def object(self, value: Any, text: "str | Table | None" = None) -> None:
        """One answer: JSON on one line, or for a person `text` (default: the fields, a line each)."""
        if self.as_json:
            self._write(json.dumps(value, default=_plain, ensure_ascii=False))
        elif isinstance(text, str):
            self._write(text)
        elif text is not None:
            self._console().print(text)
        else:
            self._write("\n".join(f"{key}: {_flat(item)}" for key, item in dict(value).items()))

    def rows(self, rows: Sequence[dict[str, Any]], columns: dict[str, str], empty: str) -> None:
        """A list: one JSON object a line, or a table of `columns` (key → head); `empty` if there is none."""
        if self.as_json:
            for row in rows:
                self.object(row)
        elif not rows:
            self._write(empty)
        else:
            from rich.table import Table

            table = Table(box=None, pad_edge=False, header_style="bold")
            for head in columns.values():
                table.add_column(head, overflow="fold")
            for row in rows:
                table.add_row(*(_flat(row.get(key)) for key in columns))
            self._console().print(table)

    def _console(self) -> Console:
        return Console(file=self._out, highlight=False, width=None if self._out.isatty() else 100)

    def _write(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def frame_counter() -> "Progress":
    """A running count of frames on stderr, where that is a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.completed} frames")
    return Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; SIGTERM and a closed terminal end it as Ctrl-C does, cleaned up.

    Raises:
        KeyboardInterrupt: one of the three has ended it.
    """
    import asyncio

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        for ending in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(ending, task.cancel)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _flat(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_flat(item) for item in value)
    return str(value)
