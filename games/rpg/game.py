"""An adventure as an environment: requests out, actions in, forced moves played, everything in a log."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from games.errors import IllegalAction, SettingsInvalid
from games.logged import LoggedGame, kept_reason
from games.rpg.chronicle import chronicle, sentence
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


class Rpg(LoggedGame):
    """One adventure; see `games.Rules`. Heroes can die (`games.Mortal`) and come late (`games.Gathering`).

    All dice follow from the seed. A dead player is never asked again; `farewell` is what it is told instead.
    """

    def __init__(self, quest: Quest, dice: Dice, seed: int) -> None:
        """Take over an adventure as it stands; `Rpg.new` deals a fresh one."""
        super().__init__(len(quest.heroes), seed)
        self.quest = quest
        self._dice = dice
        self._story: list[GameEvent] = []
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
        kept = kept_reason(reason)
        self.quest.silent += 1
        self.quest.tell("skipped", player=player, reason=kept)
        return self._decide(fallback(self._legal), {"skip": kept})

    @property
    def away(self) -> list[int]:
        """The players who are not here yet: their heroes are neither asked nor hurt, and earn nothing."""
        return sorted(self.quest.away)

    def leave_behind(self, player: int) -> list[GameEvent]:
        """Set out without a player. Raises: IllegalAction: it is late for that, or nobody would be left."""
        if self._decisions:
            raise IllegalAction("the adventure has begun")
        if player not in self.quest.living():
            raise IllegalAction(f"player {player} is not here")
        if len(self.quest.living()) == 1:
            raise IllegalAction("somebody has to set out")
        return self._present(player, here=False)

    def arrive(self, player: int) -> list[GameEvent]:
        """Let a hero catch up: it acts from the next round on. Raises: IllegalAction: here, or all over."""
        if self._outcome is not None:
            raise IllegalAction("the adventure is over")
        if player not in self.quest.away:
            raise IllegalAction(f"player {player} is here")
        return self._present(player, here=True)

    def _present(self, player: int, *, here: bool) -> list[GameEvent]:
        quest, word = self.quest, "here" if here else "away"
        self._log.append({"turn": self.turn_number, "player": player, "presence": word})
        if here:
            quest.away.discard(player)
        else:
            quest.away.add(player)
            quest.queue = [who for who in quest.queue if who != player]
        quest.tell("arrives" if here else "is_awaited", player=player)
        return self._settle()

    def _again(self, entry: dict[str, Any]) -> None:
        if "presence" not in entry:
            super()._again(entry)
        elif entry["presence"] == "here":
            self.arrive(entry["player"])
        else:
            self.leave_behind(entry["player"])

    @property
    def choices(self) -> list[Move]:
        """What the current request's player may do, as moves; empty after the end."""
        return list(self._legal)

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
    def story(self) -> list[GameEvent]:
        """Everything that happened so far, each with the `turn` in which it did."""
        return list(self._story)

    def standings(self) -> list[dict[str, Any]]:
        """One row per player for a spectator; `points` is experience."""
        return standings(self.quest)

    def render_text(self, names: Sequence[str]) -> str:
        """The dungeon and the party for a terminal, coloured by ANSI codes; `names` by player."""
        return sketch(self.quest, names)

    def render_svg(self, names: Sequence[str]) -> str:
        """The dungeon and the party as an SVG document; `names` by player."""
        return picture(self.quest, names, self.turn_number)

    def tell(self, event: GameEvent, names: Sequence[str]) -> str:
        """One event as a sentence, empty for what is not worth one; `names` by player."""
        return sentence(event, names)

    def chronicle(self, names: Sequence[str]) -> str:
        """What happened so far, as Markdown to read; `names` by player."""
        return chronicle(self.quest, self._story, names)

    def _agreed(self) -> dict[str, Any]:
        return self.quest.settings.to_json()

    def _check_player(self, player: int) -> None:
        if self._outcome is not None:
            raise IllegalAction("the adventure is over")
        if type(player) is int and 0 <= player < len(self.quest.heroes) and self.quest.heroes[player].dead:
            raise IllegalAction("the dead do not act")
        if player in self.quest.away:
            raise IllegalAction("a hero who is not here does not act")
        if type(player) is not int or player != self.quest.decider:
            raise IllegalAction(f"it is player {self.quest.decider}'s decision")

    def _decide(self, move: Move, what: dict[str, Any]) -> list[GameEvent]:
        player = self.quest.decider
        self._note(player, what)
        play(self.quest, player, move, self._dice)
        return self._settle()

    def _settle(self) -> list[GameEvent]:
        quest = self.quest
        self._legal = settle(quest, self._decisions, self._dice)
        if quest.reason is not None:
            self._outcome = Outcome(reason=quest.reason.value, winner=None, turns=self._decisions)
            quest.tell("finished", reason=quest.reason.value, campaign_ends=self.ends_campaign)
        events, quest.events = quest.events, []
        self._story.extend(event | {"turn": quest.turn} for event in events)
        quest.turn = self.turn_number
        return events
