"""What a player may do now: every refusal has its reason, and legal is what is not refused."""

from collections.abc import Callable, Iterator
from typing import Final

from games.errors import IllegalAction
from games.rpg.dungeon import RoomKind
from games.rpg.enemies import Kind
from games.rpg.factions import PRICE_PERCENT, Faction, Mood, mood
from games.rpg.goods import DRINKS, GOODS, MAX_OF_EACH, Item
from games.rpg.moves import Act, Approach, Move
from games.rpg.quest import Phase, Quest
from games.rpg.spells import PRIVILEGES, SPELLS, Aim

RESTS_PER_ROOM: Final = 2  # of each player
_T, _E, _C = Phase.TOWN, Phase.EXPLORING, Phase.COMBAT
WHERE: Final[dict[Act, tuple[Phase, ...]]] = {
    Act.BUY: (_T,),
    Act.DEPART: (_T,),
    Act.WAIT: (_T, _E),
    Act.ABANDON: (_T, _E),
    Act.ADVANCE: (_E,),
    Act.REST: (_E,),
    Act.SEARCH: (_E,),
    Act.DISARM: (_E,),
    Act.SOLVE: (_E,),
    Act.OVERCOME: (_E,),
    Act.SNEAK: (_E,),
    Act.ATTACK: (_E, _C),
    Act.NEGOTIATE: (_E, _C),
    Act.INTIMIDATE: (_E, _C),
    Act.DEFEND: (_C,),
    Act.HIDE: (_C,),
    Act.FLEE: (_C,),
    Act.TAUNT: (_C,),
    Act.STORM: (_C,),
    Act.CAST: (_E, _C),
    Act.MEND: (_E, _C),
    Act.DRINK: (_E, _C),
    Act.RESURRECT: (_E, _C),
}
PLAIN: Final = {act: Move(act=act) for act in Act}  # without a word or a target


def check_move(quest: Quest, player: int, move: Move) -> None:
    """Raises: IllegalAction, if this move cannot be made now; nothing changes either way."""
    if quest.phase not in WHERE[move.act]:
        raise IllegalAction(f"{move.act} is not for {quest.phase}")
    if move.act in PRIVILEGES:
        _check_privilege(quest, player, move.act)
    if checker := _CHECKS.get(move.act):
        checker(quest, player, move)
    if len(move.messages) > quest.messages_left(player):
        raise IllegalAction(f"only {quest.messages_left(player)} messages are left in this round")
    for message in move.messages:
        if message.player is not None and message.player >= len(quest.heroes):
            raise IllegalAction(f"there is no player {message.to}")


def legal_moves(quest: Quest, player: int) -> list[Move]:
    """All that this player may do now, messages apart."""
    return [move for move in _candidates(quest, player) if _is_legal(quest, player, move)]


def price(quest: Quest, player: int, item: Item) -> int | None:
    """What the town asks this player for an item, in gold; None when it sells the player nothing."""
    percent = PRICE_PERCENT.get(mood(quest.heroes[player].standing[Faction.TOWN]))
    return None if percent is None else GOODS[item].price * percent // 100


def _is_legal(quest: Quest, player: int, move: Move) -> bool:
    try:
        check_move(quest, player, move)
    except IllegalAction:
        return False
    return True


def _candidates(quest: Quest, player: int) -> Iterator[Move]:
    """Moves worth checking: all that might be legal for a hero of this class in this phase."""
    klass = quest.heroes[player].klass
    foes = [foe.id for foe in quest.room.here()]
    players = range(len(quest.heroes))
    for act, phases in WHERE.items():
        if quest.phase not in phases or (act in PRIVILEGES and PRIVILEGES[act].klass is not klass):
            continue
        match act:
            case Act.BUY | Act.DRINK:
                yield from (Move(act=act, word=item.value) for item in (Item if act is Act.BUY else DRINKS))
            case Act.ATTACK:
                yield from (Move(act=act, target=foe) for foe in foes)
            case Act.MEND | Act.RESURRECT:
                yield from (Move(act=act, target=other) for other in players)
            case Act.OVERCOME:
                yield from (Move(act=act, word=way.value) for way in Approach)
            case Act.CAST:
                for name, spell in SPELLS.items():
                    if klass not in spell.classes:
                        continue
                    targets = {Aim.ENEMY: foes, Aim.ALLY: players, Aim.ALL_ENEMIES: [None]}[spell.aim]
                    yield from (Move(act=act, word=name, target=target) for target in targets)
            case _:
                yield PLAIN[act]


