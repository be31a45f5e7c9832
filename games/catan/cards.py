"""Resource and development cards, and what things cost."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from games.errors import IllegalAction


class Resource(StrEnum):
    """The five resources, in the order in which a hand counts them."""

    WOOD = "wood"
    BRICK = "brick"
    SHEEP = "sheep"
    WHEAT = "wheat"
    ORE = "ore"


class Card(StrEnum):
    """The development cards."""

    KNIGHT = "knight"
    VICTORY_POINT = "victory_point"
    ROAD_BUILDING = "road_building"
    YEAR_OF_PLENTY = "year_of_plenty"
    MONOPOLY = "monopoly"


Hand = tuple[int, int, int, int, int]
"""How many cards of each resource, in the order of `Resource`."""

RESOURCES: Final = tuple(Resource)
CARDS: Final = tuple(Card)
EMPTY: Final[Hand] = (0, 0, 0, 0, 0)

# Base game, Catan Studio rulebook: 19 cards of each resource, 25 development cards.
BANK_OF_EACH: Final = 19
DECK: Final = {
    Card.KNIGHT: 14,
    Card.VICTORY_POINT: 5,
    Card.ROAD_BUILDING: 2,
    Card.YEAR_OF_PLENTY: 2,
    Card.MONOPOLY: 2,
}

ROAD_COST: Final[Hand] = (1, 1, 0, 0, 0)
SETTLEMENT_COST: Final[Hand] = (1, 1, 1, 1, 0)
CITY_COST: Final[Hand] = (0, 0, 0, 2, 3)
CARD_COST: Final[Hand] = (0, 0, 1, 1, 1)


def hand_of(resources: Iterable[Resource]) -> Hand:
    """Count the cards of a list: two wheat and an ore are (0, 0, 0, 2, 1)."""
    listed = list(resources)
    return as_hand(listed.count(resource) for resource in RESOURCES)


def single(resource: Resource, count: int = 1) -> Hand:
    """A hand of `count` cards of one resource."""
    return as_hand(count if other is resource else 0 for other in RESOURCES)


def add(left: Hand, right: Hand) -> Hand:
    """Put two hands together."""
    return as_hand(a + b for a, b in zip(left, right, strict=True))


def subtract(left: Hand, right: Hand) -> Hand:
    """Take `right` out of `left`, which must cover it."""
    rest = as_hand(a - b for a, b in zip(left, right, strict=True))
    if min(rest) < 0:
        raise ValueError(f"{left} does not cover {right}")
    return rest


def covers(hand: Hand, cost: Hand) -> bool:
    """True if every card of `cost` is in `hand`."""
    return all(a >= b for a, b in zip(hand, cost, strict=True))


def times(hand: Hand, factor: int) -> Hand:
    """A hand `factor` times as large."""
    return as_hand(count * factor for count in hand)


def hand_to_json(hand: Hand) -> dict[str, int]:
    """Only what is there: {"wheat": 2, "ore": 1}."""
    return {resource.value: count for resource, count in zip(RESOURCES, hand, strict=True) if count}


def parse_hand(value: Any, field: str) -> Hand:
    """Read a hand a stranger wrote. Raises: IllegalAction."""
    if not isinstance(value, dict) or len(value) > len(RESOURCES):
        raise IllegalAction(f"{field} must be an object of resource: count")
    counts = dict.fromkeys(RESOURCES, 0)
    for name, count in value.items():
        if type(count) is not int or not 0 <= count <= BANK_OF_EACH:  # True is an int, and no count
            raise IllegalAction(f"{field}: a count must be a whole number from 0 to {BANK_OF_EACH}")
        counts[parse_resource(name, field)] = count
    return as_hand(counts.values())


def parse_resource(value: Any, field: str) -> Resource:
    """Read a resource a stranger wrote. Raises: IllegalAction."""
    if not isinstance(value, str) or value not in _RESOURCE_NAMES:
        raise IllegalAction(f"{field} must be one of {', '.join(RESOURCES)}")
    return Resource(value)


def as_hand(counts: Iterable[int]) -> Hand:
    """Five counts as a hand, in the order of `Resource`."""
    wood, brick, sheep, wheat, ore = counts
    return wood, brick, sheep, wheat, ore


_RESOURCE_NAMES: Final = frozenset(resource.value for resource in RESOURCES)
