"""What heroes do about rooms: walk, rest, search, and get past traps, puzzles and barriers; and the town."""

from typing import Final

from games.rpg.classes import Klass, Skill
from games.rpg.dice import Dice
from games.rpg.dungeon import RoomKind
from games.rpg.factions import QUEST_PLEASES, Faction
from games.rpg.goods import Item
from games.rpg.legal import RESTS_PER_ROOM, price
from games.rpg.moves import Act, Approach, Move
from games.rpg.quest import Phase, Quest, Reason
from games.rpg.spells import SCOUT_DISARM_BONUS

REST_HP: Final = 2
REST_MP: Final = 1
TRAP_XP: Final = 25
PUZZLE_XP: Final = 30
TREASURE_XP: Final = 10
ADVENTURE_XP: Final = 200
BARRIER_CHECK_PERCENT: Final = 30
BARRIER_TRIES: Final = 5  # then it crumbles
TREASURE_GOLD: Final = 10  # and a d20
POTION_CHANCE: Final = 3  # one treasure in so many
IDLE_TURNS_IN_TOWN: Final = 5  # then the party leaves


def buy(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Pay and pack."""
    item = Item(move.word or "")
    asked = price(quest, player, item)
    assert asked is not None
    quest.heroes[player].gold -= asked
    quest.heroes[player].add_item(item)
    quest.tell("buy", player=player, item=item.value, gold=asked)
    return True


def depart(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Ready to leave town; the party leaves when all are."""
    quest.ready.add(player)
    if quest.ready >= set(quest.living()):
        leave_town(quest, dice)
    return True


def leave_town(quest: Quest, dice: Dice) -> None:
    """Into the dungeon, by its first room."""
    quest.tell("depart")
    walk_to(quest, 0, dice)


def wait(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Do nothing."""
    if quest.phase is Phase.TOWN:
        quest.idle += 1
        if quest.idle >= IDLE_TURNS_IN_TOWN:
            leave_town(quest, dice)
    return False


def abandon(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Want to give up; when all the living do, the adventure is over."""
    quest.quitting.add(player)
    quest.tell("wants_to_abandon", player=player)
    if quest.quitting >= set(quest.living()):
        quest.reason = Reason.ABANDONED
    return False


def advance(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Want to go on; the party does when more than half of the living want to."""
    quest.ready.add(player)
    if 2 * len(quest.ready) > len(quest.living()):
        go_on(quest, dice)
    return True


def go_on(quest: Quest, dice: Dice) -> None:
    """Leave the room, through its trap if that is armed."""
    if quest.room.kind is RoomKind.TRAP and not quest.room.cleared:
        for player in quest.living():
            if not quest.check(player, Skill.DODGE, 0, dice):
                _spring(quest, player, dice)
        quest.clear_room(dice)
    if quest.survivors():
        walk_to(quest, quest.place + 1, dice)


def walk_to(quest: Quest, place: int, dice: Dice) -> None:
    """Enter a room; behind the last one lies victory."""
    quest.ready, quest.repeats = set(), {}
    quest.phase = Phase.EXPLORING
    quest.restart_round()
    if place == len(quest.rooms):
        _win(quest, dice)
        return
    quest.place = place
    room = quest.room
    quest.tell("room", room=place + 1, kind=room.kind.value, name=room.name)
    if room.kind is RoomKind.REST:
        for hero in quest.survivors():
            hero.heal(REST_HP)
            hero.regain(REST_MP)
        quest.tell("refreshed")
    if room.is_ambush and room.here():
        room.is_ambush = False  # nobody is surprised by the same room twice
        quest.begin_combat(ambush=True)


def rest(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Sit down for a while."""
    tried, hero = quest.room.tried, quest.heroes[player]
    tried.add(
        next((player, f"rest {n}") for n in range(RESTS_PER_ROOM) if (player, f"rest {n}") not in tried)
    )
    points = hero.heal(REST_HP) + hero.regain(REST_MP)
    quest.tell("rest", player=player, hp=hero.hp, mp=hero.mp)
    return points > 0


def search(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Look for what was hidden, once each."""
    quest.room.tried.add((player, Act.SEARCH.value))
    if not quest.check(player, Skill.USE_SKILL, 0, dice):
        quest.tell("search", player=player, gold=0)
        return False
    hero, gold = quest.heroes[player], TREASURE_GOLD + dice.roll(20)
    hero.earn(gold)
    quest.tell("search", player=player, gold=gold)
    if dice.roll(POTION_CHANCE) == 1:
        hero.add_item(Item.POTION)
        quest.tell("found", player=player, item=Item.POTION.value)
    quest.reward(player, TREASURE_XP, dice)
    return True


def disarm(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Make a trap harmless, or spring it; a Scout in company is good at it."""
    in_company = quest.heroes[player].klass is Klass.SCOUT and len(quest.living()) > 1
    works = quest.check(player, Skill.USE_SKILL, SCOUT_DISARM_BONUS if in_company else 0, dice)
    quest.tell("disarm", player=player, works=works)
    if works:
        quest.reward_all(TRAP_XP, "trap", dice)
    else:
        _spring(quest, player, dice)
    quest.clear_room(dice)
    return True


def solve(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Think about a puzzle."""
    works = quest.check(player, Skill.USE_SKILL, 0, dice)
    quest.tell("solve", player=player, works=works)
    if works:
        quest.reward_all(PUZZLE_XP, "puzzle", dice)
        quest.clear_room(dice)
    return works


def overcome(quest: Quest, player: int, move: Move, dice: Dice) -> bool:
    """Get a barrier out of the way, by one of four ways; the fifth failure brings it down as well."""
    hero, room, works = quest.heroes[player], quest.room, True
    match move.word:
        case Approach.FORCE:
            quest.harm(player, max(1, hero.max_hp // 5), "a barrier")
        case Approach.MANA:
            hero.mp -= max(1, hero.max_mp // 2)
        case Approach.CHECK:
            works = dice.roll(100) <= BARRIER_CHECK_PERCENT
    room.tries += not works
    quest.tell("overcome", player=player, approach=move.word, works=works)
    if not works and room.tries >= BARRIER_TRIES:
        quest.tell("crumbles", room=quest.place + 1)
    if works or room.tries >= BARRIER_TRIES:
        quest.clear_room(dice)
    return works


def push_on(quest: Quest, dice: Dice) -> None:
    """Outside a fight nothing happens any more: whatever stands in the way gives, or the enemies attack."""
    quest.tell("pushed_on", room=quest.place + 1)
    if quest.room.here():
        quest.begin_combat()
    elif quest.bars_the_way():
        quest.clear_room(dice)
    else:
        go_on(quest, dice)


def _spring(quest: Quest, player: int, dice: Dice) -> None:
    quest.hurt(player, dice.roll(6) + 2, "a trap")


def _win(quest: Quest, dice: Dice) -> None:
    quest.reward_all(ADVENTURE_XP, "adventure", dice)
    for hero in quest.survivors():
        hero.please(Faction.TOWN, QUEST_PLEASES)
    quest.reason = Reason.VICTORY
