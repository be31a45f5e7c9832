"""A lease and its sandbox: acquired in the ledger, placed on a node, made by its host; and the way back."""

import asyncio
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.faces import HostFace, LeaseRequest, Placement, SandboxOrder
from actors.noticing import note_rest
from leases import Acquired, Cause, Lease, LeaseEnded, LeaseEnding, LeaseStatus, Ledger, SandboxState, Why

DESTROY_TIMEOUT_S: Final = 30.0
SETTLE_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What every new lease is given for; durations in milliseconds. `max_ttl_ms` None is no limit."""

    tier: str
    ttl_ms: int
    max_ttl_ms: int | None
    sleep_after_ms: int


class Placing:
    """Gives leases their sandboxes.

    Args:
        ledger: where the intent is written before anything exists.
        host_of: gives the host of a node.
        locks: one per lease; whoever touches its sandbox holds it.
        terms: of new leases.
        wake: is called when something waits to be destroyed.
    """

    def __init__(
        self,
        ledger: Ledger,
        host_of: Callable[[str], HostFace],
        locks: MutableMapping[str, asyncio.Lock],
        terms: LeaseTerms,
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._host_of, self._locks = ledger, host_of, locks
        self._terms, self._wake = terms, wake

    async def acquire(self, request: LeaseRequest) -> Placement:
        """A lease with a live sandbox on the agent's node; idempotent.

        Raises:
            BudgetExceeded: it would be new or woken, and the agent has used up its month.
        """
        acquired = await self._acquired(request)
        self._wake()
        async with self._locks[acquired.lease.id]:
            lease = self._live(acquired.lease.id, acquired.lease.epoch)
            directory = await self._have_sandbox(lease, request.node_id)
        return self._placement(self._live(lease.id, lease.epoch), directory, is_new=acquired.is_new)

    async def recover(self, lease_id: str, epoch: int, *, why: Why = Why.USED) -> Placement:
        """A live sandbox for a live lease whose sandbox has died or sleeps; `why` it wakes, if it does.

        Raises:
            BudgetExceeded: it sleeps, and the agent has used up its month.
        """
        async with self._locks[lease_id]:
            lease = self._live(lease_id, epoch)
            directory = await self._have_sandbox(lease, lease.node_id or "", why)
        return self._placement(self._live(lease_id, epoch), directory, is_new=False)

    async def resume(self, lease: Lease) -> Placement:
        """A live lease as it is: its sandbox is had alive if the lease is awake, and left asleep if not."""
        if lease.status is not LeaseStatus.SLEEPING:
            return await self.recover(lease.id, lease.epoch)
        node_id = (self._ledger.host_of(lease) or lease).node_id
        seen = await self._host_of(node_id or "").find(lease.sandbox_id)
        return self._placement(lease, seen.directory, is_new=False)

    async def _acquired(self, request: LeaseRequest) -> Acquired:
        """Acquire in the ledger; waits while the sandbox of the lease before is still being destroyed."""
        terms = self._terms
        image = await self._host_of(request.node_id).image(request.environment_type)
        deadline = time.monotonic() + DESTROY_TIMEOUT_S
        while True:
            try:
                return self._ledger.acquire(
                    request.agent_did,
                    request.environment_id,
                    request.environment_type,
                    authority_did=request.authority_did,
                    ttl_ms=terms.ttl_ms,
                    max_ttl_ms=terms.max_ttl_ms,
                    sleep_after_ms=terms.sleep_after_ms,
                    tier=terms.tier,
                    image=image,
                    share_with=request.share_with,
                )
            except LeaseEnding:
                if time.monotonic() > deadline:
                    raise
                self._wake()
                await asyncio.sleep(SETTLE_POLL_S)

    def _live(self, lease_id: str, epoch: int) -> Lease:
        lease = self._ledger.get(lease_id)
        if not lease.is_live or lease.epoch != epoch:
            raise LeaseEnded(lease_id, lease.status, lease.ended_by)
        return lease

    async def _have_sandbox(self, lease: Lease, node_id: str, why: Why = Why.USED) -> Path:
        """Have the lease's sandbox made, or found alive: its own, or its host's."""
        host = self._ledger.host_of(lease)
        if host is None:
            return await self._have_own(lease, node_id, why)
        self._ledger.check_wake(lease.id, lease.epoch)
        try:
            async with self._locks[host.id]:  # a host is nobody's guest: no two wait for each other
                host = self._ledger.host_of(lease) or host
                if host.status is LeaseStatus.DESTROYED:
                    raise LeaseEnded(host.id, host.status, host.ended_by)
                directory = await self._have_own(host, host.node_id or node_id, why)
        except Exception:
            if lease.last_turn is None:
                self._ledger.expire(lease.id, Cause.LOST)
                self._wake()
            raise
        self._ledger.wake(lease.id, lease.epoch, why=why)
        return directory

    async def _have_own(self, lease: Lease, node_id: str, why: Why) -> Path:
        """Have the lease's own sandbox made, or found alive. The intent is in the ledger first."""
        node_id = lease.node_id or node_id
        name = lease.sandbox_id
        if lease.node_id is not None:  # it may have been put away by its node, and nobody was told
            seen = await self._host_of(node_id).find(name)
            if not seen.alive and lease.status is LeaseStatus.ACTIVE:
                note_rest(self._ledger, lease, seen)
        self._ledger.check_wake(lease.id, lease.epoch)
        if lease.node_id is None:
            self._ledger.place(lease.id, lease.epoch, sandbox_id=name, node_id=node_id)
        order = SandboxOrder(
            name=name,
            lease_id=lease.id,
            epoch=lease.epoch,
            agent_did=lease.agent_did,
            environment_id=lease.environment_id,
            environment_type=lease.environment_type,
        )
        try:
            directory = await self._host_of(node_id).create(order)
        except Exception:
            self._ledger.sandbox_state(name, SandboxState.FAILED, epoch=lease.epoch)
            if lease.last_turn is None:  # it never worked: no lease stays behind without a sandbox
                self._ledger.expire(lease.id, Cause.LOST)
                self._wake()
            raise
        with self._ledger.atomic():
            self._ledger.sandbox_state(name, SandboxState.RUNNING, epoch=lease.epoch)
            self._ledger.wake(lease.id, lease.epoch, why=why)
        return directory

    def _placement(self, lease: Lease, directory: Path, *, is_new: bool) -> Placement:
        host = self._ledger.host_of(lease)
        return Placement(
            lease_id=lease.id,
            epoch=lease.epoch,
            environment_id=lease.environment_id,
            environment_type=lease.environment_type,
            authority_did=lease.authority_did,
            node_id=(host or lease).node_id or "",
            directory=directory,
            last_turn=lease.last_turn or 0,
            is_new=is_new,
            is_awake=lease.status is LeaseStatus.ACTIVE,
            host_epoch=None if host is None else host.epoch,
        )
