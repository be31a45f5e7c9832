"""The four classes: what they are born with, and how skills and points follow from it."""

from enum import StrEnum
from typing import Final


class Klass(StrEnum):
    """What a hero is."""

    WARRIOR = "warrior"
    SCOUT = "scout"
    MAGE = "mage"
    HEALER = "healer"


class Stat(StrEnum):
    """What a hero is born with, 1 to 100."""

    STR = "str"
    DEX = "dex"
    INT = "int"
    WIS = "wis"


class Skill(StrEnum):
    """What a hero does, in per cent; a success makes it grow."""

    ATTACK = "attack"
    DODGE = "dodge"
    CAST = "cast"
    USE_SKILL = "use_skill"


class Damage(StrEnum):
    """How a weapon wounds; skeletons care."""

    SLASHING = "slashing"
    PIERCING = "piercing"
    BLUNT = "blunt"


KLASSES: Final = tuple(Klass)
STATS: Final = tuple(Stat)
SKILLS: Final = tuple(Skill)
BORN: Final[dict[Klass, tuple[int, int, int, int]]] = {  # STR, DEX, INT, WIS
    Klass.WARRIOR: (75, 50, 40, 40),
    Klass.SCOUT: (45, 75, 45, 40),
    Klass.MAGE: (35, 45, 80, 55),
    Klass.HEALER: (40, 45, 55, 80),
}
WEAPON: Final[dict[Klass, Damage]] = {
    Klass.WARRIOR: Damage.SLASHING,
    Klass.SCOUT: Damage.PIERCING,
    Klass.MAGE: Damage.BLUNT,
    Klass.HEALER: Damage.BLUNT,
}
SPREAD: Final = 5  # a newborn's stats lie this far around those of the class
MAX_PERCENT: Final = 100
MAX_LEVEL: Final = 10
XP_OF_LEVEL: Final = (0, 100, 300, 600, 1000, 1500, 2100, 2800, 3600, 4500)  # from level 1


def born_skills(stats: dict[Stat, int]) -> dict[Skill, int]:
    """The skills of a newborn hero."""
    strength, dexterity, intellect, wisdom = (stats[stat] for stat in STATS)
    skills = {
        Skill.ATTACK: 30 + 45 * strength // 100,
        Skill.DODGE: 25 + 45 * dexterity // 100,
        Skill.CAST: 25 + 45 * intellect // 100,
        Skill.USE_SKILL: 25 + 25 * (intellect + wisdom) // 100,
    }
    return {skill: clamp(value, 1, MAX_PERCENT) for skill, value in skills.items()}


def born_hit_points(stats: dict[Stat, int]) -> int:
    """The hit points of a newborn hero."""
    return 10 + (stats[Stat.STR] + stats[Stat.WIS]) // 20


def born_magic_points(stats: dict[Stat, int]) -> int:
    """The magic points of a newborn hero."""
    return stats[Stat.INT] // 10 + stats[Stat.WIS] // 10


def level_at(xp: int) -> int:
    """The level that this much experience gives."""
    return sum(1 for needed in XP_OF_LEVEL if xp >= needed)


def clamp(value: int, low: int, high: int) -> int:
    """The nearest number from `low` to `high`."""
    return max(low, min(high, value))
