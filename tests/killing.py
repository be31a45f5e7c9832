"""Work that is killed in a process of its own: before its n-th step, or where it changes something."""

import asyncio
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Steps = Iterable[tuple[Any, Iterable[str]]]
Place = tuple[
    str, ...
]  # what is about to be done, and the lines of ours that lead to it, the innermost first

_kill = os.kill  # the real one: it may be a step itself
_OURS = tuple(str(Path(__file__).parents[1] / name) + os.sep for name in ("sandboxes", "actors", "leases"))
_WRITES = os.O_WRONLY | os.O_RDWR
_ENTRIES = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "os.chown")
_MORE = ("os.link", "os.symlink", "os.posix_spawn", "subprocess.Popen", "socket.bind", "socket.sendmsg")


def killed_at(step: int, steps: Steps, work: Callable[[], Any]) -> int:
    """Do some work in a child that kills itself before its n-th step.

    Args:
        step: counted from 1; where there are fewer, the work comes to its end.
        steps: owners, and the names of their functions or methods of which each call is a step.
        work: what it returns is awaited, if it can be.

    Returns:
        the child's exit code: -9 if it was killed, 0 if the work came to its end, 1 if it failed.
    """
    pid = os.fork()
    if pid:
        return code_of(pid)
    count = 0

    def take(_: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            _kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        _watch_calls(steps, take)
        done = work()
        if inspect.isawaitable(done):
            asyncio.run(_awaited(done))
        code = 0
    finally:
        os._exit(code)


def places(
    prepare: Callable[[], Awaitable[T]], work: Callable[[T], Awaitable[object]], more: Steps = ()
) -> list[Place]:
    """Do some work in a child; return where it changed something, each place once, in this order.

    A place is a change of a file, a signal, a process begun, or a call of what `more` names (for what the
    interpreter's audit events do not tell: a mount, a request, a row of a data base), with the lines of ours
    that led to it. A loop is one place.

    Args:
        prepare: done before, unwatched.
        work: gets what `prepare` returned.
        more: as the steps of `killed_at`.
    """
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        seen: dict[Place, None] = {}

        def tell() -> None:
            with open(write_fd, "w", encoding="utf-8") as answer:
                json.dump(list(seen), answer)

        _run(prepare, work, more, lambda place: seen.setdefault(place), tell)
    os.close(write_fd)
    with open(read_fd, encoding="utf-8") as answer:
        told = answer.read()
    assert code_of(pid) == 0, "the work fails by itself"
    return [tuple(place) for place in json.loads(told)]


def killed_before(
    place: Place,
    prepare: Callable[[], Awaitable[T]],
    work: Callable[[T], Awaitable[object]],
    more: Steps = (),
) -> int:
    """Do some work in a child that kills itself when it comes to a place; return as `killed_at` does."""
    pid = os.fork()
    if not pid:

        def come(seen: Place) -> None:
            if seen == place:
                _kill(os.getpid(), signal.SIGKILL)

        _run(prepare, work, more, come, lambda: None)
    return code_of(pid)


def some_of(found: Sequence[Place], count: int) -> list[Place]:
    """Return so many of some places, evenly spread over the stages of the work.

    A stage is what one file of ours does at a time; its last place is taken, which mostly is what makes all
    before it count: a rename, a commit, a start.
    """
    found = [list(stage)[-1] for _, stage in groupby(found, key=_stage)]
    if len(found) <= count:
        return found
    return [found[(2 * number + 1) * len(found) // (2 * count)] for number in range(count)]


def _stage(place: Place) -> str:
    return place[1].rpartition(":")[0] if len(place) > 1 else place[0]


def code_of(pid: int) -> int:
    """Wait for a child; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run(
    prepare: Callable[[], Awaitable[T]],
    work: Callable[[T], Awaitable[object]],
    more: Steps,
    come: Callable[[Place], None],
    after: Callable[[], None],
) -> NoReturn:
    """Do the work in this process, which is a child, and end it."""
    watched = _Watched(come)

    async def do() -> None:
        prepared = await prepare()
        watched.begin(more)
        await work(prepared)
        watched.end()

    code = 1
    try:
        asyncio.run(do())
        after()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


class _Watched:
    """Tells of every change that this process makes, before it is made."""

    def __init__(self, come: Callable[[Place], None]) -> None:
        self._come, self._pid, self._on = come, os.getpid(), False
        self._inside = threading.local()

    def begin(self, more: Steps) -> None:
        _watch_calls(more, self._note)
        sys.addaudithook(self._audit)
        self._on = True

    def end(self) -> None:
        self._on = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and _changes(event, arguments):
            self._note(event)

    def _note(self, what: str) -> None:
        if not self._on or os.getpid() != self._pid or getattr(self._inside, "yes", False):
            return
        self._inside.yes = True
        try:
            self._come((what, *_lines()))
        finally:
            self._inside.yes = False


def _changes(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event tells of a change."""
    match event:
        case "open":
            path, _, flags = arguments
            return isinstance(flags, int) and bool(flags & _WRITES) and not _is_idle_file(path)
        case "os.kill":
            return bool(arguments[1])
        case "os.mkdir":
            return not os.path.isdir(arguments[0])
        case _ if event in _ENTRIES:
            in_directory = isinstance(arguments[-1], int) and arguments[-1] >= 0
            return in_directory or isinstance(arguments[0], int) or os.path.lexists(arguments[0])
    return event in _MORE


def _is_idle_file(path: object) -> bool:
    """Whether what is opened for writing is only locked, or swallows all."""
    name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return name == os.devnull or name.endswith("lock")


def _lines() -> list[str]:
    """Where we are, as lines of ours, the innermost first."""
    frame, lines = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return lines


def _watch_calls(steps: Steps, take: Callable[[str], None]) -> None:
    """Have every call of these functions and methods told before it is made."""

    def told(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            take(name)
            return real(*arguments, **keywords)

        return call

    for owner, names in steps:
        for name in names:
            setattr(owner, name, told(getattr(owner, name), name))


async def _awaited(done: Any) -> None:
    await done
