"""Tables to start from, luck to order, and a player that picks any legal action."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from games import TurnRequest
from games.catan import Catan
from games.catan.board import deal_board
from games.catan.cards import BANK_OF_EACH, DECK, Hand, add
from games.catan.settings import Settings
from games.catan.table import Building, Phase, Seat, Table
from games.catan.topology import EDGE_BETWEEN, NODE_NEIGHBOURS

Player = Callable[[TurnRequest, random.Random], dict[str, Any]]


@dataclass
class OrderedChance:
    """Dice and draws in the order given."""

    rolls: list[tuple[int, int]] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)

    def roll(self) -> tuple[int, int]:
        return self.rolls.pop(0)

    def steal(self, cards: int) -> int:
        return self.draws.pop(0)


@dataclass
class Scene:
    """A table in the middle of player 0's turn, to be arranged by a test."""

    table: Table
    chance: OrderedChance

    def give(self, player: int, *hand: int) -> None:
        wood, brick, sheep, wheat, ore = hand
        self.table.take(player, (wood, brick, sheep, wheat, ore))

    def build(self, player: int, *, settlements: tuple[int, ...] = (), cities: tuple[int, ...] = ()) -> None:
        for node in settlements:
            self.table.buildings[node] = Building(player=player)
        for node in cities:
            self.table.buildings[node] = Building(player=player, is_city=True)

    def pave(self, player: int, *edges: int) -> None:
        for edge in edges:
            self.table.roads[edge] = player
        self.table.measure_roads()

    @staticmethod
    def edge(a: int, b: int) -> int:
        return EDGE_BETWEEN[min(a, b), max(a, b)]

    @staticmethod
    def trail(start: int, steps: int, avoid: tuple[int, ...] = ()) -> list[int]:
        """Nodes of a path along the island, `steps` edges long."""
        path = [start]
        while len(path) <= steps:
            path.append(next(n for n in NODE_NEIGHBOURS[path[-1]] if n not in path and n not in avoid))
        return path

    def edges_along(self, path: list[int]) -> list[int]:
        return [self.edge(a, b) for a, b in pairwise(path)]

    def play(self) -> Catan:
        """The game from here; forced moves are played at once."""
        return Catan(self.table, self.chance, seed=0)


@pytest.fixture
def scene() -> Scene:
    board = deal_board(0)
    table = Table(
        board=board,
        settings=Settings(),
        seats=[Seat() for _ in range(3)],
        deck=[card for card, count in DECK.items() for _ in range(count)],
        robber=board.desert,
        phase=Phase.MAIN,
        rolled=True,
    )
    return Scene(table, OrderedChance())


@pytest.fixture(scope="session")
def any_action() -> Player:
    """Any legal action, forms filled in at random."""
    return _any_action


def _any_action(request: TurnRequest, rng: random.Random) -> dict[str, Any]:
    assert request.legal is not None
    action: dict[str, Any] = rng.choice(request.legal)
    if not action.get("open"):
        return action
    held = [name for name, count in request.state["hand"].items() for _ in range(count)]
    if action["type"] == "discard":
        given = rng.sample(held, action["count"])
        return {"type": "discard", "cards": {name: given.count(name) for name in given}}
    give = rng.choice(held)
    get = rng.choice([name for name in request.state["hand"] if name != give])
    return {"type": "offer_trade", "give": {give: 1}, "get": {get: 1}}


def cards_in_play(table: Table) -> Hand:
    """Bank and hands together."""
    total = table.bank
    for seat in table.seats:
        total = add(total, seat.hand)
    return total


@pytest.fixture(scope="session")
def check_table() -> Callable[[Table], None]:
    """Everything that holds for every table at every moment."""

    def check(table: Table) -> None:
        assert cards_in_play(table) == (BANK_OF_EACH,) * 5
        assert min(min(seat.hand) for seat in table.seats) >= 0
        assert min(table.bank) >= 0
        for player in range(len(table.seats)):
            assert table.roads_left(player) >= 0
            assert table.settlements_left(player) >= 0
            assert table.cities_left(player) >= 0

    return check
