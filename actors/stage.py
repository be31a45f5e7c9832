"""Putting actors on the cluster: their names, their options, and how they are stopped."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from actors.cluster import Cluster, Node
from actors.errors import ActorFailed
from actors.loop import LoopActor
from actors.remote import RemoteActor

log = logging.getLogger(__name__)


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
