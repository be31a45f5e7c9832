"""A dungeon: rooms in a row, the boss in the last one."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from games.rpg.classes import KLASSES, Klass
from games.rpg.dice import Dice, pick
from games.rpg.enemies import COMMON, Enemy, Kind, spawn


class RoomKind(StrEnum):
    """What a room holds."""

    REST = "rest"
    COMBAT = "combat"
    TRAP = "trap"
    TREASURE = "treasure"
    PUZZLE = "puzzle"
    BARRIER = "barrier"
    BOSS = "boss"


WITH_FOES: Final = (RoomKind.COMBAT, RoomKind.BOSS)
BARRED: Final = (RoomKind.PUZZLE, RoomKind.BARRIER)  # nobody gets on before they are open
# How often a room in the middle is of each kind.
WEIGHTS: Final = (
    RoomKind.COMBAT,
    RoomKind.COMBAT,
    RoomKind.COMBAT,
    RoomKind.TRAP,
    RoomKind.TREASURE,
    RoomKind.PUZZLE,
    RoomKind.BARRIER,
    RoomKind.REST,
)
NAMES: Final = (
    "Gate",
    "Stairs",
    "Well",
    "Gallery",
    "Crypt",
    "Forge",
    "Cistern",
    "Archive",
    "Kennels",
    "Vault",
    "Chapel",
)  # at least as many as rooms before the last
AMBUSH_HEAD_COUNT: Final = 4  # a d4 decides how many lie in wait, but never more than the danger allows


@dataclass(slots=True, kw_only=True)
class Room:
    """One room and what has become of it."""

    kind: RoomKind
    name: str
    foes: list[Enemy] = field(default_factory=list)
    is_ambush: bool = False
    klass: Klass | None = None  # whom a barrier lets through
    cleared: bool = False  # nothing stands in the way any more
    tries: int = 0  # at a barrier
    tried: set[tuple[int, str]] = field(default_factory=set)  # what a player may do once here

    def here(self) -> list[Enemy]:
        """The enemies that are still here."""
        return [foe for foe in self.foes if foe.is_here]

    @property
    def has_living_boss(self) -> bool:
        """Whether the boss of this room lives."""
        return any(foe.kind is Kind.BOSS for foe in self.here())


def danger(heroes: int) -> int:
    """How many enemies a room is good for: as many as heroes, ×2 against one alone, ×1.5 against two."""
    return {1: 2, 2: 3}.get(heroes, heroes)


def deal_dungeon(rooms: int, heroes: int, level: int, dice: Dice) -> list[Room]:
    """The rooms for a party of this size and mean level. At least one has enemies before the boss."""
    kinds = [pick(dice, WEIGHTS) for _ in range(rooms - 1)]
    if RoomKind.COMBAT not in kinds:
        kinds[dice.roll(len(kinds)) - 1] = RoomKind.COMBAT
    names, dungeon = list(NAMES), []
    for kind in kinds:
        names.remove(name := pick(dice, names))
        dungeon.append(_furnish(kind, name, heroes, level, dice))
    return [*dungeon, _furnish(RoomKind.BOSS, "Throne", heroes, level, dice)]


def _furnish(kind: RoomKind, name: str, heroes: int, level: int, dice: Dice) -> Room:
    room = Room(kind=kind, name=name, cleared=kind in (RoomKind.REST, RoomKind.TREASURE))
    if kind is RoomKind.COMBAT:
        room.is_ambush = dice.roll(2) == 1
        count = danger(heroes)
        if room.is_ambush:
            count = min(count, dice.roll(AMBUSH_HEAD_COUNT) + 1)
        breed = pick(dice, COMMON)
        room.foes = [spawn(breed, number, level, heroes, dice) for number in range(1, count + 1)]
    if kind is RoomKind.BOSS:
        room.foes = [spawn(Kind.BOSS, 1, level, heroes, dice)]
        if heroes > 2:
            room.foes.append(spawn(pick(dice, COMMON), 2, level, heroes, dice))
    if kind is RoomKind.BARRIER:
        room.klass = pick(dice, KLASSES)
    return room
