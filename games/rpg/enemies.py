"""Enemies: what they are, how strong a party makes them, and whom they strike."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from games.rpg.classes import Damage, Klass
from games.rpg.dice import Dice, pick
from games.rpg.factions import Faction
from games.rpg.fighter import Effect, Fighter
from games.rpg.hero import Hero


class Kind(StrEnum):
    """What an enemy is."""

    GOBLIN = "goblin"
    ORC = "orc"
    SKELETON = "skeleton"
    BOSS = "warlord"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breed:
    """An enemy of level 1: skills in per cent, damage d6 plus `strength`."""

    faction: Faction
    hp: int
    dex: int
    attack: int
    dodge: int
    strength: int
    armour: int = 0


BREEDS: Final = {
    Kind.GOBLIN: Breed(faction=Faction.CLANS, hp=12, dex=60, attack=45, dodge=35, strength=0),
    Kind.ORC: Breed(faction=Faction.HORDE, hp=18, dex=40, attack=48, dodge=25, strength=1, armour=1),
    Kind.SKELETON: Breed(faction=Faction.COURT, hp=14, dex=48, attack=45, dodge=30, strength=1),
    Kind.BOSS: Breed(faction=Faction.HORDE, hp=60, dex=55, attack=65, dodge=35, strength=2, armour=1),
}
COMMON: Final = (Kind.GOBLIN, Kind.ORC, Kind.SKELETON)
GOBLIN_FLEES_PERCENT: Final = 30  # of its hit points
ORC_RAGE_DAMAGE: Final = 10  # an orc below half its hit points strikes wildly: harder,
ORC_RAGE_TO_HIT: Final = -10  # and less often, in per cent points
PIERCING_PERCENT: Final = 50  # of damage that a skeleton takes
BLUNT_PERCENT: Final = 150
LEVEL_HP_PERCENT: Final = 45  # more hit points for each level of the party above the first
LEVEL_SKILL: Final = 3  # per cent points for each such level
BOSS_HP_PERCENT_PER_HERO: Final = 33  # a boss is made for three heroes


@dataclass(slots=True, kw_only=True)
class Enemy(Fighter):
    """One enemy in a room; its numbers are hidden from the players."""

    id: int  # from 1, in its room
    kind: Kind
    attack: int
    dodge: int
    strength: int
    fled: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it still stands and has not run."""
        return self.is_standing and not self.fled

    @property
    def breed(self) -> Breed:
        """What all of its kind share."""
        return BREEDS[self.kind]

    @property
    def is_weak(self) -> bool:
        """Whether it can be frightened away."""
        return self.kind is Kind.GOBLIN or (self.kind is not Kind.BOSS and 2 * self.hp < self.max_hp)

    @property
    def is_raging(self) -> bool:
        """Whether an orc is hurt enough to strike wildly."""
        return self.kind is Kind.ORC and 2 * self.hp < self.max_hp

    @property
    def wants_to_flee(self) -> bool:
        """Whether a goblin has had enough."""
        return self.kind is Kind.GOBLIN and 100 * self.hp < GOBLIN_FLEES_PERCENT * self.max_hp

    @property
    def in_second_phase(self) -> bool:
        """Whether a boss fights all at once: from half its hit points down."""
        return self.kind is Kind.BOSS and 2 * self.hp <= self.max_hp

    def condition(self) -> str:
        """How it looks, which is all that the players learn."""
        if not self.is_here:
            return "fled" if self.is_standing else "dead"
        if self.hp == self.max_hp:
            return "unhurt"
        return "hurt" if 2 * self.hp > self.max_hp else "badly hurt"

    def wound_by(self, damage: int, weapon: Damage | None) -> int:
        """What `damage` does to it after armour and bones; weapon None is magic. Not below 0."""
        if self.kind is Kind.SKELETON and weapon is Damage.PIERCING:
            damage = damage * PIERCING_PERCENT // 100
        if self.kind is Kind.SKELETON and weapon is Damage.BLUNT:
            damage = damage * BLUNT_PERCENT // 100
        return max(0, damage - (self.breed.armour if weapon else 0))


def spawn(kind: Kind, identity: int, level: int, heroes: int, dice: Dice) -> Enemy:
    """An enemy made for a party of this mean level; its hit points vary."""
    breed, above = BREEDS[kind], level - 1
    hp = breed.hp * (100 + LEVEL_HP_PERCENT * above) // 100 - 2 + dice.roll(3)
    if kind is Kind.BOSS:
        hp = hp * (BOSS_HP_PERCENT_PER_HERO * max(2, heroes) + 1) // 100
    return Enemy(
        id=identity,
        kind=kind,
        hp=hp,
        max_hp=hp,
        attack=min(95, breed.attack + LEVEL_SKILL * above),
        dodge=min(80, breed.dodge + LEVEL_SKILL * above),
        strength=breed.strength + above,
    )


def choose_target(enemy: Enemy, heroes: Sequence[Hero], dice: Dice) -> Hero | None:
    """Whom the enemy strikes, by the ways of its kind; None when it sees nobody."""
    seen = [hero for hero in heroes if not hero.dead and not hero.has(Effect.HIDDEN)]
    if taunting := [hero for hero in seen if hero.has(Effect.TAUNTING)]:
        return taunting[0]
    if not seen:
        return None
    match enemy.kind:
        case Kind.GOBLIN:
            mages = [hero for hero in seen if hero.klass is Klass.MAGE]
            return mages[0] if mages else min(seen, key=lambda hero: hero.hp)
        case Kind.ORC:
            return max(seen, key=lambda hero: hero.hp)
        case Kind.SKELETON:
            return pick(dice, seen)
        case Kind.BOSS:
            healers = [hero for hero in seen if hero.klass is Klass.HEALER]
            return healers[0] if healers else pick(dice, seen)
