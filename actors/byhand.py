"""What a person does with sandboxes by hand: naps, sleep, waking, warm slots, forks, guests.

Everything goes the way that it goes by itself: under the lease's lock, done by the node's host, and written
into the ledger, so that what was put to sleep by hand is not billed, and wakes for its next turn.
"""

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from typing import Final

from actors.errors import NotThere, Refused, SkyleaseError
from actors.faces import HandledHost, LeaseRequest, Report, SandboxOrder
from actors.noticing import note_rest
from actors.placing import LeaseTerms, Placing
from leases import Cause, Lease, LeaseStatus, Ledger, SandboxState, Why
from sandboxes import SandboxError

log = logging.getLogger(__name__)

AT_ONCE: Final = 4  # sandboxes put to sleep: each packs files, and a node has few processors
NAPS: Final = "waiting"  # the pool's word for a sandbox that is frozen


class ByHand:
    """See the module; `Placing` for what it is given.

    Args:
        nodes: all there are.
        placing: has a sandbox made or found alive.
    """

    def __init__(
        self,
        ledger: Ledger,
        host_of: Callable[[str], HandledHost],
        locks: MutableMapping[str, asyncio.Lock],
        terms: LeaseTerms,
        nodes: tuple[str, ...],
        placing: Placing,
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._host_of, self._locks = ledger, host_of, locks
        self._terms, self._nodes, self._placing, self._wake = terms, nodes, placing, wake

    async def prewarm(self, environment_type: str, count: int) -> list[Report]:
        """Have so many warm slots of an environment type ready on every node; what each has.

        Raises:
            SandboxError: there is no such type, or a node cannot have slots.
        """
        rows = []
        for node_id in self._nodes:
            ready = await self._host_of(node_id).prewarm(environment_type, count)
            rows.append({"node": node_id, "type": environment_type, "ready": ready, "wanted": count})
        return rows

    async def pause(self, name: str) -> Report:
        """Freeze a sandbox until it is used. It keeps its memory, so its lease costs on.

        Raises:
            NotThere: no lease has a sandbox of this name.
            Refused: it sleeps.
            SandboxError: somebody uses it, or it is dead.
        """
        async with self._locks[self._owner(name).id]:
            lease = self._owner(name)
            if lease.status is not LeaseStatus.ACTIVE:
                raise Refused(f"{name} is asleep: only what is awake can be paused")
            await self._host_of(_node(lease)).pause(name)
            return _told(lease, NAPS)

    async def put_to_sleep(self, name: str) -> Report:
        """Put a sandbox to sleep, however lately it was used; one that sleeps is left asleep.

        Raises:
            NotThere: no lease has a sandbox of this name.
            SandboxError: somebody uses it, it is dead, or its files could not be kept; it stays.
        """
        async with self._locks[self._owner(name).id]:
            lease = self._owner(name)
            if lease.status is LeaseStatus.ACTIVE:
                host = self._host_of(_node(lease))
                await host.put_to_sleep(name)
                note_rest(self._ledger, lease, await host.find(name), why=Why.OPERATOR)
                log.info("asleep: somebody said so", extra={"lease": lease.id, "sandbox": name})
            return _told(self._ledger.get(lease.id), SandboxState.COLD)

    async def put_all_to_sleep(self) -> list[Report]:
        """Put every leased sandbox to sleep; each as `put_to_sleep` tells it, or with why it is awake."""
        rooms = asyncio.Semaphore(AT_ONCE)
        awake = [lease for lease in self._ledger.list(LeaseStatus.ACTIVE) if lease.node_id is not None]
        async with asyncio.TaskGroup() as tasks:
            tried = [
                tasks.create_task(self._try_sleep(lease, rooms))
                for lease in awake
                if self._ledger.host_of(lease) is None  # a guest's sandbox is put to sleep by its own lease
            ]
        return [task.result() for task in tried]

    async def _try_sleep(self, lease: Lease, rooms: asyncio.Semaphore) -> Report:
        async with rooms:
            try:
                return await self.put_to_sleep(lease.sandbox_id)
            except (SandboxError, SkyleaseError) as error:
                return {**_told(lease, SandboxState.RUNNING), "why": str(error)}

    async def wake(self, name: str) -> Report:
        """Have a sandbox awake before its next turn asks for it; it costs again.

        Raises:
            NotThere: no lease has a sandbox of this name.
            BudgetExceeded: its agent has used up the month.
            Refused, SandboxError: there is no room for it, or it cannot be made.
        """
        lease = self._owner(name)
        await self._placing.recover(lease.id, lease.epoch, why=Why.OPERATOR)
        return _told(self._ledger.get(lease.id), SandboxState.RUNNING)

    async def fork(self, name: str, agent_did: str, environment_id: str | None) -> Report:
        """A lease for an agent, with a sandbox of its own that begins with the files of another.

        It has the terms of a new lease, and the conditions and the authority of the other. One that fails
        leaves a lease that has ended.

        Args:
            name: of the sandbox whose files it gets, awake and idle or asleep.
            agent_did: whose it is, and whose /data.
            environment_id: which environment it is for; None: the other's.

        Raises:
            NotThere: no lease has a sandbox of this name.
            Refused: the agent has a lease in that environment, or there is no room.
            BudgetExceeded: the agent has used up the month.
            SandboxError: somebody uses the source, or the new one cannot be made.
        """
        async with self._locks[self._owner(name).id]:
            source = self._owner(name)
            lease = self._new_lease(source, agent_did, environment_id or source.environment_id)
            async with self._locks[lease.id]:  # nobody waits for it who holds another's
                await self._make_fork(source, lease)
            return {**_told(self._ledger.get(lease.id), SandboxState.RUNNING), "forked_from": name}

    async def share(self, name: str, agent_did: str, environment_id: str | None) -> Report:
        """A lease for an agent in a sandbox that is another's, as a sub-agent has it in its parent's.

        It has an end of its own; the sandbox is billed once, and goes with the last lease on it.

        Args:
            name: of the sandbox; it is woken if it sleeps.
            agent_did: whose the lease is.
            environment_id: which environment it is for; None: the other's.

        Raises:
            NotThere: no lease has a sandbox of this name.
            Refused: the agent has a lease in that environment.
            BudgetExceeded: one of the two agents has used up the month.
            SandboxError: it sleeps, and cannot be woken.
        """
        host = self._owner(name)
        environment_id = environment_id or host.environment_id
        if any(held.environment_id == environment_id for held in self._ledger.held_by(agent_did)):
            raise _holds(agent_did, environment_id)
        request = LeaseRequest(
            agent_did=agent_did,
            environment_id=environment_id,
            environment_type=host.environment_type,
            authority_did=host.authority_did,
            node_id=_node(host),
            share_with=(host.id, host.epoch),
        )
        placed = await self._placing.acquire(request)
        told = _told(self._ledger.get(placed.lease_id), SandboxState.RUNNING)
        return {**told, "node": placed.node_id, "shared_with": host.id}

    def _new_lease(self, source: Lease, agent_did: str, environment_id: str) -> Lease:
        acquired = self._ledger.acquire(
            agent_did,
            environment_id,
            source.environment_type,
            authority_did=source.authority_did,
            ttl_ms=self._terms.ttl_ms,
            max_ttl_ms=self._terms.max_ttl_ms,
            sleep_after_ms=self._terms.sleep_after_ms,
            expiry_conditions=source.expiry_conditions,
            tier=source.tier,
            image=source.image,
        )
        if not acquired.is_new:
            raise _holds(agent_did, environment_id)
        return acquired.lease

    async def _make_fork(self, source: Lease, lease: Lease) -> None:
        order = SandboxOrder(
            name=lease.sandbox_id,
            lease_id=lease.id,
            epoch=lease.epoch,
            agent_did=lease.agent_did,
            environment_id=lease.environment_id,
            environment_type=lease.environment_type,
        )
        node_id = _node(source)
        self._ledger.place(lease.id, lease.epoch, sandbox_id=lease.sandbox_id, node_id=node_id)
        try:
            await self._host_of(node_id).fork(source.sandbox_id, order)
        except BaseException:
            self._ledger.sandbox_state(lease.sandbox_id, SandboxState.FAILED, epoch=lease.epoch)
            self._ledger.expire(lease.id, Cause.LOST)
            self._wake()
            raise
        self._ledger.sandbox_state(lease.sandbox_id, SandboxState.RUNNING, epoch=lease.epoch)
        log.info("forked", extra={"lease": lease.id, "source": source.sandbox_id})

    def _owner(self, name: str) -> Lease:
        """The live lease that a sandbox was made for."""
        lease = self._ledger.lease_of(name)
        if lease is None or lease.sandbox_id != name:
            raise NotThere(f"no lease has a sandbox {name}: `skylease sandboxes list` shows those there are")
        if not lease.is_live:
            raise NotThere(f"the lease of {name} is over ({lease.status} by {lease.ended_by})")
        return lease


def _holds(agent_did: str, environment_id: str) -> Refused:
    remedy = "name another --environment, or end that with `skylease leases end`"
    return Refused(f"{agent_did} has a lease in {environment_id}: {remedy}")


def _node(lease: Lease) -> str:
    assert lease.node_id is not None  # `_owner` gives leases that were placed
    return lease.node_id


def _told(lease: Lease, state: str) -> Report:
    return {
        "sandbox": lease.sandbox_id,
        "lease": lease.id,
        "status": lease.status,
        "state": state,
        "node": lease.node_id,
    }
