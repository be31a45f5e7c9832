"""The loop that every actor keeps running, as a task it owns.

An actor's method that never returns would block every graceful exit. Kept light: every agent imports this.
"""

import asyncio
import logging
import os
import time
from typing import Any, Final

log = logging.getLogger(__name__)

MAX_FAILED_STARTS: Final = 3  # a loop that fails so often before it was ever ready will not get better
RESTART_PAUSE_S: Final = (0.2, 5.0)  # before a loop that failed runs again: doubles, reset by health
HEALTHY_S: Final = 60.0
READY_POLL_S: Final = 0.02


class LoopActor:
    """Base of every actor: runs `main` in the background, again after a failure, and answers `ping`."""

    def __init__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        self._loop_failures: list[str] = []
        self.waiting_for = ""  # what a start that takes long is waiting for, for `wait_ready`
        self._loop_ready = asyncio.Event()
        self._loop_task = asyncio.get_running_loop().create_task(self._keep_running(), name="main")

    async def main(self) -> None:
        """The loop; it calls `self.set_ready()` once the actor can be used."""
        raise NotImplementedError

    def set_ready(self) -> None:
        """From now on `wait_ready` answers."""
        self._loop_ready.set()

    async def ping(self) -> dict[str, Any]:
        """Process id, whether it is ready, and the last failures of its loop."""
        return {
            "pid": os.getpid(),
            "ready": self._loop_ready.is_set(),
            "failures": self._loop_failures[-MAX_FAILED_STARTS:],
            "waiting_for": self.waiting_for,
        }

    async def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """`ping`, once ready, failed too often or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self._loop_ready.is_set() and time.monotonic() < deadline:
            if len(self._loop_failures) >= MAX_FAILED_STARTS:
                break
            await asyncio.sleep(READY_POLL_S)
        return await self.ping()

    async def stop(self) -> None:
        """Cancel the loop and wait for it; after that the actor can be ended gracefully."""
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause = RESTART_PAUSE_S[0]
        while True:
            started = time.monotonic()
            try:
                await self.main()
                return
            except Exception as error:  # the edge of the actor: log, tell `ping`, try again
                log.exception("loop failed")
                self._loop_failures.append(_one_line(error))
            if time.monotonic() - started > HEALTHY_S:
                pause = RESTART_PAUSE_S[0]
            await asyncio.sleep(pause)
            pause = min(pause * 2, RESTART_PAUSE_S[1])


def _one_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).splitlines()[0]
