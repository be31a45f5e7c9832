"""The actions that players send: their names, their fields, and how they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from games.errors import IllegalAction
from games.rpg.messages import Message, parse_messages


class Act(StrEnum):
    """What a player can do."""

    # in town
    BUY = "buy"
    DEPART = "depart"
    # anywhere outside a fight
    WAIT = "wait"
    ABANDON = "abandon"
    # exploring
    ADVANCE = "advance"
    REST = "rest"
    SEARCH = "search"
    DISARM = "disarm"
    SOLVE = "solve"
    OVERCOME = "overcome"
    SNEAK = "sneak"
    # before or in a fight
    ATTACK = "attack"
    NEGOTIATE = "negotiate"
    INTIMIDATE = "intimidate"
    # in a fight
    DEFEND = "defend"
    HIDE = "hide"
    FLEE = "flee"
    TAUNT = "taunt"
    STORM = "storm"
    # everywhere in the dungeon
    CAST = "cast"
    MEND = "mend"
    DRINK = "drink"
    RESURRECT = "resurrect"


class Approach(StrEnum):
    """A way through a barrier."""

    CLASS = "class"
    FORCE = "force"
    CHECK = "check"
    MANA = "mana"


WORD_FIELD: Final = {Act.BUY: "item", Act.DRINK: "item", Act.CAST: "spell", Act.OVERCOME: "approach"}
TARGETED: Final = (Act.ATTACK, Act.CAST, Act.MEND, Act.RESURRECT)
NAMES: Final = frozenset(Act)
OPTIONAL_TARGET: Final = (Act.CAST,)  # depends on the spell


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One action: `word` names an item, a spell or an approach; `target` an enemy's id or a player."""

    act: Act
    word: str | None = None
    target: int | None = None
    messages: tuple[Message, ...] = ()


def parse_move(value: Any) -> Move:
    """Read an action. Raises: IllegalAction, saying what is wrong with its form."""
    if not isinstance(value, Mapping):
        raise IllegalAction("an action is a JSON object")
    name = value.get("type")
    if not isinstance(name, str) or name not in NAMES:
        raise IllegalAction(f"no such action; there are {', '.join(Act)}")
    act = Act(name)
    word_field = WORD_FIELD.get(act)
    allowed = {"type", "messages"} | ({word_field} if word_field else set())
    allowed |= {"target"} if act in TARGETED else set()
    if unknown := [repr(str(key)[:40]) for key in value if key not in allowed]:
        raise IllegalAction(f"{act} has no {', '.join(sorted(unknown)[:5])}")
    word = value.get(word_field) if word_field else None
    if word_field and not isinstance(word, str):
        raise IllegalAction(f"{act} needs {word_field!r}, a word")
    target = value.get("target")
    if target is None and act in TARGETED and act not in OPTIONAL_TARGET:
        raise IllegalAction(f"{act} needs 'target', a number")
    if target is not None and type(target) is not int:
        raise IllegalAction("'target' is a whole number")
    return Move(act=act, word=word, target=target, messages=parse_messages(value.get("messages")))


def move_to_json(move: Move) -> dict[str, Any]:
    """The action as a player would send it."""
    action: dict[str, Any] = {"type": move.act.value}
    if move.word is not None:
        action[WORD_FIELD[move.act]] = move.word
    if move.target is not None:
        action["target"] = move.target
    if move.messages:
        action["messages"] = [message.to_json() for message in move.messages]
    return action
