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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from actors import hearsay
from actors.budgets import AtLimit, Budgets
from actors.byhand import ByHand
from actors.endings import Endings
from actors.errors import Refused
from actors.events import RecordReader
from actors.faces import Account, Endpoints, HandledHost, LeaseRequest, Placement, Report
from actors.hearing import CURSOR, HEARD, Hearing
from actors.idle import IdleLeases
from actors.loop import LoopActor
from actors.placing import DESTROY_TIMEOUT_S, SETTLE_POLL_S, LeaseTerms, Placing
from actors.publishing import PUBLISH_BATCH, publish
from actors.remote import RemoteHost
from actors.repair import Repairs
from actors.steps import Steps
from firehose import XrpcClient
from leases import BudgetWarning, Cause, Lease, Ledger
from sandboxes import runtime_name

log = logging.getLogger(__name__)

SHOWN: Final = 500  # live leases of each status in a report; `leases` gives all, in pages
MS_PER_HOUR: Final = 3_600_000
TICK_S: Final = 1.0  # between rounds of the steps when nothing wakes them earlier


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
    jetstream_url: str | None = None  # heard as well …
    believes_unverified: bool = False  # … and its endings count
    at_limit: AtLimit = AtLimit.SLEEP
    unleased_ms: int = 14_400_000


