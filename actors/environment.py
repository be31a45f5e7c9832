"""The game master: an identity that publishes turns, reads the actions, applies the rules and says the end.

It talks to no agent and no sandbox: its own records are its only memory. Each turn's record carries what was
decided on the turn before, and so do a death's and the end's; a game master that was killed replays its own
repo and goes on at the same point.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors import records
from actors.events import RecordEvent, RecordReader
from actors.faces import Account, Endpoints, Report, SupervisorFace
from actors.loop import LoopActor
from actors.records import Decided
from actors.remote import RemoteSupervisor
from firehose import Subscriber, XrpcClient
from games import Episode, GameEvent, IllegalAction, Outcome, Rules, TurnRequest, deaths_in
from games.catan import Catan
from games.rpg import Rpg

log = logging.getLogger(__name__)

PAGE: Final = 100  # records asked for at once when the log is read back
RECENT: Final = 12  # happenings kept for the live view

RULES: Final[dict[str, type[Rules]]] = {"catan": Catan, "rpg": Rpg}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """Everything a game master starts from; a restarted one starts from the same.

    `players` are DIDs by seat; `settings` are the rules' own; timeouts are in seconds.
    """

    account: Account
    endpoints: Endpoints
    environment_id: str
    environment_type: str
    players: tuple[str, ...]
    seed: int
    settings: dict[str, Any]
    start_cursor: int
    action_timeout_s: float
    join_timeout_s: float
    lexicons: Path


class GameMaster:
    """Runs one environment to its end. `run` returns once the end is published."""

    def __init__(
        self,
        config: EnvironmentConfig,
        rules: type[Rules],
        supervisor: SupervisorFace,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._config, self._rules, self._supervisor = config, rules, supervisor
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._reader = RecordReader(config.lexicons)
        self._game: Rules | None = None
        self._joined: set[str] = set()
        self._previous: Decided | None = None
        self._recent: deque[GameEvent] = deque(maxlen=RECENT)
        self._skipped = 0
        self._told_deaths = 0
        self.over = asyncio.Event()

    async def run(self) -> None:
        """Play the game from wherever its records say it stands to its end."""
        config = self._config
        async with XrpcClient(config.endpoints.pds_url) as xrpc:
            await xrpc.login(config.account.did, config.account.password)
            await self._open(xrpc)
            game = self._game = await self._replay(xrpc)
            await self._publish_deaths(xrpc, game)
            async with self._heard() as events:
                if game.turn_number == 1 and game.request() is not None:
                    await self._wait_for_players(events)
                while (request := game.request()) is not None:
                    await self._publish(xrpc, game, request)
                    await self._decide(game, request, await self._answer(events, game.turn_number, request))
                    await self._publish_deaths(xrpc, game)
            await self._finish(xrpc, game)
        self.over.set()

    async def status(self) -> Report:
        """Where the game stands, for the live view and the final report."""
        game, config = self._game, self._config
        outcome = game.outcome() if game else None
        return {
            "environment": config.environment_id,
            "type": config.environment_type,
            "joined": len(self._joined),
            "players": len(config.players),
            "turn": game.turn_number if game else 0,
            "standings": game.standings() if game else [],
            "recent": list(self._recent),
            "skipped": self._skipped,
            "deaths": [
                {"agent": config.players[death.player], "cause": death.cause, "turn": death.turn}
                for death in (deaths_in(game) if game else ())
            ],
            "over": self.over.is_set(),
            "outcome": self._outcome(outcome) if outcome else None,
            "game_log_sha256": game.log_sha256() if game and outcome else None,
        }

    async def board(self, names: list[str]) -> dict[str, str]:
        """The board as text and as SVG, with these names by seat. Empty before the game starts."""
        if self._game is None:
            return {}
        return {"text": self._game.render_text(names), "svg": self._game.render_svg(names)}

    async def sequel(self, names: list[str]) -> Report:
        """Waits for the end, then tells what a next game needs; `{}` for a game that stands alone.

        Returns:
            `{characters, ends_campaign, chronicle}`, the chronicle with these names by seat.
        """
        await self.over.wait()
        game = self._game
        if not isinstance(game, Episode):
            return {}
        return {
            "characters": game.characters(),
            "ends_campaign": game.ends_campaign,
            "chronicle": game.chronicle(names),
        }

    def _outcome(self, outcome: Outcome) -> Report:
        winner = None if outcome.winner is None else self._config.players[outcome.winner]
        return {"reason": outcome.reason, "winner": winner, "turns": outcome.turns}

    async def _open(self, xrpc: XrpcClient) -> None:
        config = self._config
        if await xrpc.get_record(config.account.did, records.ENV_CREATED, config.environment_id) is None:
            record = records.env_created(
                environment_id=config.environment_id,
                type=config.environment_type,
                players=config.players,
                settings=config.settings,
                now_ms=self._clock(),
            )
            await xrpc.put_record(records.ENV_CREATED, config.environment_id, record)

    async def _replay(self, xrpc: XrpcClient) -> Rules:
        """Rebuild the game from what our own turns say was decided."""
        config = self._config
        decided: dict[int, Decided] = {}
        prefix = f"{config.environment_id}."
        cursor: str | None = prefix
        while cursor is not None:
            page, cursor = await xrpc.list_records(
                config.account.did, records.GAME_TURN, limit=PAGE, cursor=cursor, reverse=True
            )
            ours = [item for item in page if f"/{prefix}" in item["uri"]]
            for item in ours:
                if previous := item["value"].get("previous"):
                    decided[previous["turn"]] = Decided.parse(previous)
            if len(ours) < len(page):  # keys are in order: the next environment's begin here
                break
        for ending in await self._endings_told(xrpc):  # told after a decision that no turn carries yet
            if previous := ending.get("previous"):
                decided[previous["turn"]] = Decided.parse(previous)
        entries = []
        self._skipped = self._told_deaths = 0
        for number in sorted(decided):
            self._previous = choice = decided[number]
            body = {"skip": choice.skip} if choice.action is None else {"action": choice.action}
            entries.append({"turn": number, "player": config.players.index(choice.player_did), **body})
            self._skipped += choice.skip is not None
        return self._rules.replay(len(config.players), config.seed, config.settings, entries)

    async def _endings_told(self, xrpc: XrpcClient) -> list[dict[str, Any]]:
        """What we have said already of deaths here and of the end."""
        config = self._config
        keys = [
            (records.AGENT_DEATH, records.death_key(config.environment_id, player))
            for player in config.players
        ]
        keys.append((records.GAME_FINISHED, config.environment_id))
        told = [await xrpc.get_record(config.account.did, collection, key) for collection, key in keys]
        return [found["value"] for found in told if found is not None]

    @asynccontextmanager
    async def _heard(self) -> AsyncIterator["asyncio.Queue[RecordEvent]"]:
        """What the players say, from the moment the environment was set up."""
        config = self._config
        events: asyncio.Queue[RecordEvent] = asyncio.Queue()
        subscriber = Subscriber(
            config.endpoints.tap_url,
            cursor=config.start_cursor,
            dids=config.players,
            collections=(records.ENV_JOINED, records.GAME_ACTION),
        )

        async def listen() -> None:
            async for frame in subscriber.frames():
                for event in self._reader.read(frame)[1]:
                    if event.record["environment"] == config.environment_id:
                        events.put_nowait(event)

        async with asyncio.TaskGroup() as tasks:
            listener = tasks.create_task(listen(), name=f"environment {config.environment_id}")
            try:
                yield events
            finally:
                listener.cancel()

    async def _wait_for_players(self, events: "asyncio.Queue[RecordEvent]") -> None:
        try:
            async with asyncio.timeout(self._config.join_timeout_s):
                while len(self._joined) < len(self._config.players):
                    event = await events.get()
                    if event.collection == records.ENV_JOINED:
                        self._joined.add(event.author_did)
        except TimeoutError:  # whoever is missing is skipped turn by turn
            log.warning("players missing", extra={"environment": self._config.environment_id})

    async def _publish(self, xrpc: XrpcClient, game: Rules, request: TurnRequest) -> None:
        config, now = self._config, self._clock()
        turn = records.game_turn(
            environment_id=config.environment_id,
            turn=game.turn_number,
            player_did=config.players[request.player],
            phase=request.phase,
            state=request.state,
            deadline_ms=now + int(config.action_timeout_s * 1000),
            previous=self._previous,
            now_ms=now,
        )
        key = records.turn_key(config.environment_id, game.turn_number)
        await xrpc.put_record(records.GAME_TURN, key, turn)

    async def _answer(
        self, events: "asyncio.Queue[RecordEvent]", number: int, request: TurnRequest
    ) -> RecordEvent | None:
        """The action of this turn by the player whose turn it is, or None when it did not come in time."""
        player = self._config.players[request.player]
        try:
            async with asyncio.timeout(self._config.action_timeout_s):
                while True:
                    event = await events.get()
                    self._joined.add(event.author_did)
                    if event.collection != records.GAME_ACTION or event.record["turn"] < number:
                        continue  # said again after a restart
                    if event.author_did == player and event.record["turn"] == number:
                        return event
                    await self._supervisor.count("action_out_of_turn")
        except TimeoutError:
            return None

    async def _decide(self, game: Rules, request: TurnRequest, answer: RecordEvent | None) -> None:
        """Apply the answer, or skip the player with a reason; remember it for the next turn's record."""
        number, player_did = game.turn_number, self._config.players[request.player]
        action, skip = None, f"no action within {self._config.action_timeout_s:g} s"
        if answer is not None:
            action, skip = answer.record.get("action"), str(answer.record.get("skip") or "no action given")
        happened = None
        if isinstance(action, dict):
            try:
                happened = game.apply(request.player, action)
            except IllegalAction as error:
                action, skip = None, f"illegal: {error.reason}"[: records.MAX_REASON_CHARS]
        if happened is None:
            action = None
            happened = game.skip(request.player, skip)
            self._skipped += 1
        self._previous = Decided(
            turn=number, player_did=player_did, action=action, skip=None if action is not None else skip
        )
        self._recent.extend(happened)

    async def _publish_deaths(self, xrpc: XrpcClient, game: Rules) -> None:
        """Say who has died since; `self._previous` is what the last of them died of."""
        config = self._config
        for death in deaths_in(game)[self._told_deaths :]:
            player_did = config.players[death.player]
            record = records.agent_death(
                environment_id=config.environment_id,
                agent_did=player_did,
                cause=death.cause,
                previous=self._previous,
                now_ms=self._clock(),
            )
            key = records.death_key(config.environment_id, player_did)
            await self._say_once(xrpc, records.AGENT_DEATH, key, record)
            self._told_deaths += 1

    async def _finish(self, xrpc: XrpcClient, game: Rules) -> None:
        """Say that the game is over, and then the campaign if nothing follows."""
        config, outcome = self._config, game.outcome()
        assert outcome is not None
        finished = records.game_finished(
            environment_id=config.environment_id,
            reason=outcome.reason,
            winner_did=None if outcome.winner is None else config.players[outcome.winner],
            turns=outcome.turns,
            previous=self._previous,
            now_ms=self._clock(),
        )
        await self._say_once(xrpc, records.GAME_FINISHED, config.environment_id, finished)
        if isinstance(game, Episode) and game.ends_campaign:
            ended = records.campaign_ended(
                environment_id=config.environment_id, reason=outcome.reason, now_ms=self._clock()
            )
            await self._say_once(xrpc, records.CAMPAIGN_ENDED, config.environment_id, ended)

    async def _say_once(self, xrpc: XrpcClient, collection: str, key: str, record: dict[str, Any]) -> None:
        if await xrpc.get_record(self._config.account.did, collection, key) is None:
            await xrpc.put_record(collection, key, record)


class EnvironmentActor(GameMaster, LoopActor):
    """One environment in a process of its own; it stays to answer `status` after the end."""

    def __init__(self, config: EnvironmentConfig) -> None:
        GameMaster.__init__(self, config, RULES[config.environment_type], RemoteSupervisor())
        LoopActor.__init__(self)

    async def main(self) -> None:
        """Play to the end."""
        self.set_ready()
        await self.run()
