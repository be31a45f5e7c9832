"""A character read back from JSON: it crosses a boundary between adventures, so every field is checked."""

from collections.abc import Mapping
from typing import Any, Final

from games.errors import SettingsInvalid
from games.rpg.classes import MAX_LEVEL, MAX_PERCENT, Klass, Skill, Stat
from games.rpg.factions import MAX_STANDING, Faction
from games.rpg.goods import MAX_GOLD, MAX_OF_EACH, Item
from games.rpg.hero import MAX_ANCESTORS, MAX_POINTS, MAX_XP, Hero

MAX_TEXT: Final = 100  # characters of an id or a cause
ANCESTOR_KEYS: Final = {"id", "class", "level", "cause"}


def parse_hero(value: Any, name: str) -> Hero:
    """The hero that `Hero.to_json` wrote. Raises: SettingsInvalid, naming the field."""
    if not isinstance(value, Mapping):
        raise SettingsInvalid(name, "a character is a JSON object")
    fields = Hero.__dataclass_fields__.keys() - {"klass", "effects"} | {"class"}
    if value.keys() != fields:
        odd = ", ".join(sorted(map(str, value.keys() ^ fields)))
        raise SettingsInvalid(name, f"fields missing or unknown: {odd}")
    numbers = {key: _number(value[key], f"{name}.{key}", low, high) for key, (low, high) in _NUMBERS.items()}
    if numbers["hp"] > numbers["max_hp"] or numbers["mp"] > numbers["max_mp"]:
        raise SettingsInvalid(name, "more points than the most there can be")
    dead, raised = value["dead"], value["raised"]
    if type(dead) is not bool or type(raised) not in (bool, type(None)) or (raised is not None and not dead):
        raise SettingsInvalid(
            f"{name}.dead", "dead is true or false; raised is null, or for the dead true or false"
        )
    if (numbers["hp"] > 0) is (dead and not raised):
        raise SettingsInvalid(f"{name}.hp", "the dead have none, the living have some")
    return Hero(
        id=_text(value["id"], f"{name}.id"),
        klass=_word(Klass, value["class"], f"{name}.class"),
        stats=_table(Stat, value["stats"], f"{name}.stats", 1, MAX_PERCENT, whole=True),
        skills=_table(Skill, value["skills"], f"{name}.skills", 1, MAX_PERCENT, whole=True),
        items=_table(Item, value["items"], f"{name}.items", 1, MAX_OF_EACH, whole=False),
        standing=_table(
            Faction, value["standing"], f"{name}.standing", -MAX_STANDING, MAX_STANDING, whole=True
        ),
        dead=dead,
        cause=None if value["cause"] is None else _text(value["cause"], f"{name}.cause"),
        raised=raised,
        ancestors=_ancestors(value["ancestors"], f"{name}.ancestors"),
        hp=numbers["hp"],
        max_hp=numbers["max_hp"],
        mp=numbers["mp"],
        max_mp=numbers["max_mp"],
        xp=numbers["xp"],
        level=numbers["level"],
        gold=numbers["gold"],
    )


_NUMBERS: Final = {
    "hp": (0, MAX_POINTS),
    "max_hp": (1, MAX_POINTS),
    "mp": (0, MAX_POINTS),
    "max_mp": (0, MAX_POINTS),
    "xp": (0, MAX_XP),
    "level": (1, MAX_LEVEL),
    "gold": (0, MAX_GOLD),
}


def _number(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise SettingsInvalid(name, f"must be a whole number from {low} to {high}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise SettingsInvalid(name, f"must be printable text of 1 to {MAX_TEXT} characters")
    return value


def _word(choices: Any, value: Any, name: str) -> Any:
    if not isinstance(value, str) or value not in set(choices):
        raise SettingsInvalid(name, f"must be one of {', '.join(choices)}")
    return choices(value)


def _table(keys: Any, value: Any, name: str, low: int, high: int, *, whole: bool) -> Any:
    if not isinstance(value, Mapping) or (whole and len(value) != len(keys)):
        raise SettingsInvalid(name, f"must be an object of {', '.join(keys)}")
    return {
        _word(keys, key, name): _number(number, f"{name}.{key}", low, high) for key, number in value.items()
    }


def _ancestors(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MAX_ANCESTORS:
        raise SettingsInvalid(name, f"must be a list of at most {MAX_ANCESTORS}")
    for ancestor in value:
        if not isinstance(ancestor, Mapping) or ancestor.keys() != ANCESTOR_KEYS:
            raise SettingsInvalid(name, f"each has {', '.join(sorted(ANCESTOR_KEYS))}")
        _text(ancestor["id"], name)
        _word(Klass, ancestor["class"], name)
        _number(ancestor["level"], name, 1, MAX_LEVEL)
        if ancestor["cause"] is not None:
            _text(ancestor["cause"], name)
    return [dict(ancestor) for ancestor in value]
