"""An adventure as an environment: requests out, actions in, forced moves played, everything in a log."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from games.errors import IllegalAction, LogInvalid, SettingsInvalid
from games.rpg.chronicle import chronicle
from games.rpg.dice import Dice, SeededDice
from games.rpg.dungeon import deal_dungeon
from games.rpg.legal import check_move
from games.rpg.moves import Move, move_to_json, parse_move
from games.rpg.party import mean_level, muster
from games.rpg.picture import picture
from games.rpg.quest import Quest, Reason
from games.rpg.settings import Settings
from games.rpg.sketch import sketch
from games.rpg.turns import fallback, play, settle
from games.rpg.view import farewell, player_state, recent, standings
from games.rules import Death, GameEvent, Outcome, TurnRequest

MIN_PLAYERS: Final = 1
MAX_PLAYERS: Final = 6
MAX_SKIP_REASON: Final = 500  # characters kept of a reason


class Rpg:
    """One adventure; see `games.Rules` for the contract, and `games.Mortal`: heroes can die.

    All dice follow from the seed. A dead player is never asked again; `farewell` is what it is told instead.
    """

    def __init__(self, quest: Quest, dice: Dice, seed: int) -> None:
        """Take over an adventure as it stands; `Rpg.new` deals a fresh one."""
        self.quest = quest
        self._dice = dice
        self._seed = seed
        self._log: list[dict[str, Any]] = []
        self._story: list[GameEvent] = []
        self._outcome: Outcome | None = None
        self._legal: list[Move] = []
        self._settle()

    @classmethod
    def new(cls, players: int, seed: int, settings: Mapping[str, Any]) -> Self:
        """Muster a party and deal a dungeon. Raises: SettingsInvalid."""
        if type(players) is not int or not MIN_PLAYERS <= players <= MAX_PLAYERS:
            raise SettingsInvalid("players", f"an adventure is for {MIN_PLAYERS} to {MAX_PLAYERS} players")
        agreed = Settings.parse(settings, players)
        heroes = muster(agreed.characters, SeededDice(seed, "heroes"))
        rooms = deal_dungeon(agreed.rooms, players, mean_level(heroes), SeededDice(seed, "dungeon"))
        return cls(Quest(settings=agreed, heroes=heroes, rooms=rooms), SeededDice(seed), seed)

    @classmethod
    def replay(cls, players: int, seed: int, settings: Mapping[str, Any], log: list[dict[str, Any]]) -> Self:
        """The adventure that wrote `log`. Raises: SettingsInvalid; LogInvalid, naming the entry."""
        game = cls.new(players, seed, settings)
        for index, entry in enumerate(log):
            try:
                if entry["turn"] != game.turn_number:
                    raise LogInvalid(index, f"it is of turn {entry['turn']}, due is {game.turn_number}")
                if "skip" in entry:
                    game.skip(entry["player"], entry["skip"])
                else:
                    game.apply(entry["player"], entry["action"])
            except (IllegalAction, KeyError, TypeError) as error:
                raise LogInvalid(index, str(error)) from error
        return game

    def request(self) -> TurnRequest | None:
        """The decision asked for now, or None when the adventure is over. Asking again gives the same."""
        if self._outcome is not None:
            return None
        player = self.quest.decider
        state = player_state(self.quest, player, self._legal)
        state |= {"turn": self.turn_number, "recent": recent(self._story)}
        return TurnRequest(player=player, phase=self.quest.phase.value, state=state, legal=state["legal"])

    def apply(self, player: int, action: dict[str, Any]) -> list[GameEvent]:
        """Play `action` and all that follows without a choice. Raises: IllegalAction; nothing has changed."""
        self._check_player(player)
        move = parse_move(action)
        check_move(self.quest, player, move)
        self.quest.silent = 0
        return self._decide(move, {"action": move_to_json(move)})

    def skip(self, player: int, reason: str) -> list[GameEvent]:
        """Let a player who gave no action follow the others. Raises: IllegalAction, out of turn."""
        self._check_player(player)
        kept = str(reason)[:MAX_SKIP_REASON].encode("utf-8", "replace").decode()
        self.quest.silent += 1
        self.quest.tell("skipped", player=player, reason=kept)
        return self._decide(fallback(self._legal), {"skip": kept})

    @property
    def choices(self) -> list[Move]:
        """What the current request's player may do, as moves; empty after the end."""
        return list(self._legal)

    def outcome(self) -> Outcome | None:
        """How the adventure ended, None while it goes on; nobody wins alone, so `winner` is always None."""
        return self._outcome

    def deaths(self) -> list[Death]:
        """Every death so far, in order."""
        return list(self.quest.deaths)

    @property
    def ends_campaign(self) -> bool:
        """Whether the campaign is over with this adventure: the last one, or nobody can or wants to go on."""
        if self._outcome is None:
            return False
        return self.quest.settings.is_last or self.quest.reason in (Reason.WIPE, Reason.ABANDONED)

    def characters(self) -> list[dict[str, Any]]:
        """The heroes as JSON, by player: the next adventure's `characters` setting."""
        return [hero.to_json() for hero in self.quest.heroes]

    def farewell(self, player: int) -> dict[str, Any]:
        """The last state of a player who is not asked again; its `notice` is `death` or `end`."""
        if self._outcome is None and not self.quest.heroes[player].dead:
            raise ValueError(f"player {player} is alive and the adventure goes on")
        return farewell(self.quest, player) | {"turn": self.turn_number}

    @property
    def turn_number(self) -> int:
        """Number of the current request, from 1; after the end, of the last one."""
        return len(self._log) + (self._outcome is None)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every decision so far, as JSON."""
        return list(self._log)

    @property
    def story(self) -> list[GameEvent]:
        """Everything that happened so far, each with the `turn` in which it did."""
        return list(self._story)

    def log_sha256(self) -> str:
        """Digest over canonical JSON of settings, players, seed, log and outcome."""
        end = self._outcome
        record = {
            "settings": self.quest.settings.to_json(),
            "players": len(self.quest.heroes),
            "seed": self._seed,
            "log": self._log,
            "outcome": None
            if end is None
            else {"reason": end.reason, "winner": end.winner, "turns": end.turns},
        }
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def standings(self) -> list[dict[str, Any]]:
        """One row per player for a spectator; `points` is experience."""
        return standings(self.quest)

    def render_text(self, names: Sequence[str]) -> str:
        """The dungeon and the party for a terminal, coloured by ANSI codes; `names` by player."""
        return sketch(self.quest, names)

    def render_svg(self, names: Sequence[str]) -> str:
        """The dungeon and the party as an SVG document; `names` by player."""
        return picture(self.quest, names, self.turn_number)

    def chronicle(self, names: Sequence[str]) -> str:
        """What happened so far, as Markdown to read; `names` by player."""
        return chronicle(self.quest, self._story, names)

    def _check_player(self, player: int) -> None:
        if self._outcome is not None:
            raise IllegalAction("the adventure is over")
        if type(player) is int and 0 <= player < len(self.quest.heroes) and self.quest.heroes[player].dead:
            raise IllegalAction("the dead do not act")
        if type(player) is not int or player != self.quest.decider:
            raise IllegalAction(f"it is player {self.quest.decider}'s decision")

    def _decide(self, move: Move, what: dict[str, Any]) -> list[GameEvent]:
        player = self.quest.decider
        self._log.append({"turn": self.turn_number, "player": player} | what)
        play(self.quest, player, move, self._dice)
        return self._settle()

    def _settle(self) -> list[GameEvent]:
        quest = self.quest
        self._legal = settle(quest, len(self._log), self._dice)
        if quest.reason is not None:
            self._outcome = Outcome(reason=quest.reason.value, winner=None, turns=len(self._log))
            quest.tell("finished", reason=quest.reason.value, campaign_ends=self.ends_campaign)
        events, quest.events = quest.events, []
        self._story.extend(event | {"turn": quest.turn} for event in events)
        quest.turn = self.turn_number
        return events
