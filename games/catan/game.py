"""A game of Catan as an environment: requests out, actions in, forced moves played, everything in a log."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from games.catan.board import deal_board
from games.catan.cards import DECK
from games.catan.chance import Chance, SeededChance, shuffled
from games.catan.effects import play
from games.catan.endings import ending
from games.catan.fallback import fallback_move
from games.catan.legal import check_move, legal_moves, open_forms
from games.catan.moves import Move, move_to_json, parse_move
from games.catan.picture import picture
from games.catan.settings import Settings
from games.catan.sketch import plain_name, sketch
from games.catan.table import Phase, Seat, Table
from games.catan.view import player_state, standings
from games.errors import IllegalAction, SettingsInvalid
from games.logged import LoggedGame, kept_reason
from games.rules import GameEvent, Outcome, TurnRequest

MIN_PLAYERS: Final = 2
MAX_PLAYERS: Final = 4


class Catan(LoggedGame):
    """One game; see `games.Rules` for the contract. All randomness follows from the seed."""

    def __init__(self, table: Table, chance: Chance, seed: int) -> None:
        """Take over a table as it stands; `Catan.new` deals a fresh one."""
        super().__init__(len(table.seats), seed)
        self.table = table
        self._chance = chance
        self._settle([])

    @classmethod
    def new(cls, players: int, seed: int, settings: Mapping[str, Any]) -> Self:
        """Deal a board and a deck. Raises: SettingsInvalid."""
        if type(players) is not int or not MIN_PLAYERS <= players <= MAX_PLAYERS:
            raise SettingsInvalid("players", f"Catan is for {MIN_PLAYERS} to {MAX_PLAYERS} players")
        board = deal_board(seed)
        cards = [card for card, count in DECK.items() for _ in range(count)]
        table = Table(
            board=board,
            settings=Settings.parse(settings),
            seats=[Seat() for _ in range(players)],
            deck=shuffled(random.Random(f"catan deck {seed}"), cards),
            robber=board.desert,
        )
        return cls(table, SeededChance(seed), seed)

    def request(self) -> TurnRequest | None:
        """The decision asked for now, or None when the game is over. Asking again gives the same."""
        if self._outcome is not None:
            return None
        player = self.table.decider
        state = player_state(self.table, player) | {"turn": self.turn_number}
        return TurnRequest(player=player, phase=self.table.phase.value, state=state, legal=state["legal"])

    def apply(self, player: int, action: dict[str, Any]) -> list[GameEvent]:
        """Play `action` and every forced move after it. Raises: IllegalAction, and nothing has changed."""
        self._check_player(player)
        move = parse_move(action)
        check_move(self.table, move)
        return self._decide(move, {"action": move_to_json(move)})

    def skip(self, player: int, reason: str) -> list[GameEvent]:
        """Play a plain legal move for a player who gave none. Raises: IllegalAction, out of turn."""
        self._check_player(player)
        kept = kept_reason(reason)
        events: list[GameEvent] = [{"event": "skipped", "player": player, "reason": kept}]
        return events + self._decide(fallback_move(self.table), {"skip": kept})

    def standings(self) -> list[dict[str, Any]]:
        """One row per player for a spectator, hidden victory points included."""
        return standings(self.table)

    def render_text(self, names: Sequence[str]) -> str:
        """The board and the points for a terminal, coloured by ANSI codes; `names` by player."""
        return sketch(self.table, names)

    def render_svg(self, names: Sequence[str]) -> str:
        """The board, the pieces and the points as an SVG document; `names` by player."""
        return picture(self.table, names, self._headline(names))

    def _agreed(self) -> dict[str, Any]:
        return self.table.settings.to_json()

    def _headline(self, names: Sequence[str]) -> str:
        if self._outcome is None:
            return f"Decision {self.turn_number}"
        if self._outcome.winner is None:
            return "Nobody wins"
        return f"{plain_name(names, self._outcome.winner)} wins"

    def _check_player(self, player: int) -> None:
        if self._outcome is not None:
            raise IllegalAction("the game is over")
        if type(player) is not int or player != self.table.decider:
            raise IllegalAction(f"it is player {self.table.decider}'s decision")

    def _decide(self, move: Move, what: dict[str, Any]) -> list[GameEvent]:
        self._note(self.table.decider, what)
        return self._settle(play(self.table, move, self._chance))

    def _settle(self, events: list[GameEvent]) -> list[GameEvent]:
        """Play forced moves until a player has a choice or the game is over."""
        while self._outcome is None:
            end = ending(self.table, self._decisions)
            if end is not None:
                self.table.phase = Phase.OVER
                self._outcome = Outcome(reason=end[0].value, winner=end[1], turns=self._decisions)
                return [*events, {"event": "finished", "reason": end[0].value, "winner": end[1]}]
            moves = legal_moves(self.table)
            if len(moves) != 1 or open_forms(self.table):
                return events
            events = events + play(self.table, moves[0], self._chance)
        return events
