"""The supervisor: keeps the ledger, hears the endings, has sandboxes made and destroyed, tells of it.

It holds no state of its own: the ledger is the truth, and every second a loop of named steps makes the
world agree with it. So it can be killed anywhere. Ledger calls are synchronous and atomic, which keeps an
async actor in order.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors import farewell, records
from actors.errors import Refused
from actors.events import RecordEvent, RecordReader
from actors.faces import (
    Account,
    Endpoints,
    HostFace,
    LeaseRequest,
    Placement,
    Report,
    SandboxOrder,
    SandboxSeen,
)
from actors.loop import LoopActor
from actors.remote import RemoteHost
from firehose import Subscriber, XrpcClient
from leases import (
    Acquired,
    Cause,
    Lease,
    LeaseEnded,
    LeaseEnding,
    LeaseEvent,
    LeaseStatus,
    Ledger,
    SandboxState,
    UnknownLease,
)
from sandboxes import runtime_name

log = logging.getLogger(__name__)

CURSOR: Final = "supervisor"
TICK_S: Final = 1.0  # between rounds of the steps when nothing wakes them earlier
RECONCILE_EVERY_S: Final = 10.0
DESTROY_TIMEOUT_S: Final = 30.0
HEARD: Final = (*records.ENDINGS, records.GAME_TURN, records.ENV_CREATED)
PUBLISH_BATCH: Final = 100
SETTLE_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """Everything the supervisor starts from. `budget_hours` None is no limit; `max_ttl_ms` None likewise."""

    account: Account
    endpoints: Endpoints
    ledger: Path
    nodes: tuple[str, ...]
    tier: str
    ttl_ms: int
    max_ttl_ms: int | None
    sleep_after_ms: int
    budget_hours: float | None
    usd_per_hour: dict[str, float]
    start_cursor: int
    lexicons: Path


class Supervisor:
    """See the module. `run` goes on until cancelled; the other methods are for actors and people."""

    def __init__(
        self,
        config: SupervisorConfig,
        host_of: Callable[[str], HostFace],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._config, self._host_of = config, host_of
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._ledger = Ledger(
            config.ledger, clock=self._clock, rates=config.usd_per_hour, name_sandbox=runtime_name
        )
        if config.budget_hours is not None:
            self._ledger.set_budget(None, config.budget_hours)
        self._reader = RecordReader(config.lexicons)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._creators: dict[str, str] = {}  # environment → who created it, for counting strangers
        self._wake = asyncio.Event()
        self._reconciled = 0.0
        self._failures: dict[str, str] = {}
        self._draining = False

    # what agents call (SupervisorFace)

    async def acquire(self, request: LeaseRequest) -> Placement:
        """A lease with a live sandbox on the agent's node; idempotent."""
        if self._draining:
            raise Refused("the supervisor is shutting down: it gives no new leases")
        acquired = await self._acquired(request)
        self._wake.set()
        async with self._locks[acquired.lease.id]:
            lease = self._live(acquired.lease.id, acquired.lease.epoch)
            directory = await self._have_sandbox(lease, request.node_id)
        return _placement(self._live(lease.id, lease.epoch), directory, is_new=acquired.is_new)

    async def recover(self, lease_id: str, epoch: int) -> Placement:
        """A live sandbox for a live lease whose sandbox has died."""
        async with self._locks[lease_id]:
            lease = self._live(lease_id, epoch)
            directory = await self._have_sandbox(lease, lease.node_id or "")
        return _placement(self._live(lease_id, epoch), directory, is_new=False)

    async def renew(self, lease_id: str, epoch: int, last_turn: int, cursor: int) -> bool:
        """Slide the expiry and remember how far the agent is, in one transaction."""
        lease = self._ledger.get(lease_id)
        return self._ledger.renew(
            lease_id, epoch, last_turn=last_turn, cursor=(f"agent:{lease.agent_did}", cursor)
        )

    async def live_leases(self, agent_did: str) -> list[Placement]:
        """What an agent still holds, each with a live sandbox."""
        held = [lease for lease in self._ledger.list() if lease.is_live and lease.agent_did == agent_did]
        placed = [lease for lease in held if lease.node_id is not None]
        return [await self.recover(lease.id, lease.epoch) for lease in placed]

    async def cursor(self, name: str) -> int | None:
        """The firehose position saved under this name."""
        return self._ledger.cursor(name)

    async def save_cursor(self, name: str, seq: int) -> None:
        """Save a firehose position."""
        self._ledger.save_cursor(name, seq)

    async def count(self, name: str) -> None:
        """Count something that was refused."""
        self._ledger.count(name)

    # what people call

    async def status(self) -> Report:
        """Leases by status, refusals and failing steps; JSON-ready."""
        leases = self._ledger.list()
        return {
            "leases": {status: sum(lease.status == status for lease in leases) for status in _STATUSES},
            "live": [_shown(lease) for lease in leases if lease.is_live],
            "counters": dict(self._ledger.counters()),
            "failing_steps": dict(self._failures),
            "unpublished": len(self._ledger.unpublished(PUBLISH_BATCH)),
            "cursor": self._ledger.cursor(CURSOR),
            "draining": self._draining,
        }

    async def describe(self) -> Report:
        """What somebody needs to work with the running system."""
        config = self._config
        return {
            "did": config.account.did,
            "endpoints": config.endpoints,
            "nodes": list(config.nodes),
            "data_dir": str(config.ledger.parent),
        }

    async def leases(self, environment_id: str | None = None) -> list[Report]:
        """Leases of one environment, or all; JSON-ready."""
        return [_shown(lease) for lease in self._ledger.list(environment_id=environment_id)]

    async def end_environment(self, environment_id: str) -> Report:
        """End what is still held in an environment whose players are gone; `{ended, left}`."""
        live = [lease for lease in self._ledger.list(environment_id=environment_id) if lease.is_live]
        for lease in live:
            self._ledger.expire(lease.id, Cause.OPERATOR)
        return await self._settle(len(live), environment_id, DESTROY_TIMEOUT_S)

    async def end(self, lease_id: str, cause: str = Cause.OPERATOR) -> None:
        """End a lease by hand."""
        self._ledger.expire(lease_id, cause)
        self._wake.set()

    async def drain(self, timeout_s: float) -> Report:
        """End every lease and wait until nothing of any sandbox is left; nothing new starts after.

        Returns:
            `{ended, left}`: leases ended now, and sandboxes that could not be destroyed in time.
        """
        self._draining = True
        live = [lease for lease in self._ledger.list() if lease.is_live]
        for lease in live:
            self._ledger.expire(lease.id, Cause.SHUTDOWN)
        return await self._settle(len(live), None, timeout_s)

    async def _settle(self, ended: int, environment_id: str | None, timeout_s: float) -> Report:
        """Wait until what has ended is destroyed and told."""

        def left() -> int:
            pending = self._ledger.pending_destroy()
            return sum(environment_id in (None, lease.environment_id) for lease in pending)

        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                while left() or self._ledger.unpublished(1):
                    await asyncio.sleep(SETTLE_POLL_S)
        except TimeoutError:
            log.error("endings not finished in time", extra={"left": left()})
        return {"ended": ended, "left": left()}

    # the loop

    async def run(self, ready: Callable[[], None]) -> None:
        """Hear and act until cancelled; calls `ready` once it can be asked."""
        endpoints, account = self._config.endpoints, self._config.account
        async with XrpcClient(endpoints.pds_url) as xrpc, asyncio.TaskGroup() as tasks:
            await xrpc.login(account.did, account.password)
            tasks.create_task(self._listen(), name="listen")
            ready()
            while True:
                for step in (self._sweep_ttl, self._sweep_budgets, self._finish_endings, self._reconcile):
                    await self._fenced(step.__name__.strip("_"), step())
                await self._fenced("publish", self._publish(xrpc))
                await self._until_woken()

    async def _fenced(self, name: str, step: Any) -> None:
        try:
            await step
            self._failures.pop(name, None)
        except Exception as error:  # noqa: BLE001  one failing step must not stop the others; shown by status
            if self._failures.get(name) != str(error):
                log.warning("step failed", extra={"step": name, "error": str(error)})
            self._failures[name] = str(error)

    async def _until_woken(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _sweep_ttl(self) -> None:
        for lease in self._ledger.expired():
            self._ledger.expire(lease.id, Cause.TTL)

    async def _sweep_budgets(self) -> None:
        for lease in self._ledger.over_budget():
            self._ledger.expire(lease.id, Cause.BUDGET)

    async def _finish_endings(self) -> None:
        """Destroy what has ended; a lease is `destroyed` only once its host says that nothing is left."""
        async with asyncio.TaskGroup() as tasks:
            for lease in self._ledger.pending_destroy():
                if not self._said_farewell(lease):
                    continue
                tasks.create_task(self._fenced(f"destroy {lease.id}", self._destroy(lease)))

    def _said_farewell(self, lease: Lease) -> bool:
        """Whether an agent that was told of its end has had the time to note it in its sandbox."""
        condition_ended = lease.ended_by in lease.expiry_conditions
        if lease.environment_type not in farewell.ENVIRONMENT_TYPES or not condition_ended:
            return True
        left_s = farewell.GRACE_S - (self._clock() - (lease.ended_at or 0)) / 1000
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._wake.set)
        return left_s <= 0

    async def _destroy(self, lease: Lease) -> None:
        async with self._locks[lease.id], asyncio.timeout(DESTROY_TIMEOUT_S):
            if lease.node_id is not None:
                await self._host_of(lease.node_id).destroy(lease.sandbox_id)
                self._ledger.sandbox_state(lease.sandbox_id, SandboxState.DELETED, epoch=lease.epoch)
            self._ledger.destroyed(lease.id, epoch=lease.epoch)
        self._locks.pop(lease.id, None)

    async def _reconcile(self) -> None:
        """Destroy what nobody leases: a sandbox whose lease is unknown, over, or of another epoch."""
        if time.monotonic() - self._reconciled < RECONCILE_EVERY_S:
            return
        for node_id in self._config.nodes:
            host = self._host_of(node_id)
            for seen in await host.list():
                lock = self._locks[seen.lease_id]
                if (
                    lock.locked()
                ):  # being made or destroyed at this moment: the next round sees what came of it
                    continue
                # Asked under the lease's lock, not before the list: it may have been leased meanwhile.
                async with lock:
                    if not self._is_leased(seen):
                        self._ledger.count("orphan_sandboxes")
                        await host.destroy(seen.name)
        self._reconciled = time.monotonic()

    def _is_leased(self, seen: SandboxSeen) -> bool:
        """Whether a lease answers for this sandbox; one that has ended does until it is destroyed."""
        try:
            lease = self._ledger.get(seen.lease_id)
        except UnknownLease:
            return False
        ours = (lease.sandbox_id, lease.epoch) == (seen.name, seen.epoch)
        return ours and lease.status is not LeaseStatus.DESTROYED

    async def _publish(self, xrpc: XrpcClient) -> None:
        """Say on the firehose what happened to leases; the key makes a repetition the same record."""
        for event in self._ledger.unpublished(PUBLISH_BATCH):
            collection, record = self._told(event)
            lease = self._ledger.get(event.lease_id)
            key = records.lease_key(lease.environment_id, lease.agent_did, event.epoch)
            ref = await xrpc.put_record(collection, key, record)
            self._ledger.mark_published(event.id, ref.uri)

    def _told(self, event: LeaseEvent) -> tuple[str, dict[str, Any]]:
        lease = self._ledger.get(event.lease_id)
        if event.is_acquired:
            return records.LEASE_ACQUIRED, records.lease_acquired(
                environment_id=lease.environment_id,
                agent_did=lease.agent_did,
                epoch=event.epoch,
                environment_type=lease.environment_type,
                authority_did=lease.authority_did,
                conditions=lease.expiry_conditions,
                tier=lease.tier,
                ttl_ms=lease.ttl_ms,
                now_ms=event.at,
            )
        return records.LEASE_ENDED, records.lease_ended(
            environment_id=lease.environment_id,
            agent_did=lease.agent_did,
            epoch=event.epoch,
            condition=event.condition or event.cause,
            event=event.event,
            now_ms=event.at,
        )

    # the firehose

    async def _listen(self) -> None:
        saved = self._ledger.cursor(CURSOR)
        subscriber = Subscriber(
            self._config.endpoints.tap_url,
            cursor=max(self._config.start_cursor, saved or 0),
            collections=HEARD,
        )
        async for frame in subscriber.frames():
            for event in self._reader.read(frame)[1]:
                self._hear(event)

    def _hear(self, event: RecordEvent) -> None:
        """Judge one record. An ending and the position after it are one transaction."""
        environment_id = event.record["environment"]
        if event.collection == records.ENV_CREATED:
            self._creators.setdefault(environment_id, event.author_did)
        elif event.collection == records.GAME_TURN:
            if event.author_did not in self._authorities(environment_id):
                with self._ledger.atomic():
                    self._ledger.count("turn_from_stranger")
                    self._ledger.save_cursor(CURSOR, event.seq)
        else:
            with self._ledger.atomic():
                self._ledger.expire_by_condition(
                    environment_id,
                    records.condition_of(event.collection),
                    author_did=event.author_did,
                    subject_did=event.record.get("subject"),
                    event=event.uri,
                )
                self._ledger.save_cursor(CURSOR, event.seq)
            self._wake.set()

    def _authorities(self, environment_id: str) -> set[str]:
        leases = self._ledger.list(environment_id=environment_id)
        creator = self._creators.get(environment_id)
        return {lease.authority_did for lease in leases} or ({creator} if creator else set())

    # sandboxes

    async def _acquired(self, request: LeaseRequest) -> Acquired:
        """Acquire in the ledger; waits while the sandbox of the lease before is still being destroyed."""
        config = self._config
        deadline = time.monotonic() + DESTROY_TIMEOUT_S
        while True:
            try:
                return self._ledger.acquire(
                    request.agent_did,
                    request.environment_id,
                    request.environment_type,
                    authority_did=request.authority_did,
                    ttl_ms=config.ttl_ms,
                    max_ttl_ms=config.max_ttl_ms,
                    sleep_after_ms=config.sleep_after_ms,
                    tier=config.tier,
                    image=request.environment_type,
                )
            except LeaseEnding:
                if time.monotonic() > deadline:
                    raise
                self._wake.set()
                await asyncio.sleep(SETTLE_POLL_S)

    def _live(self, lease_id: str, epoch: int) -> Lease:
        lease = self._ledger.get(lease_id)
        if not lease.is_live or lease.epoch != epoch:
            raise LeaseEnded(lease_id, lease.status, lease.ended_by)
        return lease

    async def _have_sandbox(self, lease: Lease, node_id: str) -> Path:
        """Have the lease's sandbox made, or found alive. The intent is in the ledger first."""
        node_id = lease.node_id or node_id
        name = lease.sandbox_id
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
                self._wake.set()
            raise
        self._ledger.sandbox_state(name, SandboxState.RUNNING, epoch=lease.epoch)
        return directory


_STATUSES: Final = ("active", "sleeping", "expired", "destroyed")


def _placement(lease: Lease, directory: Path, *, is_new: bool) -> Placement:
    return Placement(
        lease_id=lease.id,
        epoch=lease.epoch,
        environment_id=lease.environment_id,
        environment_type=lease.environment_type,
        authority_did=lease.authority_did,
        node_id=lease.node_id or "",
        directory=directory,
        last_turn=lease.last_turn or 0,
        is_new=is_new,
    )


def _shown(lease: Lease) -> Report:
    return {
        "lease": lease.id,
        "agent": lease.agent_did,
        "environment": lease.environment_id,
        "status": lease.status,
        "epoch": lease.epoch,
        "sandbox": lease.sandbox_id,
        "node": lease.node_id,
        "last_turn": lease.last_turn,
    }


class SupervisorActor(Supervisor, LoopActor):
    """The one supervisor of the cluster, in a process of its own."""

    def __init__(self, config: SupervisorConfig) -> None:
        Supervisor.__init__(self, config, RemoteHost)
        LoopActor.__init__(self)

    async def main(self) -> None:
        """Hear and act until stopped."""
        await self.run(self.set_ready)
