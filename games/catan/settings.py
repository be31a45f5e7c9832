"""The settings of a game of Catan."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from games.errors import SettingsInvalid

_RANGES: Final = {
    "points_to_win": (3, 20),
    "turn_cap": (1, 100_000),
    "stalemate_rounds": (1, 1_000),
    "offers_per_turn": (0, 10),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a table may agree on before it starts; the rest is the base game's rulebook."""

    points_to_win: int = 10  # on one's own turn
    turn_cap: int = 3_000  # decisions asked of all players together; then the game ends as it stands
    stalemate_rounds: int = 20  # rounds in which nobody builds or buys anything; then it ends as it stands
    offers_per_turn: int = 2  # trade offers one player may make in one turn

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read settings from JSON; absent ones keep their default. Raises: SettingsInvalid."""
        for name, value in values.items():
            if name not in _RANGES:
                raise SettingsInvalid(str(name), f"no such setting; there are {', '.join(_RANGES)}")
            low, high = _RANGES[name]
            if type(value) is not int or not low <= value <= high:
                raise SettingsInvalid(name, f"must be a whole number from {low} to {high}")
        return cls(**values)

    def to_json(self) -> dict[str, int]:
        """All settings, defaults included."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
