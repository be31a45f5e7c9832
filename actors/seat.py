"""One agent in one environment: its lease, its sandbox, and its turns in order."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

from actors import records
from actors.faces import Placement, SupervisorFace
from actors.farewell import GRACE_S
from firehose import XrpcError
from leases import BudgetExceeded
from sandboxes import (
    Sandbox,
    SandboxError,
    SandboxGone,
    SandboxNotFound,
    StaleEpoch,
    TurnResult,
    connect_sandbox,
)
from sandboxes.results import clip

log = logging.getLogger(__name__)

T = TypeVar("T")

BAD_REQUEST: Final = 400  # the PDS refuses this very record; anything else is worth another try
MAX_SAMPLES: Final = 10_000  # turn durations kept for the report


class Repo(Protocol):
    """The agent's own repo, as `firehose.XrpcClient` gives it."""

    async def put_record(self, collection: str, rkey: str, record: dict[str, Any]) -> object:
        """Write a record; writing the same again changes nothing."""

    async def get_record(self, repo: str, collection: str, rkey: str) -> dict[str, Any] | None:
        """The record, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who plays: `seed` makes the scripted player deterministic, `turn_timeout_s` bounds its script."""

    did: str
    seed: int
    turn_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a turn came to: an action, or the reason why there is none."""

    action: dict[str, Any] | None
    skip: str | None


class Seat:
    """Takes the turns of one environment in its sandbox and posts the actions.

    A turn is answered once: the record key is (environment, turn), the last turn is in the ledger, and
    after a restart the agent's own repo is asked before a turn is taken again.
    """

    def __init__(
        self,
        player: Player,
        placement: Placement,
        *,
        supervisor: SupervisorFace,
        repo: Repo,
        clock: Callable[[], int],
        resumed: bool,
    ) -> None:
        self._player, self._placement = player, placement
        self._supervisor, self._repo, self._clock = supervisor, repo, clock
        self._sandbox: Sandbox | None = None
        self._ask_repo = resumed
        self.last_turn = placement.last_turn
        self.turn_ms: list[float] = []
        self.skipped = 0

    @property
    def authority_did(self) -> str:
        """Whose turns and endings count here."""
        return self._placement.authority_did

    async def join(self) -> None:
        """Hydrate the sandbox, unless it sleeps, and say on the firehose that we are ready."""
        if self._placement.is_awake:
            try:
                await self._with_sandbox(self._hydrate)
            except BudgetExceeded as error:  # it fell asleep under us; our turns will say so
                log.info("not hydrated", extra={"lease": self._placement.lease_id, "reason": str(error)})
        environment = self._placement.environment_id
        record = records.env_joined(environment_id=environment, now_ms=self._clock())
        await self._repo.put_record(records.ENV_JOINED, environment, record)

    async def take(self, turn: dict[str, Any], dealt_with: Callable[[], int]) -> bool:
        """Take a turn that is ours: run the script, post its action, renew the lease.

        Args:
            turn: a game.turn record of our authority.
            dealt_with: called once the action is posted; gives the firehose position to save.

        Returns:
            False if the lease has ended meanwhile, so that the seat is no longer ours.
        """
        number = turn["turn"]
        if number > self.last_turn and not await self._answered_before(number):
            decision = await self._decide(turn)
            try:
                await self._post(number, decision)
            except XrpcError as error:
                if decision.action is None or error.status != BAD_REQUEST:
                    raise
                await self._post(number, Decision(action=None, skip=f"no action that can be posted: {error}"))
        self.last_turn = max(self.last_turn, number)
        lease = self._placement
        return await self._supervisor.renew(lease.lease_id, lease.epoch, self.last_turn, dealt_with())

    async def farewell(self, notice: dict[str, Any]) -> None:
        """Let the turn script note what ended; its answer is not posted, and nothing is recovered for it."""
        if self._sandbox is None:
            return
        try:
            async with asyncio.timeout(GRACE_S):
                number = self.last_turn + 1
                state = self._state(self._placement.environment_id, number, "farewell", notice)
                await self._sandbox.turn(state, env=self._env(), turn=number, timeout=GRACE_S)
        except (SandboxError, TimeoutError) as error:  # the supervisor may have been faster
            log.info("no farewell", extra={"lease": self._placement.lease_id, "error": str(error)})

    async def close(self) -> None:
        """Let go of the sandbox; it is the supervisor who destroys it."""
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None

    async def _answered_before(self, number: int) -> bool:
        if not self._ask_repo:
            return False
        self._ask_repo = False  # only the first turn after a restart can have been answered already
        key = records.turn_key(self._placement.environment_id, number)
        return await self._repo.get_record(self._player.did, records.GAME_ACTION, key) is not None

    async def _decide(self, turn: dict[str, Any]) -> Decision:
        state = self._state(turn["environment"], turn["turn"], turn["phase"], turn["state"])

        async def run(sandbox: Sandbox) -> TurnResult:
            timeout_s = self._player.turn_timeout_s
            return await sandbox.turn(state, env=self._env(), turn=turn["turn"], timeout=timeout_s)

        started = time.monotonic()
        try:
            result = await self._with_sandbox(run)
            decision = Decision(action=result.action, skip=result.skip)
        except StaleEpoch:
            raise  # a newer holder plays: not ours any more
        except SandboxError as error:  # also after recovery: the game goes on without this turn
            log.warning(
                "turn lost its sandbox", extra={"lease": self._placement.lease_id, "turn": turn["turn"]}
            )
            decision = Decision(action=None, skip=f"sandbox: {error}")
        except BudgetExceeded as error:  # it sleeps on; next month, or with more hours, it plays again
            decision = Decision(action=None, skip=clip(f"budget: {error}"))
        if decision.action is not None and (why := records.unpostable(decision.action)):
            decision = Decision(action=None, skip=f"no action that can be posted: {why}")
        if len(self.turn_ms) < MAX_SAMPLES:
            self.turn_ms.append((time.monotonic() - started) * 1000)
        self.skipped += decision.skip is not None
        return decision

    def _state(self, environment: str, turn: int, phase: str, state: dict[str, Any]) -> dict[str, Any]:
        return {
            "env_type": self._placement.environment_type,
            "environment": environment,
            "turn": turn,
            "phase": phase,
            "state": state,
        }

    def _env(self) -> dict[str, str]:
        return {
            "AGENT_DID": self._player.did,
            "GAME_ID": self._placement.environment_id,
            "PLAYER_SEED": str(self._player.seed),
        }

    async def _post(self, number: int, decision: Decision) -> None:
        environment = self._placement.environment_id
        record = records.game_action(
            environment_id=environment,
            turn=number,
            action=decision.action,
            skip=decision.skip,
            now_ms=self._clock(),
        )
        await self._repo.put_record(records.GAME_ACTION, records.turn_key(environment, number), record)

    async def _hydrate(self, sandbox: Sandbox) -> None:
        lease = self._placement
        config = {
            "agentDid": self._player.did,
            "environmentId": lease.environment_id,
            "environmentType": lease.environment_type,
        }
        folder = "/workspace"
        if lease.host_epoch is not None:  # a guest leaves what is its parent's alone
            folder += f"/guests/{sha256(lease.lease_id.encode()).hexdigest()[:16]}"
            await sandbox.mkdir(folder)
        await sandbox.write_file(f"{folder}/config.json", json.dumps(config, indent=2).encode())

    async def _with_sandbox(self, use: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Use the sandbox; if it has died, have it made again once."""
        if self._sandbox is None:
            self._sandbox = connect_sandbox(self._placement.directory, epoch=self._placement.sandbox_epoch)
        try:
            return await use(self._sandbox)
        except (SandboxGone, SandboxNotFound) as error:
            lease = self._placement
            log.warning("sandbox lost, recovering", extra={"lease": lease.lease_id, "error": str(error)})
            await self.close()
            self._placement = await self._supervisor.recover(lease.lease_id, lease.epoch)
            self._sandbox = connect_sandbox(self._placement.directory, epoch=self._placement.sandbox_epoch)
            await self._hydrate(self._sandbox)
            return await use(self._sandbox)
