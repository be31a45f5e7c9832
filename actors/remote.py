"""Calling an actor by its name, through its restarts, with a deadline."""

import asyncio
import random
from pathlib import Path
from typing import Any, Final

from actors.errors import ActorSilent
from actors.faces import LeaseRequest, Names, Placement, SandboxOrder, SandboxSeen

CALL_TIMEOUT_S: Final = 60.0  # a restart takes about 2 s; creating a sandbox on a busy machine may take 10
SUSPEND_TIMEOUT_S: Final = 600.0  # a workspace of gigabytes is compressed and written
RETRY_S: Final = (0.05, 0.5)  # waits between tries while an actor restarts, with full jitter


class RemoteActor:
    """An actor by name. A call that meets a restart is repeated, so only repeatable methods may be called.

    Errors that the method raises arrive as themselves; ActorSilent when there was no answer in time.
    """

    def __init__(self, name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._handle: Any = None

    async def call(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        """Call `method(*args)` on the actor and return what it returns."""
        from ray.exceptions import RayActorError

        limit = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(limit):
                wait = RETRY_S[0]
                while True:
                    try:
                        return await getattr(await self._find(), method).remote(*args)
                    except (RayActorError, _NameUnknown):
                        self._handle = None
                    await asyncio.sleep(random.uniform(0, wait))  # jitter only: no result depends on it
                    wait = min(wait * 2, RETRY_S[1])
        except TimeoutError:
            raise ActorSilent(self.name, method, limit) from None

    async def _find(self) -> Any:
        if self._handle is None:
            import ray

            try:
                self._handle = await asyncio.to_thread(ray.get_actor, self.name)
            except ValueError:
                raise _NameUnknown(self.name) from None
        return self._handle


class _NameUnknown(Exception):
    """No actor of this name lives now."""


class RemoteSupervisor:
    """The supervisor over Ray; see `SupervisorFace` for what each method promises."""

    def __init__(self) -> None:
        self._actor = RemoteActor("supervisor")

    async def acquire(self, request: LeaseRequest) -> Placement:
        """See SupervisorFace."""
        return _placement(await self._actor.call("acquire", request))

    async def recover(self, lease_id: str, epoch: int) -> Placement:
        """See SupervisorFace."""
        return _placement(await self._actor.call("recover", lease_id, epoch))

    async def renew(self, lease_id: str, epoch: int, last_turn: int, cursor: int) -> bool:
        """See SupervisorFace."""
        return bool(await self._actor.call("renew", lease_id, epoch, last_turn, cursor))

    async def live_leases(self, agent_did: str) -> list[Placement]:
        """See SupervisorFace."""
        return [_placement(placement) for placement in await self._actor.call("live_leases", agent_did)]

    async def cursor(self, name: str) -> int | None:
        """See SupervisorFace."""
        seq = await self._actor.call("cursor", name)
        return None if seq is None else int(seq)

    async def save_cursor(self, name: str, seq: int) -> None:
        """See SupervisorFace."""
        await self._actor.call("save_cursor", name, seq)

    async def count(self, name: str) -> None:
        """See SupervisorFace."""
        await self._actor.call("count", name)


class RemoteHost:
    """A node's host over Ray; see `HostFace` for what each method promises."""

    def __init__(self, node_id: str) -> None:
        self._actor = RemoteActor(host_name(node_id))

    async def image(self, environment_type: str) -> str:
        """See HostFace."""
        return str(await self._actor.call("image", environment_type))

    async def create(self, order: SandboxOrder) -> Path:
        """See HostFace."""
        return Path(await self._actor.call("create", order))

    async def suspend(self, name: str, idle_ms: int) -> bool:
        """See HostFace."""
        return bool(await self._actor.call("suspend", name, idle_ms, timeout_s=SUSPEND_TIMEOUT_S))

    async def destroy(self, name: str) -> None:
        """See HostFace."""
        await self._actor.call("destroy", name)

    async def list(self) -> list[SandboxSeen]:
        """See HostFace."""
        return list(await self._actor.call("list"))

    async def find(self, name: str) -> SandboxSeen:
        """See HostFace."""
        seen = await self._actor.call("find", name)
        assert isinstance(seen, SandboxSeen)
        return seen

    async def kept(self) -> Names:
        """See HostFace."""
        return list(await self._actor.call("kept"))

    async def prewarm(self, environment_type: str, count: int) -> int:
        """See HandledHost."""
        return int(await self._actor.call("prewarm", environment_type, count, timeout_s=SUSPEND_TIMEOUT_S))

    async def pause(self, name: str) -> None:
        """See HandledHost."""
        await self._actor.call("pause", name)

    async def put_to_sleep(self, name: str) -> None:
        """See HandledHost."""
        await self._actor.call("put_to_sleep", name, timeout_s=SUSPEND_TIMEOUT_S)

    async def fork(self, source: str, order: SandboxOrder) -> Path:
        """See HandledHost."""
        return Path(await self._actor.call("fork", source, order, timeout_s=SUSPEND_TIMEOUT_S))


def host_name(node_id: str) -> str:
    """The actor name of a node's host."""
    return f"host:{node_id}"


def _placement(value: object) -> Placement:
    assert isinstance(value, Placement)
    return value
