"""Putting actors on the cluster: their names, their options, and the loop that each of them keeps running.

An actor's method that never returns would block every graceful exit, so the loop is a task that the actor
owns.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from actors.cluster import Cluster, Node
from actors.errors import ActorFailed
from actors.remote import RemoteActor

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


class Stage:
    """Starts actors by name and stops them again, in reverse order."""

    def __init__(self, cluster: Cluster, start_timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, start_timeout_s
        self._handles: dict[str, Any] = {}  # kept: an actor that is not detached lives as long as its handle

    async def start(self, name: str, actor_class: type[LoopActor], *args: Any, node: Node) -> RemoteActor:
        """Start an actor on a node, or find the one of that name; returns once it is ready.

        Raises:
            ActorFailed: it cannot start, and why.
            ActorSilent: it did not answer at all.
        """
        import ray

        remote_class = ray.remote(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,  # RemoteActor repeats calls itself, by name and with a deadline
            resources=node.pin,
        )(actor_class)
        options = remote_class.options(name=name, get_if_exists=True, lifetime=self._cluster.lifetime)
        handle = self._handles[name] = await asyncio.to_thread(options.remote, *args)
        await _check_created(name, handle)
        actor = RemoteActor(name)
        answer = await actor.call("wait_ready", self._timeout_s, timeout_s=self._timeout_s + 5)
        if not answer["ready"]:
            if answer["failures"]:
                raise ActorFailed(name, answer["failures"][-1])
            waited = answer["waiting_for"] or "something it does not tell"
            raise ActorFailed(name, f"it waited {self._timeout_s:g} s for {waited}")
        return actor

    async def stop(self, name: str, timeout_s: float = 5.0) -> None:
        """Stop an actor's loop, then the actor; one that is gone already is fine."""
        import ray

        try:
            handle = await asyncio.to_thread(ray.get_actor, name)
        except ValueError:
            return
        await _quietly(lambda: handle.stop.remote(), timeout_s)
        await asyncio.to_thread(ray.kill, handle, no_restart=True)
        self._handles.pop(name, None)

    async def stop_all(self) -> None:
        """Stop everything this stage started, last first."""
        for name in reversed(list(self._handles)):
            await self.stop(name)


async def _check_created(name: str, handle: Any) -> None:
    """Raise if the actor's constructor failed: Ray does not try that again, so waiting would be in vain."""
    from ray.exceptions import ActorDiedError, RayActorError

    try:
        await handle.ping.remote()
    except ActorDiedError as error:
        told = str(error).strip().splitlines()
        if any("creation task" in line for line in told):
            raise ActorFailed(name, told[-1]) from None
    except RayActorError:  # killed just now: it is restarted, and asked again by name
        log.info("actor died while it started", extra={"actor": name})


async def _quietly(call: Callable[[], Awaitable[object]], timeout_s: float) -> None:
    """Await a call whose failure means only that the actor is gone already."""
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(timeout_s):
            await call()
    except (RayError, TimeoutError):
        log.info("actor was gone before it was stopped")


def _one_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).splitlines()[0]
