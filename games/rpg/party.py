"""The party that sets out: the heroes who come back, and the newborn in the place of the dead."""

from collections.abc import Sequence

from games.rpg.dice import Dice
from games.rpg.hero import Hero, deal_classes, heir, roll_hero
from games.rpg.papers import parse_hero

IDENTITY_SIDES = 1_000_000_000


def muster(characters: Sequence[Hero | None], dice: Dice) -> list[Hero]:
    """A living hero for every player, rested by a night in town."""
    classes = deal_classes(len(characters), dice)
    heroes = []
    for hero, klass in zip(characters, classes, strict=True):
        identity = f"hero-{dice.roll(IDENTITY_SIDES)}"
        if hero is None:
            heroes.append(roll_hero(identity, klass, dice, []))
        elif hero.dead and not hero.raised:
            heroes.append(heir(hero, identity, klass, dice))
        else:
            heroes.append(_rested(hero))
    return heroes


def mean_level(heroes: Sequence[Hero]) -> int:
    """The level for which a dungeon is made."""
    return sum(hero.level for hero in heroes) // len(heroes)


def _rested(hero: Hero) -> Hero:
    """A copy, so that the settings stay as they were; whoever was called back from the dead lives again."""
    copy = parse_hero(hero.to_json(), "character")
    copy.hp, copy.mp = copy.max_hp, copy.max_mp
    copy.dead, copy.cause, copy.raised = False, None, None
    return copy
