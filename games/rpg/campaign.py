"""Several adventures in a row: which comes next, with whom, and when the campaign is over."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from games.rpg.game import Rpg

Characters = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign between two adventures; a pure value.

    While `reason` is None play `next_game()` (or give `players`, `next_seed` and `next_settings()` to a game
    master), then go on with `after(game)`. A wipe or an abandoned adventure ends the campaign early.
    """

    players: int
    seed: int
    adventures: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every adventure
    characters: tuple[dict[str, Any] | None, ...] | None = None  # who sets out next; None: all newborn
    done: int = 0  # adventures that are over
    reason: str | None = None  # how the last adventure of the campaign ended

    @property
    def next_seed(self) -> int:
        """The seed of the next adventure; that of the first one is the campaign's."""
        if self.done == 0:
            return self.seed
        digest = hashlib.sha256(f"rpg campaign {self.seed} {self.done}".encode()).digest()
        return int.from_bytes(digest[:6], "big")

    def next_settings(self) -> dict[str, Any]:
        """The settings of the next adventure, as JSON."""
        return {
            **self.settings,
            "adventure": self.done + 1,
            "adventures": self.adventures,
            "characters": None if self.characters is None else list(self.characters),
        }

    def next_game(self) -> Rpg:
        """The next adventure, about to begin. Raises: SettingsInvalid."""
        return Rpg.new(self.players, self.next_seed, self.next_settings())

    def after(self, game: Rpg) -> "Campaign":
        """The campaign once `game`, its next adventure, is over."""
        outcome = game.outcome()
        if outcome is None:
            raise ValueError("the adventure is not over")
        return self.told(game.characters(), outcome.reason if game.ends_campaign else None)

    def told(self, characters: Characters, reason: str | None) -> "Campaign":
        """As `after`, by what a game master tells of the adventure: `reason` if it ended the campaign."""
        return replace(self, characters=tuple(characters), done=self.done + 1, reason=reason)
