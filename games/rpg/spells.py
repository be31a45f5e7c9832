"""Spells and the moves that only a class has, with what they cost."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from games.rpg.classes import Klass
from games.rpg.fighter import Effect
from games.rpg.moves import Act


class Aim(StrEnum):
    """What a spell is cast at."""

    ENEMY = "enemy"
    ALL_ENEMIES = "all_enemies"
    ALLY = "ally"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Costs `mp`; does `dice`d6 + `plus` + INT/20 to its target: wounds an enemy, heals an ally."""

    mp: int
    aim: Aim
    classes: tuple[Klass, ...]
    dice: int = 0
    plus: int = 0
    effect: Effect | None = None  # put on the target


SPELLS: Final = {
    "fireball": Spell(mp=3, aim=Aim.ALL_ENEMIES, classes=(Klass.MAGE,), dice=2),
    "ice_lance": Spell(mp=2, aim=Aim.ENEMY, classes=(Klass.MAGE,), dice=2, plus=4),
    "lightning": Spell(mp=4, aim=Aim.ENEMY, classes=(Klass.MAGE,), dice=3, plus=2, effect=Effect.STUNNED),
    "shield": Spell(mp=1, aim=Aim.ALLY, classes=(Klass.MAGE, Klass.HEALER), effect=Effect.SHIELDED),
    "heal": Spell(mp=2, aim=Aim.ALLY, classes=(Klass.HEALER,), dice=2, plus=3),
    "smite": Spell(mp=2, aim=Aim.ENEMY, classes=(Klass.HEALER,), dice=2, plus=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Privilege:
    """A move of one class; a group move needs company that lives."""

    klass: Klass
    mp: int = 0
    needs_party: bool = True


PRIVILEGES: Final = {
    Act.MEND: Privilege(klass=Klass.HEALER, mp=5),
    Act.TAUNT: Privilege(klass=Klass.WARRIOR),
    Act.STORM: Privilege(klass=Klass.MAGE, mp=8),
    Act.RESURRECT: Privilege(klass=Klass.HEALER, mp=4, needs_party=False),
}
MEND_PLUS: Final = 10  # and a d6
STORM_PLUS: Final = 8  # and a d8, to each enemy
SCOUT_DISARM_BONUS: Final = 30  # per cent points, in company
RESURRECT_PENALTY: Final = -20  # per cent points on cast
