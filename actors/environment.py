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
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from actors import records
from actors.events import RecordEvent, RecordReader
from actors.faces import Account, Endpoints, Report, SupervisorFace
from actors.loop import LoopActor
from actors.recall import recall
from actors.records import Decided
from actors.remote import RemoteSupervisor
from firehose import Subscriber, XrpcClient
from games import Episode, GameEvent, Gathering, IllegalAction, Outcome, Rules, TurnRequest, deaths_in
from games.catan import Catan
from games.rpg import Rpg

log = logging.getLogger(__name__)

RECENT: Final = 12  # happenings kept for the live view

RULES: Final[dict[str, type[Rules]]] = {"catan": Catan, "rpg": Rpg}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """Everything a game master starts from; a restarted one starts from the same.

    `players` are DIDs by seat, `late` those of them for whom nobody waits; `settings` are the rules' own;
    timeouts are in seconds.
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
    late: tuple[str, ...] = ()


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
        self._is_begun = False  # a turn has been asked, by us or before we were killed
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
                if not self._is_begun and game.request() is not None:
                    await self._wait_for_players(events)
                    self._leave_behind(game)
                while (request := self._next_request(game)) is not None:
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

    async def board(self, names: list[str]) -> Report:
        """The board as text and as SVG, with these names by seat. Empty before the game starts.

        Where the game can tell what happened lately, `told` has that in sentences.
        """
        game = self._game
        if game is None:
            return {}
        told = [game.tell(event, names) for event in self._recent] if isinstance(game, Episode) else []
        return {
            "text": game.render_text(names),
            "svg": game.render_svg(names),
            "told": [sentence for sentence in told if sentence],
        }

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
        told = await recall(xrpc, config.account.did, config.environment_id, config.players)
        self._previous, self._is_begun = told.previous, told.is_begun
        self._skipped = sum("skip" in entry for entry in told.log)
        self._told_deaths = 0
        return self._rules.replay(len(config.players), config.seed, config.settings, told.log)

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
                while not self._joined >= set(self._config.players) - set(self._config.late):
                    event = await events.get()
                    if event.collection == records.ENV_JOINED:
                        self._joined.add(event.author_did)
        except TimeoutError:  # left behind if the game can do without them, else skipped turn by turn
            log.warning("players missing", extra={"environment": self._config.environment_id})

    def _leave_behind(self, game: Rules) -> None:
        """Begin without those who have not come; if nobody has, one seat stays to be waited for."""
        if not isinstance(game, Gathering):
            return
        missing = [player for player, did in enumerate(self._config.players) if did not in self._joined]
        for player in missing if self._joined else missing[1:]:
            self._recent.extend(game.leave_behind(player))

    def _next_request(self, game: Rules) -> TurnRequest | None:
        """What is asked next, after those who have come meanwhile were let in."""
        if isinstance(game, Gathering) and game.request() is not None:
            for player in game.away:
                if self._config.players[player] in self._joined:
                    self._recent.extend(game.arrive(player))
        return game.request()

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
            away=self._present(game, "away"),
            here=self._present(game, "here"),
            now_ms=now,
        )
        key = records.turn_key(config.environment_id, game.turn_number)
        await xrpc.put_record(records.GAME_TURN, key, turn)

    def _present(self, game: Rules, word: str) -> list[str]:
        """Who was left behind, or has come, just before this turn."""
        entries = [*takewhile(lambda entry: entry["turn"] == game.turn_number, reversed(game.log))]
        named = [entry["player"] for entry in reversed(entries) if entry.get("presence") == word]
        return [self._config.players[player] for player in named]

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