def _check_privilege(quest: Quest, player: int, act: Act) -> None:
    needed, hero = PRIVILEGES[act], quest.heroes[player]
    if hero.klass is not needed.klass:
        raise IllegalAction(f"{act} is for a {needed.klass}, not for a {hero.klass}")
    if needed.needs_party and len(quest.living()) < 2:
        raise IllegalAction(f"{act} needs a party")
    if hero.mp < needed.mp:
        raise IllegalAction(f"{act} needs {needed.mp} magic points, you have {hero.mp}")


def _check_buy(quest: Quest, player: int, move: Move) -> None:
    hero = quest.heroes[player]
    if move.word not in set(Item):
        raise IllegalAction(f"the shop has {', '.join(Item)}")
    item = Item(move.word)
    asked = price(quest, player, item)
    if asked is None:
        raise IllegalAction(f"the town is {Mood.HOSTILE} and sells you nothing")
    if hero.gold < asked:
        raise IllegalAction(f"{item} costs {asked} gold, you have {hero.gold}")
    if hero.items.get(item, 0) >= (MAX_OF_EACH if item in DRINKS else 1):
        raise IllegalAction(f"you carry no more {item}")


def _check_advance(quest: Quest, player: int, move: Move) -> None:
    if barred := quest.bars_the_way():
        raise IllegalAction(barred)
    if player in quest.ready:
        raise IllegalAction("you have said so already")


def _check_rest(quest: Quest, player: int, move: Move) -> None:
    hero = quest.heroes[player]
    if quest.room.here() or not quest.room.cleared:
        raise IllegalAction("this room is not safe to rest in")
    if all((player, f"rest {number}") in quest.room.tried for number in range(RESTS_PER_ROOM)):
        raise IllegalAction(f"you have rested here {RESTS_PER_ROOM} times")
    if hero.hp == hero.max_hp and hero.mp == hero.max_mp:
        raise IllegalAction("you are rested")


def _check_search(quest: Quest, player: int, move: Move) -> None:
    if quest.room.kind is not RoomKind.TREASURE:
        raise IllegalAction("there is nothing to search here")
    _check_once(quest, player, Act.SEARCH)


def _check_disarm(quest: Quest, player: int, move: Move) -> None:
    if quest.room.kind is not RoomKind.TRAP or quest.room.cleared:
        raise IllegalAction("there is no armed trap here")


def _check_solve(quest: Quest, player: int, move: Move) -> None:
    if quest.room.kind is not RoomKind.PUZZLE or quest.room.cleared:
        raise IllegalAction("there is no puzzle here")


