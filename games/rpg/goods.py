"""What can be bought, carried and drunk."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Item(StrEnum):
    """A thing with a price."""

    POTION = "potion"
    DRAUGHT = "draught"
    LEATHER = "leather"
    MAIL = "mail"
    KEEN_EDGE = "keen_edge"
    HAMMER = "hammer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """What an item costs in gold and does: drunk (hit or magic points), or worn (armour, extra damage)."""

    price: int
    hit_points: int = 0
    magic_points: int = 0
    armour: int = 0
    extra_damage: int = 0


GOODS: Final = {
    Item.POTION: Good(price=10, hit_points=8),
    Item.DRAUGHT: Good(price=10, magic_points=6),
    Item.LEATHER: Good(price=20, armour=1),
    Item.MAIL: Good(price=60, armour=2),
    Item.KEEN_EDGE: Good(price=30, extra_damage=1),
    Item.HAMMER: Good(price=40, extra_damage=1),  # wounds blunt, whoever swings it
}
DRINKS: Final = (Item.POTION, Item.DRAUGHT)
MAX_OF_EACH: Final = 9
MAX_GOLD: Final = 100_000
