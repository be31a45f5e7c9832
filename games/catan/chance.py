"""Everything random in a game, from one seed.

Only `random.Random.random` is used: for it alone, not for `shuffle` or `choice`, the standard library
promises the same sequence for the same seed, and a log must replay on every later Python. Each use has a
stream of its own, so that one more steal does not change the dice.
"""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """What the rules ask of luck; tests give a scripted one."""

    def roll(self) -> tuple[int, int]:
        """Two dice, 1 to 6 each."""
        ...

    def steal(self, cards: int) -> int:
        """Which of `cards` face-down cards is drawn, from 0."""
        ...


class SeededChance:
    """Chance from a seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"catan dice {seed}")
        self._steals = random.Random(f"catan steals {seed}")

    def roll(self) -> tuple[int, int]:
        return 1 + below(self._dice, 6), 1 + below(self._dice, 6)

    def steal(self, cards: int) -> int:
        return below(self._steals, cards)


def below(rng: random.Random, limit: int) -> int:
    """A whole number from 0 to `limit - 1`."""
    return int(rng.random() * limit)


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """The items in random order (Fisher-Yates)."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = below(rng, last + 1)
        order[last], order[other] = order[other], order[last]
    return order