def _check_overcome(quest: Quest, player: int, move: Move) -> None:
    room, hero = quest.room, quest.heroes[player]
    if room.kind is not RoomKind.BARRIER or room.cleared:
        raise IllegalAction("there is no barrier here")
    match move.word:
        case Approach.CLASS if hero.klass is not room.klass:
            raise IllegalAction(f"this barrier opens to a {room.klass}, not to a {hero.klass}")
        case Approach.FORCE if hero.klass != "warrior":
            raise IllegalAction(f"force is for a warrior, not for a {hero.klass}")
        case Approach.FORCE if hero.hp <= max(1, hero.max_hp // 5):
            raise IllegalAction("force costs a fifth of your hit points, you have no more")
        case Approach.MANA if hero.max_mp < 2 or hero.mp < hero.max_mp // 2:
            raise IllegalAction(f"this needs {max(1, hero.max_mp // 2)} magic points, you have {hero.mp}")
        case word if word not in set(Approach):
            raise IllegalAction(f"the ways through a barrier are {', '.join(Approach)}")


def _check_foes(quest: Quest, player: int, move: Move) -> None:
    if not quest.room.here():
        raise IllegalAction(f"there is nobody to {move.act} here")


def _check_sneak(quest: Quest, player: int, move: Move) -> None:
    _check_foes(quest, player, move)
    if quest.room.has_living_boss:
        raise IllegalAction("the boss lives: nobody leaves past it")
    _check_once(quest, player, Act.SNEAK)


def _check_attack(quest: Quest, player: int, move: Move) -> None:
    if move.target is None or quest.enemy(move.target) is None:
        raise IllegalAction(f"there is no enemy {move.target} here")


def _check_talk(quest: Quest, player: int, move: Move) -> None:
    _check_foes(quest, player, move)
    if any(foe.kind in (Kind.SKELETON, Kind.BOSS) for foe in quest.room.here()):
        raise IllegalAction("neither the dead nor their warlord bargain")
    _check_once(quest, player, Act.NEGOTIATE)


def _check_intimidate(quest: Quest, player: int, move: Move) -> None:
    if not any(foe.is_weak for foe in quest.room.here()):
        raise IllegalAction("no enemy here is weak enough to be frightened")
    _check_once(quest, player, Act.INTIMIDATE)


def _check_hide(quest: Quest, player: int, move: Move) -> None:
    if quest.is_hidden(player):
        raise IllegalAction("you are hidden")


def _check_flee(quest: Quest, player: int, move: Move) -> None:
    if quest.room.has_living_boss:
        raise IllegalAction("nobody flees from a boss")


def _check_cast(quest: Quest, player: int, move: Move) -> None:
    spell, hero = SPELLS.get(move.word or ""), quest.heroes[player]
    if spell is None:
        raise IllegalAction(f"there is no such spell; there are {', '.join(SPELLS)}")
    if hero.klass not in spell.classes:
        raise IllegalAction(f"a {hero.klass} does not cast {move.word}")
    if hero.mp < spell.mp:
        raise IllegalAction(f"{move.word} needs {spell.mp} magic points, you have {hero.mp}")
    match spell.aim:
        case Aim.ALLY:
            _check_ally(quest, move)
            if quest.phase is Phase.EXPLORING and spell.effect:
                raise IllegalAction(f"{move.word} is for a fight")
            if (
                not spell.effect
                and quest.heroes[move.target or 0].hp == quest.heroes[move.target or 0].max_hp
            ):
                raise IllegalAction("that hero is not hurt")
        case Aim.ENEMY:
            _check_attack(quest, player, move)
        case Aim.ALL_ENEMIES:
            if move.target is not None:
                raise IllegalAction(f"{move.word} has no single target")
            _check_foes(quest, player, move)


def _check_ally(quest: Quest, move: Move) -> None:
    if move.target not in quest.living():
        raise IllegalAction(f"player {move.target} is not a living member of the party")


def _check_mend(quest: Quest, player: int, move: Move) -> None:
    _check_ally(quest, move)
    target = quest.heroes[move.target or 0]
    if move.target == player:
        raise IllegalAction("mend is for another hero")
    if target.hp == target.max_hp:
        raise IllegalAction("that hero is not hurt")


def _check_drink(quest: Quest, player: int, move: Move) -> None:
    if move.word not in set(DRINKS):
        raise IllegalAction(f"only {' and '.join(DRINKS)} can be drunk")
    hero, item = quest.heroes[player], Item(move.word)
    if not hero.items.get(item):
        raise IllegalAction(f"you have no {item}")
    if hero.hp == hero.max_hp if GOODS[item].hit_points else hero.mp == hero.max_mp:
        raise IllegalAction(f"you need no {item}")


def _check_resurrect(quest: Quest, player: int, move: Move) -> None:
    if move.target is None or not 0 <= move.target < len(quest.heroes) or not quest.heroes[move.target].dead:
        raise IllegalAction(f"player {move.target} is not dead")
    if quest.heroes[move.target].raised is not None:
        raise IllegalAction("the dead can be called back but once")


def _check_once(quest: Quest, player: int, act: Act) -> None:
    if (player, act.value) in quest.room.tried:
        raise IllegalAction(f"you have tried to {act} here")


_CHECKS: Final[dict[Act, Callable[[Quest, int, Move], None]]] = {
    Act.BUY: _check_buy,
    Act.ADVANCE: _check_advance,
    Act.REST: _check_rest,
    Act.SEARCH: _check_search,
    Act.DISARM: _check_disarm,
    Act.SOLVE: _check_solve,
    Act.OVERCOME: _check_overcome,
    Act.SNEAK: _check_sneak,
    Act.ATTACK: _check_attack,
    Act.NEGOTIATE: _check_talk,
    Act.INTIMIDATE: _check_intimidate,
    Act.HIDE: _check_hide,
    Act.FLEE: _check_flee,
    Act.CAST: _check_cast,
    Act.MEND: _check_mend,
    Act.DRINK: _check_drink,
    Act.RESURRECT: _check_resurrect,
}
