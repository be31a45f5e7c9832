"""An agent: hears the firehose, joins the environments it may, and takes its turns in a sandbox it leases.

`Agent` is a plain class; an actor hosts it (`actors.stage`). It imports little: every agent is a process.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from actors import farewell, records
from actors.errors import Refused
from actors.events import RecordEvent, RecordReader
from actors.faces import Account, Endpoints, LeaseRequest, Placement, Report, SupervisorFace
from actors.loop import LoopActor
from actors.remote import RemoteSupervisor
from actors.seat import Player, Seat
from firehose import Subscriber, XrpcClient
from leases import LeaseError
from sandboxes import StaleEpoch

log = logging.getLogger(__name__)

HEARD: Final = (records.ENV_CREATED, records.GAME_TURN, *records.ENDINGS, records.LEASE_ENDED)
QUEUE_LIMIT: Final = 1024  # turns waiting in one environment; it publishes one at a time, so more is nonsense


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Everything an agent starts from; a restarted one starts from the same.

    `authorities` are the DIDs whose environments it joins; `start_cursor` the firehose position from which
    it has to hear; `environment_types` what it can play; `seed` makes the scripted player deterministic.
    `join_at_turn`: it joins an environment once this turn is asked there; 1: as soon as it is invited.
    """

    account: Account
    endpoints: Endpoints
    supervisor_did: str
    authorities: tuple[str, ...]
    environment_types: tuple[str, ...]
    node_id: str
    start_cursor: int
    seed: int
    turn_timeout_s: float
    lexicons: Path
    join_at_turn: int = 1


