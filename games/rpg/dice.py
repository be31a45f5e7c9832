"""Every die of an adventure, from one seed.

Only `random.Random.random` is used: for it alone the standard library promises the same sequence for the same
seed on every later Python, and a log must replay there.
"""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Dice(Protocol):
    """What the rules ask of luck; tests give scripted ones."""

    def roll(self, sides: int) -> int:
        """One die: a whole number from 1 to `sides`."""
        ...


class SeededDice:
    """Dice from a seed. Streams of one seed are independent: the dungeon is dealt apart from the play."""

    def __init__(self, seed: int, stream: str = "play") -> None:
        self._random = random.Random(f"rpg {stream} {seed}")

    def roll(self, sides: int) -> int:
        return 1 + int(self._random.random() * sides)


def several(dice: Dice, count: int, sides: int) -> int:
    """The sum of `count` dice."""
    return sum(dice.roll(sides) for _ in range(count))


def pick(dice: Dice, items: Sequence[T]) -> T:
    """One of the items, each with equal chance; there must be one."""
    return items[dice.roll(len(items)) - 1]
