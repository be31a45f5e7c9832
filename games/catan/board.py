"""One island: terrain, number tokens and ports, dealt from a seed."""

import random
from dataclasses import dataclass
from typing import Final

from games.catan.cards import Resource
from games.catan.chance import shuffled
from games.catan.topology import EDGES, HEX_COUNT, HEX_NEIGHBOURS, PORT_EDGES

# Base game, Catan Studio rulebook: terrain hexes, number tokens, harbours.
TERRAIN: Final[tuple[Resource | None, ...]] = (
    (Resource.WOOD,) * 4
    + (Resource.BRICK,) * 3
    + (Resource.SHEEP,) * 4
    + (Resource.WHEAT,) * 4
    + (Resource.ORE,) * 3
    + (None,)
)
NUMBERS: Final = (2, 3, 3, 4, 4, 5, 5, 6, 6, 8, 8, 9, 9, 10, 10, 11, 11, 12)
RED_NUMBERS: Final = (6, 8)
PORT_KINDS: Final[tuple[Resource | None, ...]] = (*Resource, None, None, None, None)

RATE: Final = 4  # cards for one, without a port
ANY_PORT_RATE: Final = 3
OWN_PORT_RATE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What lies on the table and never moves; the robber is not part of it."""

    terrain: tuple[Resource | None, ...]  # per hex; None is the desert
    numbers: tuple[int | None, ...]  # per hex; None on the desert
    ports: tuple[tuple[int, Resource | None], ...]  # (edge, what it trades); None takes anything at 3:1

    @property
    def desert(self) -> int:
        """The hex where the robber starts."""
        return self.terrain.index(None)

    def port_at(self, node: int) -> tuple[bool, Resource | None]:
        """(is there a port at this node, what it trades)."""
        for edge, kind in self.ports:
            if node in EDGES[edge]:
                return True, kind
        return False, None


def pips(number: int | None) -> int:
    """How many of the 36 rolls give this number: the dots on the token."""
    return 0 if number is None else 6 - abs(7 - number)


def deal_board(seed: int) -> Board:
    """Shuffle terrain, tokens and ports; two red tokens never touch."""
    rng = random.Random(f"catan board {seed}")
    terrain = tuple(shuffled(rng, TERRAIN))
    numbers = _deal_numbers(rng, terrain)
    while _reds_touch(numbers):
        numbers = _deal_numbers(rng, terrain)
    ports = tuple(zip(PORT_EDGES, shuffled(rng, PORT_KINDS), strict=True))
    return Board(terrain=terrain, numbers=numbers, ports=ports)


def _deal_numbers(rng: random.Random, terrain: tuple[Resource | None, ...]) -> tuple[int | None, ...]:
    tokens = iter(shuffled(rng, NUMBERS))
    return tuple(None if kind is None else next(tokens) for kind in terrain)


def _reds_touch(numbers: tuple[int | None, ...]) -> bool:
    reds = {tile for tile in range(HEX_COUNT) if numbers[tile] in RED_NUMBERS}
    return any(reds.intersection(HEX_NEIGHBOURS[tile]) for tile in reds)
