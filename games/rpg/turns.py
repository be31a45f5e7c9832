"""How an adventure moves on: one decision is played, then everything that needs none."""

from collections.abc import Callable, Sequence
from typing import Final

from games.rpg import encounters, rooms
from games.rpg.blows import enemy_turn
from games.rpg.dice import Dice
from games.rpg.fighter import POISON_DAMAGE, Effect
from games.rpg.legal import legal_moves
from games.rpg.moves import Act, Approach, Move
from games.rpg.quest import Phase, Quest, Reason

HINTS_AT: Final = (3, 5)  # the same fruitless action so often in a row
PUSHED_AT: Final = {Phase.COMBAT: 7}  # then the game master moves things on
PUSHED_ELSEWHERE: Final = 5

Play = Callable[[Quest, int, Move, Dice], bool]
PLAYS: Final[dict[Act, Play]] = {
    Act.BUY: rooms.buy,
    Act.DEPART: rooms.depart,
    Act.WAIT: rooms.wait,
    Act.ABANDON: rooms.abandon,
    Act.ADVANCE: rooms.advance,
    Act.REST: rooms.rest,
    Act.SEARCH: rooms.search,
    Act.DISARM: rooms.disarm,
    Act.SOLVE: rooms.solve,
    Act.OVERCOME: rooms.overcome,
    Act.SNEAK: encounters.sneak,
    Act.ATTACK: encounters.attack,
    Act.NEGOTIATE: encounters.negotiate,
    Act.INTIMIDATE: encounters.intimidate,
    Act.DEFEND: encounters.defend,
    Act.HIDE: encounters.hide,
    Act.FLEE: encounters.flee,
    Act.TAUNT: encounters.taunt,
    Act.STORM: encounters.storm_all,
    Act.CAST: encounters.cast_spell,
    Act.MEND: encounters.mend,
    Act.DRINK: encounters.drink,
    Act.RESURRECT: encounters.resurrect,
}


def play(quest: Quest, player: int, move: Move, dice: Dice) -> None:
    """Play a legal move of the player whose decision it is, and end its turn."""
    for message in move.messages:
        quest.say(player, message)
    if move.act is not Act.ABANDON:
        quest.quitting.discard(player)
    if move.act is not Act.WAIT:
        quest.idle = 0
    achieved = PLAYS[move.act](quest, player, move, dice)
    if quest.reason is None and quest.phase is not Phase.TOWN:
        _watch_repeats(quest, player, move, achieved, dice)
    if quest.queue and quest.queue[0] == player:
        _end_turn(quest)


def settle(quest: Quest, decisions: int, dice: Dice) -> list[Move]:
    """Play enemies, lasting effects and forced moves until a player has a choice or all is over.

    `decisions` is how many were asked so far. Returns: the legal moves of `quest.decider`, more than one;
    none when `quest.reason` says how it ended.
    """
    while not _is_over(quest, decisions):
        if quest.phase is Phase.EXPLORING and 2 * len(quest.ready) > len(quest.living()):
            rooms.go_on(quest, dice)  # somebody's death has left a majority
            continue
        if not quest.queue:
            quest.new_round()
            continue
        who = quest.queue[0]
        if who < 0:
            foe = quest.enemy(-who)
            if foe is not None:
                enemy_turn(quest, foe, dice)
            _end_turn(quest)
            if not quest.room.here():
                encounters.fight_on(quest, dice)
        elif quest.heroes[who].dead or not _begin_turn(quest, who):
            _end_turn(quest)
        else:
            moves = legal_moves(quest, who)
            if len(moves) > 1:
                return moves
            play(quest, who, moves[0], dice)
    return []


def fallback(legal: Sequence[Move]) -> Move:
    """What a player does who gives no usable action: follow the others, and stay alive."""
    wanted = (
        Move(act=Act.DEPART),
        Move(act=Act.ADVANCE),
        Move(act=Act.SOLVE),
        Move(act=Act.OVERCOME, word=Approach.CHECK.value),
        Move(act=Act.DEFEND),
    )
    return next((move for move in wanted if move in legal), Move(act=Act.WAIT))


def hint(quest: Quest, player: int) -> str | None:
    """What the game master whispers to a player who repeats itself in vain."""
    what, times = quest.repeats.get(player, ("", 0))
    if times < HINTS_AT[0]:
        return None
    return f"{what} did not work {times} times: try something else"


def _begin_turn(quest: Quest, player: int) -> bool:
    """Count the hero's effects down, once a turn. Returns: whether it can act."""
    hero = quest.heroes[player]
    if quest.begun or quest.phase is not Phase.COMBAT:
        return True
    quest.begun = True
    stunned, poisoned = hero.has(Effect.STUNNED), hero.has(Effect.POISONED)
    hero.tick()
    if poisoned:
        quest.harm(player, POISON_DAMAGE, "poison")
    if stunned and not hero.dead:
        quest.tell("loses_turn", player=player)
    return not stunned and not hero.dead


def _end_turn(quest: Quest) -> None:
    quest.queue.pop(0)
    quest.begun = False


def _is_over(quest: Quest, decisions: int) -> bool:
    living = quest.living()
    if quest.reason is None:
        if not living:
            quest.reason = Reason.WIPE
        elif quest.quitting >= set(living) or quest.silent >= quest.settings.silent_rounds * len(living):
            quest.reason = Reason.ABANDONED
        elif decisions >= quest.settings.turn_cap:
            quest.reason = Reason.TURN_CAP
    if quest.reason is not None:
        quest.phase = Phase.OVER
        quest.restart_round()
    return quest.reason is not None


def _watch_repeats(quest: Quest, player: int, move: Move, achieved: bool, dice: Dice) -> None:
    """Hint at, and in the end break, the same fruitless action again and again."""
    what = " ".join(str(part) for part in (move.act, move.word, move.target) if part is not None)
    before, times = quest.repeats.get(player, ("", 0))
    times = 0 if achieved else times + 1 if before == what else 1
    if achieved:
        quest.repeats.pop(player, None)
        return
    quest.repeats[player] = (what, times)
    if times in HINTS_AT:
        quest.tell("hint", player=player, text=hint(quest, player))
    if times >= PUSHED_AT.get(quest.phase, PUSHED_ELSEWHERE):
        quest.repeats.pop(player)
        if quest.phase is Phase.COMBAT:
            encounters.press_on(quest, player, dice)
        else:
            rooms.push_on(quest, dice)
