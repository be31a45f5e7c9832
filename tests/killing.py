"""Work that is killed before its n-th step, in a process of its own."""

import asyncio
import inspect
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

_kill = os.kill  # the real one: it may be a step itself


def killed_at(step: int, steps: Iterable[tuple[Any, Iterable[str]]], work: Callable[[], Any]) -> int:
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

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                _kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)

        return call

    code = 1
    try:
        for owner, names in steps:
            for name in names:
                setattr(owner, name, counted(getattr(owner, name)))
        done = work()
        if inspect.isawaitable(done):
            asyncio.run(_awaited(done))
        code = 0
    finally:
        os._exit(code)


def code_of(pid: int) -> int:
    """Wait for a child; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _awaited(done: Any) -> None:
    await done
