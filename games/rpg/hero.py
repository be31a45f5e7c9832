"""A hero: rolled from dice, grown by play, carried as JSON from one adventure to the next."""

from dataclasses import dataclass, field
from typing import Any, Final

from games.rpg.classes import (
    BORN,
    KLASSES,
    MAX_LEVEL,
    MAX_PERCENT,
    SKILLS,
    SPREAD,
    STATS,
    WEAPON,
    Damage,
    Klass,
    Skill,
    Stat,
    born_hit_points,
    born_magic_points,
    born_skills,
    clamp,
    level_at,
)
from games.rpg.dice import Dice, several
from games.rpg.factions import FACTIONS, MAX_STANDING, Faction
from games.rpg.fighter import SHIELD_ARMOUR, Effect, Fighter
from games.rpg.goods import DRINKS, GOODS, MAX_GOLD, MAX_OF_EACH, Item

MAX_ANCESTORS: Final = 8  # the dead that a player's hero remembers
MAX_POINTS: Final = 1_000  # hit or magic points that a character may claim
MAX_XP: Final = 1_000_000
RAISED_SKILL_LOSS: Final = 10  # per cent points on every skill


@dataclass(slots=True, kw_only=True)
class Hero(Fighter):
    """One player's character."""

    id: str  # of the character, not of the player: a new one after each death
    klass: Klass
    stats: dict[Stat, int]
    skills: dict[Skill, int]
    mp: int
    max_mp: int
    xp: int = 0
    level: int = 1
    gold: int = 0
    items: dict[Item, int] = field(default_factory=dict)
    standing: dict[Faction, int] = field(default_factory=lambda: dict.fromkeys(FACTIONS, 0))
    dead: bool = False
    cause: str | None = None  # of death
    raised: bool | None = None  # a healer's one try to call the dead back: None, not tried
    ancestors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def dex(self) -> int:
        """What decides the order of turns."""
        return self.stats[Stat.DEX]

    @property
    def armour(self) -> int:
        """How much of every wound is taken off."""
        worn = max((GOODS[item].armour for item in self.items), default=0)
        return worn + (SHIELD_ARMOUR if self.has(Effect.SHIELDED) else 0)

    @property
    def extra_damage(self) -> int:
        """What bought weapons add to a blow."""
        return max((GOODS[item].extra_damage for item in self.items), default=0)

    @property
    def weapon(self) -> Damage:
        """How its blows wound."""
        return Damage.BLUNT if Item.HAMMER in self.items else WEAPON[self.klass]

    def grow(self, skill: Skill) -> None:
        """A success makes the skill better."""
        self.skills[skill] = min(MAX_PERCENT, self.skills[skill] + 1)

    def heal(self, points: int) -> int:
        """Give hit points back. Returns: how many there was room for."""
        healed = min(points, self.max_hp - self.hp)
        self.hp += healed
        return healed

    def regain(self, points: int) -> int:
        """Give magic points back. Returns: how many there was room for."""
        regained = min(points, self.max_mp - self.mp)
        self.mp += regained
        return regained

    def earn(self, gold: int) -> None:
        """Put gold in the purse."""
        self.gold = min(MAX_GOLD, self.gold + gold)

    def add_item(self, item: Item) -> None:
        """Put an item in the pack; a full pack leaves it."""
        self.items[item] = min(MAX_OF_EACH, self.items.get(item, 0) + 1)

    def use_up(self, item: Item) -> None:
        """Take one of an item out of the pack."""
        left = self.items.pop(item) - 1
        if left:
            self.items[item] = left

    def learn(self, xp: int, dice: Dice) -> int:
        """Gain experience; a new level gives points and a better skill. Returns: levels gained."""
        self.xp = min(MAX_XP, self.xp + xp)
        before = self.level
        while self.level < min(MAX_LEVEL, level_at(self.xp)):
            self.level += 1
            for attribute, gain in (("hp", 5 + self.level), ("mp", 3 + self.level)):
                setattr(self, attribute, getattr(self, attribute) + gain)
                setattr(self, f"max_{attribute}", getattr(self, f"max_{attribute}") + gain)
            skill = SKILLS[dice.roll(len(SKILLS)) - 1]
            self.skills[skill] = min(MAX_PERCENT, self.skills[skill] + 5)
        return self.level - before

    def please(self, faction: Faction, change: int) -> None:
        """Change what a faction thinks of this hero."""
        self.standing[faction] = clamp(self.standing[faction] + change, -MAX_STANDING, MAX_STANDING)

    def die(self, cause: str) -> None:
        """The end of this character: everything it carried is lost."""
        self.hp, self.mp, self.gold = 0, 0, 0
        self.dead, self.cause = True, cause
        self.items, self.effects = {}, {}

    def raise_up(self) -> None:
        """Called back from the dead: it plays again in the next adventure, weaker."""
        self.raised = True
        self.hp = 1
        self.xp //= 2
        self.skills = {skill: max(1, value - RAISED_SKILL_LOSS) for skill, value in self.skills.items()}

    def to_json(self) -> dict[str, Any]:
        """The character as it is carried on; images/rpg documents the same fields for `character.json`."""
        return {
            "id": self.id,
            "class": self.klass.value,
            "stats": {stat.value: self.stats[stat] for stat in STATS},
            "skills": {skill.value: self.skills[skill] for skill in SKILLS},
            "hp": self.hp,
            "max_hp": self.max_hp,
            "mp": self.mp,
            "max_mp": self.max_mp,
            "xp": self.xp,
            "level": self.level,
            "gold": self.gold,
            "items": {item.value: self.items[item] for item in Item if item in self.items},
            "standing": {faction.value: self.standing[faction] for faction in FACTIONS},
            "dead": self.dead,
            "cause": self.cause,
            "raised": self.raised,
            "ancestors": [dict(ancestor) for ancestor in self.ancestors],
        }


def roll_hero(identity: str, klass: Klass, dice: Dice, ancestors: list[dict[str, Any]]) -> Hero:
    """A newborn hero of this class with a full purse and a potion."""
    stats = {
        stat: born - SPREAD - 1 + dice.roll(2 * SPREAD + 1)
        for stat, born in zip(STATS, BORN[klass], strict=True)
    }
    hp, mp = born_hit_points(stats), born_magic_points(stats)
    return Hero(
        id=identity,
        klass=klass,
        stats=stats,
        skills=born_skills(stats),
        hp=hp,
        max_hp=hp,
        mp=mp,
        max_mp=mp,
        gold=20 + several(dice, 2, 6),
        items={DRINKS[0]: 1},
        ancestors=ancestors[-MAX_ANCESTORS:],
    )


def heir(dead: Hero, identity: str, klass: Klass, dice: Dice) -> Hero:
    """The newborn who takes the place of a dead hero and remembers it."""
    epitaph = {"id": dead.id, "class": dead.klass.value, "level": dead.level, "cause": dead.cause}
    return roll_hero(identity, klass, dice, [*dead.ancestors, epitaph])


def deal_classes(players: int, dice: Dice) -> list[Klass]:
    """A class for each player: all four before any comes twice."""
    dealt: list[Klass] = []
    while len(dealt) < players:
        left = list(KLASSES)
        while left:
            dealt.append(left.pop(dice.roll(len(left)) - 1))
    return dealt[:players]
