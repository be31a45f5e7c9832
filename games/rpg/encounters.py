"""What heroes do about enemies: fight, talk, frighten, sneak, hide, run, heal."""

from typing import Final

from games.rpg.blows import KILL_XP, cast, storm, strike, wound_enemy
from games.rpg.classes import Klass, Skill
from games.rpg.dice import Dice, several
from games.rpg.factions import PEACE_PLEASES, TALK_BONUS, mood
from games.rpg.fighter import UNTIL_BROKEN, Effect
from games.rpg.goods import GOODS, Item
from games.rpg.moves import Act, Move
from games.rpg.quest import Phase, Quest
from games.rpg.rooms import walk_to
from games.rpg.spells import MEND_PLUS, PRIVILEGES, RESURRECT_PENALTY, SPELLS, Aim

FLEE_PERCENT: Final = 50
FLEE_XP: Final = 10
SNEAK_PERCENT: Final = 50
SCOUT_SNEAK_BONUS: Final = 20
INTIMIDATE_PERCENT: Final = 45
NEGOTIATE_PERCENT: Final = 40
NEGOTIATE_PER_LEVEL: Final = 5
PEACE_XP_PERCENT: Final = 75  # of what the fight would have given


def attack(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """A blow; before a fight it also begins one."""
    foe = quest.enemy(move.target or 0)
    assert foe is not None
    achieved = strike(quest, player, foe, dice)
    fight_on(quest, dice)
    return achieved


def cast_spell(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """A spell; one at enemies before a fight also begins it."""
    achieved = cast(quest, player, move.word or "", move.target, dice)
    if SPELLS[move.word or ""].aim is not Aim.ALLY:
        fight_on(quest, dice)
    return achieved


def storm_all(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """The Mage's group move."""
    quest.heroes[player].mp -= PRIVILEGES[Act.STORM].mp
    quest.tell("storm", player=player)
    storm(quest, player, dice)
    fight_on(quest, dice)
    return True


def taunt(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """The Warrior's group move: until its next turn every enemy strikes at it."""
    quest.heroes[player].effects[Effect.TAUNTING] = 1
    quest.tell("taunt", player=player)
    return True


def defend(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Dodge better until the next turn."""
    quest.heroes[player].effects[Effect.GUARDING] = 1
    quest.tell("defend", player=player)
    return False


def hide(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Get out of sight: no enemy strikes at the hidden, and their next blow is easier."""
    hidden = dice.roll(100) <= SNEAK_PERCENT + _scout_bonus(quest, player)
    if hidden:
        quest.heroes[player].effects[Effect.HIDDEN] = UNTIL_BROKEN
    quest.tell("hide", player=player, works=hidden)
    return hidden


def mend(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """The Healer's group move: another hero gets well."""
    assert move.target is not None
    quest.heroes[player].mp -= PRIVILEGES[Act.MEND].mp
    healed = quest.heroes[move.target].heal(MEND_PLUS + dice.roll(6))
    quest.tell("healed", player=move.target, by=player, points=healed, hp=quest.heroes[move.target].hp)
    return True


def drink(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Empty a bottle."""
    hero, item = quest.heroes[player], Item(move.word or "")
    hero.use_up(item)
    points = hero.heal(GOODS[item].hit_points) + hero.regain(GOODS[item].magic_points)
    quest.tell("drink", player=player, item=item.value, points=points)
    return True


def resurrect(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Call a dead hero back, once: it stays behind now, and comes along to the next adventure."""
    assert move.target is not None
    quest.heroes[player].mp -= PRIVILEGES[Act.RESURRECT].mp
    dead = quest.heroes[move.target]
    if quest.check(player, Skill.CAST, RESURRECT_PENALTY, dice):
        dead.raise_up()
    else:
        dead.raised = False
    quest.tell("resurrect", player=move.target, by=player, works=bool(dead.raised))
    return bool(dead.raised)


def negotiate(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Talk the enemies into leaving; if that fails before a fight, they attack."""
    quest.room.tried.add((player, Act.NEGOTIATE.value))
    hero, foes = quest.heroes[player], quest.room.here()
    faction = foes[0].breed.faction
    percent = NEGOTIATE_PERCENT + NEGOTIATE_PER_LEVEL * hero.level + TALK_BONUS[mood(hero.standing[faction])]
    peace = dice.roll(100) <= percent
    quest.tell("negotiate", player=player, works=peace, faction=faction.value)
    if not peace:
        fight_on(quest, dice)
        return False
    living = quest.living()
    for other in living:
        quest.heroes[other].please(faction, PEACE_PLEASES)
        quest.reward(other, len(foes) * KILL_XP * PEACE_XP_PERCENT // 100 // len(living), dice)
    for foe in foes:
        foe.fled = True
    fight_on(quest, dice)
    return True


def intimidate(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Frighten the weak away; if that fails before a fight, they attack."""
    quest.room.tried.add((player, Act.INTIMIDATE.value))
    works = dice.roll(100) <= INTIMIDATE_PERCENT
    quest.tell("intimidate", player=player, works=works)
    if works:
        for foe in quest.room.here():
            foe.fled = foe.is_weak
    fight_on(quest, dice)
    return works


def sneak(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Lead the party past the enemies; if that fails they attack first."""
    quest.room.tried.add((player, Act.SNEAK.value))
    works = dice.roll(100) <= SNEAK_PERCENT + _scout_bonus(quest, player)
    quest.tell("sneak", player=player, works=works)
    if works:
        walk_to(quest, quest.place + 1, dice)
    else:
        quest.begin_combat(ambush=True)
    return works


def flee(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """The whole party runs one room back, or the turn is lost."""
    works = dice.roll(100) <= FLEE_PERCENT
    quest.tell("flee", player=player, works=works)
    if not works:
        return False
    quest.end_combat()
    if quest.place not in quest.fled:
        quest.fled.add(quest.place)
        quest.reward_all(FLEE_XP, "escape", dice)
    quest.place = max(0, quest.place - 1)
    return True


def press_on(quest: Quest, player: int, dice: Dice) -> None:
    """A fight in which nothing works is moved on: the weakest enemy takes a wound."""
    weakest = min(quest.room.here(), key=lambda foe: (foe.hp, foe.id))
    wound_enemy(quest, player, weakest, several(dice, 1, 6), "luck", dice)
    fight_on(quest, dice)


def fight_on(quest: Quest, dice: Dice) -> None:
    """A fight begins, or ends when nobody is left to fight."""
    if not quest.room.here():
        if quest.phase is Phase.COMBAT:
            quest.end_combat()
        quest.clear_room(dice)
        quest.restart_round()
    elif quest.phase is Phase.EXPLORING:
        quest.begin_combat()


def _scout_bonus(quest: Quest, player: int) -> int:
    return SCOUT_SNEAK_BONUS if quest.heroes[player].klass is Klass.SCOUT else 0
