"""What heroes and enemies have in common: hit points, and effects that last for some turns."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """Something that lasts; each one changes what the rules do."""

    STUNNED = "stunned"  # loses its next turn
    HIDDEN = "hidden"  # cannot be chosen as a target; its next attack is easier and ends it
    GUARDING = "guarding"  # dodges better until its own next turn
    TAUNTING = "taunting"  # draws every enemy until its own next turn
    SHIELDED = "shielded"  # wounds are less deep
    POISONED = "poisoned"  # loses a hit point at the start of each turn


GUARD_BONUS: Final = 20  # per cent points on dodge
HIDDEN_BONUS: Final = 20  # per cent points on the attack out of hiding
SHIELD_ARMOUR: Final = 3
SHIELD_TURNS: Final = 3
POISON_TURNS: Final = 3
POISON_DAMAGE: Final = 1
UNTIL_BROKEN: Final = 1_000  # turns: longer than any fight


@dataclass(slots=True, kw_only=True)
class Fighter:
    """Somebody who can be hurt."""

    hp: int
    max_hp: int
    effects: dict[Effect, int] = field(default_factory=dict)  # turns left

    @property
    def is_standing(self) -> bool:
        """Whether it has hit points left."""
        return self.hp > 0

    def has(self, effect: Effect) -> bool:
        """Whether the effect is on it now."""
        return effect in self.effects

    def tick(self) -> None:
        """A turn of its own begins: what has run out ends."""
        self.effects = {effect: left - 1 for effect, left in self.effects.items() if left > 1}
