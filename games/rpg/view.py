"""What a player sees, and what a spectator sees."""

import json
from collections.abc import Sequence
from typing import Any, Final

from games.rpg.classes import Klass
from games.rpg.goods import Item
from games.rpg.legal import price
from games.rpg.moves import Move, move_to_json
from games.rpg.quest import Phase, Quest
from games.rpg.turns import hint
from games.rules import GameEvent

ENV_TYPE: Final = "rpg"
MAX_STATE_BYTES: Final = 16 * 1024  # encoded JSON of one player's state; turn records must stay small
MAX_RECENT: Final = 12  # happenings in a state
_WORDS: Final = ("message", "skipped", "hint")
MAX_MESSAGE_BYTES: Final = 6 * 1024  # of it for messages, newest first


def player_state(quest: Quest, player: int, legal: Sequence[Move]) -> dict[str, Any]:
    """All that `player` may know: the party, the room, what enemies look like. JSON without floats.

    The numbers of enemies, the rooms ahead, the seed and the dice are not in it.
    """
    return {
        "env_type": ENV_TYPE,
        "you": player,
        "phase": quest.phase.value,
        "adventure": quest.settings.adventure,
        "adventures": quest.settings.adventures,
        "turn_cap": quest.settings.turn_cap,
        "round": quest.round,
        "room": None if quest.phase is Phase.TOWN else _room(quest),
        "foes": [] if quest.phase is Phase.TOWN else _foes(quest),
        "order": list(quest.queue),
        "party": [_member(quest, other) for other in range(len(quest.heroes))],
        "character": quest.heroes[player].to_json(),
        "shop": _shop(quest, player) if quest.phase is Phase.TOWN else None,
        "ready": sorted(quest.ready),
        "messages": _messages(quest, player),
        "messages_left": quest.messages_left(player),
        "hint": hint(quest, player),
        "legal": [move_to_json(move) for move in legal],
    }


def recent(story: Sequence[GameEvent]) -> list[GameEvent]:
    """The latest happenings, oldest first, without what players say: that has limits of its own."""
    window = story[-2 * MAX_RECENT :]
    return [event for event in window if event["type"] not in _WORDS][-MAX_RECENT:]


def farewell(quest: Quest, player: int) -> dict[str, Any]:
    """What a player is told when it will not be asked again: its death, or the end of the adventure."""
    hero = quest.heroes[player]
    return {
        "env_type": ENV_TYPE,
        "you": player,
        "notice": "death" if hero.dead else "end",
        "adventure": quest.settings.adventure,
        "adventures": quest.settings.adventures,
        "reason": quest.reason and quest.reason.value,
        "character": hero.to_json(),
        "party": [_member(quest, other) for other in range(len(quest.heroes))],
        "legal": [],
    }


def standings(quest: Quest) -> list[dict[str, Any]]:
    """One row per player for a spectator."""
    return [
        _member(quest, player) | {"points": hero.xp, "gold": hero.gold, "cause": hero.cause}
        for player, hero in enumerate(quest.heroes)
    ]


def _room(quest: Quest) -> dict[str, Any]:
    room = quest.room
    return {
        "number": quest.place + 1,
        "of": len(quest.rooms),
        "kind": room.kind.value,
        "name": room.name,
        "cleared": room.cleared,
        "opens_to": room.klass and Klass(room.klass).value,
        "tries": room.tries,
        "barred": quest.bars_the_way(),
    }


def _foes(quest: Quest) -> list[dict[str, Any]]:
    return [
        {
            "id": foe.id,
            "kind": foe.kind.value,
            "condition": foe.condition(),
            "effects": sorted(effect.value for effect in foe.effects),
        }
        for foe in quest.room.foes
    ]


def _member(quest: Quest, player: int) -> dict[str, Any]:
    hero = quest.heroes[player]
    return {
        "player": player,
        "class": hero.klass.value,
        "level": hero.level,
        "hp": hero.hp,
        "max_hp": hero.max_hp,
        "mp": hero.mp,
        "max_mp": hero.max_mp,
        "dead": hero.dead,
        "away": player in quest.away,
        "raised": hero.raised,
        "effects": sorted(effect.value for effect in hero.effects),
    }


def _shop(quest: Quest, player: int) -> dict[str, int | None]:
    return {item.value: price(quest, player, item) for item in Item}


def _messages(quest: Quest, player: int) -> list[dict[str, Any]]:
    """The newest messages for or by this player, oldest first, within their share of the state."""
    shown: list[dict[str, Any]] = []
    left = MAX_MESSAGE_BYTES
    for sender, message in reversed(quest.messages):
        if message.player not in (None, player) and sender != player:
            continue
        entry = {"from": sender} | message.to_json()
        left -= len(json.dumps(entry))
        if left < 0:
            break
        shown.append(entry)
    return shown[::-1]
