"""The settings of an adventure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from games.errors import SettingsInvalid
from games.rpg.hero import Hero
from games.rpg.papers import parse_hero

COMPACT_ROOMS: Final = 4
TURNS_PER_ROOM_AND_PLAYER: Final = 8  # the default cap: about twice what a party needs
_RANGES: Final = {
    "rooms": (COMPACT_ROOMS, 12),
    "turn_cap": (1, 10_000),
    "silent_rounds": (1, 100),
    "adventure": (1, 100),
    "adventures": (1, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is agreed on before an adventure; `characters` by player, None for one who has none yet."""

    rooms: int = COMPACT_ROOMS  # the last one is the boss's
    turn_cap: int  # decisions asked of all players together; then the torches are burnt down
    silent_rounds: int = 3  # rounds in which nobody at all answers; then the adventure is abandoned
    adventure: int = 1  # its number in the campaign
    adventures: int = 1  # in the whole campaign
    characters: tuple[Hero | None, ...] = ()

    @classmethod
    def parse(cls, values: Mapping[str, Any], players: int) -> Self:
        """Read settings from JSON; absent ones keep their default. Raises: SettingsInvalid."""
        numbers = {name: value for name, value in values.items() if name != "characters"}
        for name, value in numbers.items():
            if name not in _RANGES:
                known = ", ".join([*_RANGES, "characters"])
                raise SettingsInvalid(str(name), f"no such setting; there are {known}")
            low, high = _RANGES[name]
            if type(value) is not int or not low <= value <= high:
                raise SettingsInvalid(name, f"must be a whole number from {low} to {high}")
        numbers.setdefault("turn_cap", _default_cap(numbers.get("rooms", COMPACT_ROOMS), players))
        settings = cls(**numbers, characters=_characters(values.get("characters"), players))
        if settings.adventure > settings.adventures:
            raise SettingsInvalid("adventure", f"is {settings.adventure} of only {settings.adventures}")
        return settings

    @property
    def is_last(self) -> bool:
        """Whether the campaign ends with this adventure."""
        return self.adventure == self.adventures

    def to_json(self) -> dict[str, Any]:
        """All settings, defaults included."""
        numbers = {name: getattr(self, name) for name in _RANGES}
        return numbers | {"characters": [hero and hero.to_json() for hero in self.characters]}


def _default_cap(rooms: int, players: int) -> int:
    return TURNS_PER_ROOM_AND_PLAYER * rooms * max(2, players)


def _characters(value: Any, players: int) -> tuple[Hero | None, ...]:
    if value is None:
        return (None,) * players
    if not isinstance(value, list) or len(value) != players:
        raise SettingsInvalid("characters", f"must be null or a list of {players}, one for each player")
    return tuple(
        None if one is None else parse_hero(one, f"characters[{index}]") for index, one in enumerate(value)
    )