class Supervisor:
    """See the module. `run` goes on until cancelled; the other methods are for actors and people."""

    def __init__(
        self,
        config: SupervisorConfig,
        host_of: Callable[[str], HandledHost],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._config, self._host_of = config, host_of
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._ledger = Ledger(
            config.ledger, clock=self._clock, rates=config.usd_per_hour, name_sandbox=runtime_name
        )
        if config.budget_hours is not None and config.budget_hours != self._ledger.budgets().get(""):
            self._ledger.set_budget(None, config.budget_hours)
        self._reader = RecordReader(config.lexicons)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wake = asyncio.Event()
        self._steps = Steps()
        self._draining = False
        self._wire()

    def _wire(self) -> None:
        config, ledger, host_of, locks = self._config, self._ledger, self._host_of, self._locks
        wake = self._wake.set
        terms = LeaseTerms(
            tier=config.tier,
            ttl_ms=config.ttl_ms,
            max_ttl_ms=config.max_ttl_ms,
            sleep_after_ms=config.sleep_after_ms,
        )
        self._placing = Placing(ledger, host_of, locks, terms, wake)
        self._by_hand = ByHand(ledger, host_of, locks, terms, config.nodes, self._placing, wake)
        self._idle = IdleLeases(ledger, host_of, locks)
        self._budgets = Budgets(ledger, host_of, locks, config.at_limit, wake)
        self._endings = Endings(ledger, host_of, locks, self._steps, clock=self._clock, wake=wake)
        self._repair = Repairs(
            ledger, host_of, locks, config.nodes, clock=self._clock, unleased_ms=config.unleased_ms
        )
        self._hearing = Hearing(
            ledger,
            self._reader,
            tap_url=config.endpoints.tap_url,
            start_cursor=config.start_cursor,
            wake=wake,
        )

    # what agents call (SupervisorFace)

    async def acquire(self, request: LeaseRequest) -> Placement:
        """A lease with a live sandbox on the agent's node; idempotent."""
        self._refuse_when_draining()
        return await self._placing.acquire(request)

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise Refused("the supervisor is shutting down: it gives no new leases")

    async def recover(self, lease_id: str, epoch: int) -> Placement:
        """A live sandbox for a live lease whose sandbox has died."""
        return await self._placing.recover(lease_id, epoch)

    async def renew(self, lease_id: str, epoch: int, last_turn: int, cursor: int) -> bool:
        """Slide the expiry and remember how far the agent is, in one transaction."""
        lease = self._ledger.get(lease_id)
        return self._ledger.renew(
            lease_id, epoch, last_turn=last_turn, cursor=(f"agent:{lease.agent_did}", cursor)
        )

    async def live_leases(self, agent_did: str) -> list[Placement]:
        """What an agent still holds; what sleeps is not woken for it."""
        held = self._ledger.held_by(agent_did)
        placed = [lease for lease in held if lease.node_id is not None or self._ledger.host_of(lease)]
        return [await self._placing.resume(lease) for lease in placed]

    async def set_budget(self, agent_did: str | None, hours: float | None, drop: bool = False) -> None:
        """Awake hours per month of an agent, or (None) of all without one; `drop`: the default again."""
        if drop and agent_did is not None:
            self._ledger.drop_budget(agent_did)
        else:
            self._ledger.set_budget(agent_did, hours)

    async def repair(self, dry_run: bool = False) -> list[Report]:
        """Compare the ledger with everything there is, now; what was repaired, or would be; JSON-ready."""
        return [asdict(repair) for repair in await self._repair.round(dry_run=dry_run)]

    async def cursor(self, name: str) -> int | None:
        """The firehose position saved under this name."""
        return self._ledger.cursor(name)

    async def save_cursor(self, name: str, seq: int) -> None:
        """Save a firehose position."""
        self._ledger.save_cursor(name, seq)

    async def count(self, name: str) -> None:
        """Count something that was refused."""
        self._ledger.count(name)

    # what people call (byhand.py says what each does)

    async def prewarm(self, environment_type: str, count: int) -> list[Report]:
        """Have warm slots ready on every node."""
        return await self._by_hand.prewarm(environment_type, count)

    async def pause(self, name: str) -> Report:
        """Freeze a leased sandbox."""
        return await self._by_hand.pause(name)

    async def put_to_sleep(self, name: str) -> Report:
        """Put a leased sandbox to sleep now."""
        return await self._by_hand.put_to_sleep(name)

    async def put_all_to_sleep(self) -> list[Report]:
        """Put every leased sandbox to sleep now."""
        return await self._by_hand.put_all_to_sleep()

    async def wake(self, name: str) -> Report:
        """Have a leased sandbox awake before its next turn."""
        return await self._by_hand.wake(name)

    async def fork(self, name: str, agent_did: str, environment_id: str | None = None) -> Report:
        """A new lease whose sandbox begins with the files of another."""
        self._refuse_when_draining()
        return await self._by_hand.fork(name, agent_did, environment_id)

    async def share(self, name: str, agent_did: str, environment_id: str | None = None) -> Report:
        """A new lease in the sandbox of another."""
        self._refuse_when_draining()
        return await self._by_hand.share(name, agent_did, environment_id)

    async def status(self) -> Report:
        """Leases by status, refusals and failing steps; JSON-ready."""
        live = [*self._ledger.list("active", limit=SHOWN), *self._ledger.list("sleeping", limit=SHOWN)]
        return {
            "leases": self._ledger.counts(),
            "live": [_shown(lease) for lease in sorted(live, key=lambda one: (one.leased_at, one.id))],
            "budgets": [_warned(self._ledger, warning) for warning in self._ledger.budget_warnings()],
            "counters": dict(self._ledger.counters()),
            "failing_steps": dict(self._steps.failures),
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

    async def leases(
        self, environment_id: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[Report]:
        """Leases of one environment, or all, at most `limit` and those after the id `after`; JSON-ready."""
        found = self._ledger.list(environment_id=environment_id, limit=limit, after=after)
        return [_shown(lease) for lease in found]

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
        live = [*self._ledger.list("active"), *self._ledger.list("sleeping")]
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
            tasks.create_task(self._hearing.listen(), name="listen")
            tasks.create_task(self._sweep_idle(), name="idle")
            if (url := self._config.jetstream_url) is not None:
                believes, wake = self._config.believes_unverified, self._wake.set
                heard = hearsay.listen(url, HEARD, self._reader, self._ledger, believes=believes, wake=wake)
                tasks.create_task(heard, name="hearsay")
            ready()
            while True:
                await self._round(xrpc)
                await self._until_woken()

    async def _round(self, xrpc: XrpcClient) -> None:
        steps = self._steps
        await steps.run("sweep_ttl", self._sweep_ttl())
        await steps.run("reconcile", self._repair.reconcile())
        await steps.run("finish_endings", self._endings.finish())
        await steps.run("publish", publish(self._ledger, xrpc))

    async def _until_woken(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _sweep_idle(self) -> None:
        """Beside the other steps, since keeping the files of a sandbox may take long."""
        while True:
            await self._steps.run("sweep_idle", self._idle.sweep())
            await self._steps.run("sweep_budgets", self._budgets.sweep())
            await asyncio.sleep(TICK_S)

    async def _sweep_ttl(self) -> None:
        for lease in self._ledger.expired():
            self._ledger.expire(lease.id, Cause.TTL)


def _warned(ledger: Ledger, warning: BudgetWarning) -> Report:
    hours, used_ms = ledger.budget(warning.agent_did), ledger.awake_ms(warning.agent_did)
    return {"agent": warning.agent_did, "budget_hours": hours, "used_hours": used_ms / MS_PER_HOUR}


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
