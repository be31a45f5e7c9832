"""Blows and spells: opposed rolls, criticals, fumbles, wounds."""

from dataclasses import dataclass
from typing import Final

from games.rpg.classes import Skill, Stat
from games.rpg.dice import Dice, several
from games.rpg.enemies import ORC_RAGE_DAMAGE, ORC_RAGE_TO_HIT, Enemy, Kind, choose_target
from games.rpg.factions import KILL_OFFENDS, KILL_PLEASES, Faction
from games.rpg.fighter import GUARD_BONUS, HIDDEN_BONUS, POISON_TURNS, SHIELD_TURNS, Effect
from games.rpg.quest import Quest
from games.rpg.spells import SPELLS, STORM_PLUS, Aim

FUMBLE_FROM: Final = 96  # on d100
CRITICAL_PART: Final = 5  # a roll of at most skill / 5 doubles the damage
KILL_XP: Final = 25  # shared by the living
BOSS_XP: Final = 100  # likewise
BOSS_GOLD: Final = 25  # to each of the living


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """How an opposed roll went."""

    hits: bool
    critical: bool
    fumble: bool
    attack_succeeds: bool
    dodge_succeeds: bool


def clash(attack: int, dodge: int, dice: Dice) -> Clash:
    """Roll attack against dodge, d100 each. If both succeed the larger margin wins, a tie the defender."""
    roll, answer = dice.roll(100), dice.roll(100)
    attacks, dodges = roll <= attack and roll < FUMBLE_FROM, answer <= dodge
    return Clash(
        hits=attacks and (not dodges or attack - roll > dodge - answer),
        critical=roll <= attack // CRITICAL_PART,
        fumble=roll >= FUMBLE_FROM,
        attack_succeeds=attacks,
        dodge_succeeds=dodges,
    )