class Agent:
    """One identity that plays. `run` goes on until it is cancelled."""

    def __init__(
        self, config: AgentConfig, supervisor: SupervisorFace, clock: Callable[[], int] | None = None
    ) -> None:
        self._config, self._supervisor = config, supervisor
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._player = Player(did=config.account.did, seed=config.seed, turn_timeout_s=config.turn_timeout_s)
        self._reader = RecordReader(config.lexicons)
        self._seats: dict[str, _Table] = {}
        self._finished: list[Seat] = []
        self._invitations: dict[str, RecordEvent] = {}  # to environments that we join later
        self._pending: set[int] = set()  # firehose positions heard but not yet dealt with
        self._heard = 0

    async def run(self, ready: Callable[[], None]) -> None:
        """Hear and play until cancelled; calls `ready` once it listens."""
        config = self._config
        self._seats.clear()
        self._pending.clear()
        self._invitations.clear()
        saved = await self._supervisor.cursor(f"agent:{config.account.did}")
        self._heard = max(config.start_cursor, saved or 0)
        async with XrpcClient(config.endpoints.pds_url) as xrpc, asyncio.TaskGroup() as tasks:
            await xrpc.login(config.account.did, config.account.password)
            for placement in await self._supervisor.live_leases(config.account.did):
                self._sit(placement, xrpc, tasks, resumed=True)
            subscriber = Subscriber(
                config.endpoints.tap_url,
                cursor=self._heard,
                dids=(*config.authorities, config.supervisor_did),
                collections=HEARD,
            )
            ready()
            async for frame in subscriber.frames():
                seq, events = self._reader.read(frame)
                for event in events:
                    await self._hear(event, xrpc, tasks)
                self._heard = max(self._heard, seq or 0)

    async def report(self) -> Report:
        """Turn durations in ms and counts since this process started."""
        seats = [*self._finished, *(table.seat for table in self._seats.values())]
        return {
            "did": self._config.account.did,
            "turn_ms": [ms for seat in seats for ms in seat.turn_ms],
            "skipped": sum(seat.skipped for seat in seats),
            "invalid_records": self._reader.invalid,
        }

    def _cursor(self) -> int:
        """Everything up to here is dealt with."""
        return min(self._pending) - 1 if self._pending else self._heard

    async def _hear(self, event: RecordEvent, xrpc: XrpcClient, tasks: asyncio.TaskGroup) -> None:
        environment_id = event.record.get("environment", "")
        table = self._seats.get(environment_id)
        if event.collection == records.ENV_CREATED:
            if table is None and self._invited(event):
                await self._accept(event, xrpc, tasks)
        elif table is None:
            await self._come_late(event, xrpc, tasks)
        elif event.collection == records.LEASE_ENDED:
            if event.author_did == self._config.supervisor_did and self._is_me(event.record["subject"]):
                table.leave()
        elif event.author_did != table.seat.authority_did:
            await self._supervisor.count("agent_heard_stranger")
        elif event.collection == records.GAME_TURN:
            if self._is_me(event.record["player"]):
                self._pending.add(event.seq)
                table.turns.put_nowait((event.seq, event.record))
        elif self._is_me(event.record.get("subject", self._config.account.did)):
            table.leave(farewell.notice_of(event.collection, event.record))

    def _is_me(self, did: str) -> bool:
        return did == self._config.account.did

    def _invited(self, event: RecordEvent) -> bool:
        config = self._config
        return (
            event.author_did in config.authorities
            and event.rkey == event.record["environment"]
            and event.record["type"] in config.environment_types
            and config.account.did in event.record["players"]
        )

    async def _accept(self, invitation: RecordEvent, xrpc: XrpcClient, tasks: asyncio.TaskGroup) -> None:
        if self._config.join_at_turn > 1:
            self._invitations[invitation.record["environment"]] = invitation
            self._pending.add(invitation.seq)
        else:
            await self._join(invitation, xrpc, tasks)

    async def _come_late(self, event: RecordEvent, xrpc: XrpcClient, tasks: asyncio.TaskGroup) -> None:
        """Join an environment that invited us earlier, if it has come so far; forget one that is over."""
        invitation = self._invitations.get(event.record.get("environment", ""))
        if invitation is None or event.author_did != invitation.author_did:
            return
        is_over = event.collection == records.GAME_FINISHED
        is_time = event.collection == records.GAME_TURN and event.record["turn"] >= self._config.join_at_turn
        if is_over or is_time:
            del self._invitations[invitation.record["environment"]]
            self._pending.discard(invitation.seq)
        if is_time:
            await self._join(invitation, xrpc, tasks)

    async def _join(self, event: RecordEvent, xrpc: XrpcClient, tasks: asyncio.TaskGroup) -> None:
        environment_id = event.record["environment"]
        death = records.death_key(environment_id, self._config.account.did)
        for ending, key in ((records.GAME_FINISHED, environment_id), (records.AGENT_DEATH, death)):
            if await xrpc.get_record(event.author_did, ending, key) is not None:
                return  # we were away while it was played, or have died in it
        request = LeaseRequest(
            agent_did=self._config.account.did,
            environment_id=environment_id,
            environment_type=event.record["type"],
            authority_did=event.author_did,
            node_id=self._config.node_id,
        )
        try:
            placement = await self._supervisor.acquire(request)
        except (LeaseError, Refused) as error:  # no budget, no room, or over before it began
            log.warning("not joined", extra={"environment": environment_id, "reason": str(error)})
            await self._supervisor.count("join_refused")
            return
        self._pending.add(event.seq)
        self._sit(placement, xrpc, tasks, resumed=not placement.is_new, join_seq=event.seq)

    def _sit(
        self,
        placement: Placement,
        xrpc: XrpcClient,
        tasks: asyncio.TaskGroup,
        *,
        resumed: bool,
        join_seq: int | None = None,
    ) -> None:
        seat = Seat(
            self._player,
            placement,
            supervisor=self._supervisor,
            repo=xrpc,
            clock=self._clock,
            resumed=resumed,
        )
        table = _Table(seat)
        self._seats[placement.environment_id] = table
        tasks.create_task(self._play(placement, table, join_seq), name=f"seat {placement.environment_id}")

    async def _play(self, placement: Placement, table: "_Table", join_seq: int | None) -> None:
        seat = table.seat
        try:
            await self._take_turns(placement, table, join_seq)
            if placement.environment_type in farewell.ENVIRONMENT_TYPES:
                notice = await table.last_words()
                if notice is not None:
                    await seat.farewell(notice)
        finally:
            self._pending.difference_update(table.waiting())
            self._finished.append(seat)
            self._seats.pop(placement.environment_id, None)
            await seat.close()

    async def _take_turns(self, placement: Placement, table: "_Table", join_seq: int | None) -> None:
        seat = table.seat
        try:
            await seat.join()
            if join_seq is not None:
                self._pending.discard(join_seq)
                await self._supervisor.save_cursor(f"agent:{self._config.account.did}", self._cursor())
            while (heard := await table.turns.get()) is not None:
                seq, turn = heard
                if not await seat.take(turn, partial(self._done, seq)):
                    break
        except (LeaseError, StaleEpoch):
            log.info("lease ended under a turn", extra={"lease": placement.lease_id})

    def _done(self, seq: int) -> int:
        """Tick off a firehose position; the cursor up to which all is dealt with."""
        self._pending.discard(seq)
        return self._cursor()


class _Table:
    """A seat and the turns that wait for it."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.turns: asyncio.Queue[tuple[int, dict[str, Any]] | None] = asyncio.Queue(QUEUE_LIMIT)
        self._told: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

    def leave(self, notice: dict[str, Any] | None = None) -> None:
        """The environment or the lease is over: stop after the turn in progress; `notice` says why."""
        if not self._told.done():
            self._told.set_result(notice)
        self.turns.put_nowait(None)

    async def last_words(self) -> dict[str, Any] | None:
        """Why we leave. The lease may end under a turn just before we hear of it, so this waits a little."""
        try:
            async with asyncio.timeout(farewell.GRACE_S):
                return await asyncio.shield(self._told)
        except TimeoutError:
            return None

    def waiting(self) -> set[int]:
        """Take out what still waits; the firehose positions of it."""
        left = [self.turns.get_nowait() for _ in range(self.turns.qsize())]
        return {heard[0] for heard in left if heard is not None}


class AgentActor(Agent, LoopActor):
    """One agent in a process of its own."""

    def __init__(self, config: AgentConfig) -> None:
        Agent.__init__(self, config, RemoteSupervisor())
        LoopActor.__init__(self)

    async def main(self) -> None:
        """Play until stopped."""
        await self.run(self.set_ready)