def strike(quest: Quest, player: int, foe: Enemy, dice: Dice) -> bool:
    """A hero's blow at an enemy. Returns: whether it wounded."""
    hero = quest.heroes[player]
    bonus = HIDDEN_BONUS if hero.effects.pop(Effect.HIDDEN, 0) else 0
    rolled = clash(hero.skills[Skill.ATTACK] + bonus, 0 if foe.has(Effect.STUNNED) else foe.dodge, dice)
    damage = dice.roll(6) + hero.stats[Stat.STR] // 25 + hero.extra_damage
    if rolled.fumble:
        quest.tell("fumble", player=player)
        quest.hurt(player, damage // 2, "a fumbled blow")
        return False
    if rolled.attack_succeeds:
        hero.grow(Skill.ATTACK)
    if not rolled.hits:
        quest.tell("miss", player=player, foe=foe.id, kind=foe.kind.value)
        return False
    dealt = foe.wound_by(damage * (2 if rolled.critical else 1), hero.weapon)
    wound_enemy(quest, player, foe, dealt, "critical" if rolled.critical else "blow", dice)
    return dealt > 0


def cast(quest: Quest, player: int, name: str, target: int | None, dice: Dice) -> bool:
    """A spell, already found to be castable: paid for, then a check of cast. Returns: whether it worked."""
    spell, hero = SPELLS[name], quest.heroes[player]
    hero.mp -= spell.mp
    hero.effects.pop(Effect.HIDDEN, 0)
    roll, skill = dice.roll(100), hero.skills[Skill.CAST]
    power = several(dice, spell.dice, 6) + spell.plus + quest.spell_bonus(player)
    if roll > skill or roll >= FUMBLE_FROM:
        quest.tell("fizzle", player=player, spell=name)
        if roll >= FUMBLE_FROM and spell.aim is not Aim.ALLY:
            quest.hurt(player, power // 2, "a fumbled spell")
        return False
    hero.grow(Skill.CAST)
    power *= 2 if roll <= skill // CRITICAL_PART else 1
    quest.tell("spell", player=player, spell=name)
    if spell.aim is Aim.ALLY:
        return _bless(quest, player, name, target if target is not None else player, power)
    foes = quest.room.here() if spell.aim is Aim.ALL_ENEMIES else [quest.enemy(target or 0)]
    for foe in foes:
        if foe is not None:
            wound_enemy(quest, player, foe, foe.wound_by(power, None), name, dice)
            if spell.effect and foe.is_here:
                foe.effects[spell.effect] = 1
    return True


def storm(quest: Quest, player: int, dice: Dice) -> bool:
    """The Mage's group move: every enemy is wounded, each by its own die."""
    for foe in quest.room.here():
        wound_enemy(quest, player, foe, foe.wound_by(STORM_PLUS + dice.roll(8), None), "storm", dice)
    return True


def wound_enemy(quest: Quest, player: int, foe: Enemy, damage: int, how: str, dice: Dice) -> None:
    """Take hit points from an enemy; a kill is experience and is remembered by its faction."""
    foe.hp = max(0, foe.hp - damage)
    facts = {"player": player, "foe": foe.id, "kind": foe.kind.value}
    quest.tell("wound", **facts, damage=damage, how=how, condition=foe.condition())
    if foe.is_standing:
        return
    quest.tell("kill", **facts)
    living = quest.living()
    is_boss = foe.kind is Kind.BOSS
    for other in living:
        hero = quest.heroes[other]
        hero.please(foe.breed.faction, KILL_OFFENDS)
        hero.please(Faction.TOWN, KILL_PLEASES)
        hero.earn(BOSS_GOLD if is_boss else 1 + foe.strength)
        quest.reward(other, (BOSS_XP if is_boss else KILL_XP) // len(living), dice)


def enemy_turn(quest: Quest, foe: Enemy, dice: Dice) -> None:
    """What an enemy does when its turn comes, by the ways of its kind."""
    if foe.has(Effect.STUNNED):
        foe.tick()
        quest.tell("stunned", foe=foe.id, kind=foe.kind.value)
        return
    foe.tick()
    if foe.wants_to_flee:
        foe.fled = True
        quest.tell("foe_fled", foe=foe.id, kind=foe.kind.value)
        return
    if foe.in_second_phase and quest.round % 2 == 0:
        quest.tell("boss_sweep", foe=foe.id)
        for player in quest.living():
            if not quest.is_hidden(player):
                _enemy_blow(quest, foe, player, dice, "the warlord's sweep")
        return
    target = _target(quest, foe, dice)
    if target is None:
        quest.tell("foe_searches", foe=foe.id, kind=foe.kind.value)
        return
    _enemy_blow(quest, foe, target, dice, _name(foe))


def _target(quest: Quest, foe: Enemy, dice: Dice) -> int | None:
    """The player whom this enemy strikes."""
    hero = choose_target(foe, quest.survivors(), dice)
    return None if hero is None else next(p for p, other in enumerate(quest.heroes) if other is hero)


def _name(foe: Enemy) -> str:
    article = {Kind.BOSS: "the", Kind.ORC: "an"}.get(foe.kind, "a")
    return f"{article} {foe.kind.value}"


def _enemy_blow(quest: Quest, foe: Enemy, player: int, dice: Dice, cause: str) -> None:
    hero, rage = quest.heroes[player], foe.is_raging
    guard = GUARD_BONUS if hero.has(Effect.GUARDING) else 0
    dodge = 0 if hero.has(Effect.STUNNED) else hero.skills[Skill.DODGE] + guard
    rolled = clash(foe.attack + (ORC_RAGE_TO_HIT if rage else 0), dodge, dice)
    damage = dice.roll(6) + foe.strength + (ORC_RAGE_DAMAGE if rage else 0)
    if rolled.fumble:
        quest.tell("foe_fumble", foe=foe.id, kind=foe.kind.value)
        foe.hp = max(1, foe.hp - damage // 2)  # no enemy kills itself: a kill has somebody's name on it
        return
    if rolled.dodge_succeeds and not rolled.hits:
        hero.grow(Skill.DODGE)
    if not rolled.hits:
        quest.tell("foe_miss", foe=foe.id, kind=foe.kind.value, player=player)
        return
    quest.hurt(player, damage * (2 if rolled.critical else 1), cause)
    if rolled.critical and foe.kind is Kind.SKELETON and not hero.dead:
        hero.effects[Effect.POISONED] = POISON_TURNS  # grave dirt
        quest.tell("poisoned", player=player)
    if rolled.critical and foe.kind is Kind.BOSS and not hero.dead:
        hero.effects[Effect.STUNNED] = 1
        quest.tell("stunned", player=player)


def _bless(quest: Quest, player: int, name: str, target: int, power: int) -> bool:
    hero = quest.heroes[target]
    if SPELLS[name].effect is Effect.SHIELDED:
        hero.effects[Effect.SHIELDED] = SHIELD_TURNS + 1
        quest.tell("shielded", player=target, by=player)
        return True
    healed = hero.heal(power)
    quest.tell("healed", player=target, by=player, points=healed, hp=hero.hp)
    return healed > 0
