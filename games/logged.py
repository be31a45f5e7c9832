"""A game that keeps its log: every decision in order, its replay, and the digest that tells games apart."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Self

from games.errors import IllegalAction, LogInvalid
from games.rules import GameEvent, Outcome

MAX_SKIP_REASON: Final = 500  # characters kept of a reason


class LoggedGame(ABC):
    """The part of `games.Rules` that is the same in every game: the log, its replay, its digest, the outcome.

    A game notes each decision with `_note` before it plays it, and sets `_outcome` once, when it is over.
    """

    def __init__(self, players: int, seed: int) -> None:
        self._players, self._seed = players, seed
        self._log: list[dict[str, Any]] = []
        self._decisions = 0
        self._outcome: Outcome | None = None

    @classmethod
    @abstractmethod
    def new(cls, players: int, seed: int, settings: Mapping[str, Any]) -> Self:
        """Start a game; everything random in it follows from `seed`. Raises: SettingsInvalid."""

    @abstractmethod
    def apply(self, player: int, action: dict[str, Any]) -> list[GameEvent]:
        """Play an action. Raises: IllegalAction, and then nothing has changed."""

    @abstractmethod
    def skip(self, player: int, reason: str) -> list[GameEvent]:
        """Play a legal default for a player who gave no usable action."""

    @abstractmethod
    def _agreed(self) -> dict[str, Any]:
        """All settings as JSON, defaults included."""

    @classmethod
    def replay(cls, players: int, seed: int, settings: Mapping[str, Any], log: list[dict[str, Any]]) -> Self:
        """The game that wrote `log`. Raises: SettingsInvalid; LogInvalid, naming the entry."""
        game = cls.new(players, seed, settings)
        for index, entry in enumerate(log):
            try:
                if entry["turn"] != game.turn_number:
                    raise LogInvalid(index, f"it is of turn {entry['turn']}, due is {game.turn_number}")
                game._again(entry)
            except (IllegalAction, KeyError, TypeError) as error:
                raise LogInvalid(index, str(error)) from error
        return game

    def outcome(self) -> Outcome | None:
        """How the game ended, None while it goes on."""
        return self._outcome

    @property
    def turn_number(self) -> int:
        """Number of the current request, from 1; after the end, of the last one."""
        return self._decisions + (self._outcome is None)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Everything that came from outside so far, as JSON."""
        return list(self._log)

    def log_sha256(self) -> str:
        """Digest over canonical JSON of settings, players, seed, log and outcome."""
        end = self._outcome
        record = {
            "settings": self._agreed(),
            "players": self._players,
            "seed": self._seed,
            "log": self._log,
            "outcome": None
            if end is None
            else {"reason": end.reason, "winner": end.winner, "turns": end.turns},
        }
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _again(self, entry: dict[str, Any]) -> None:
        """Play one entry of a log."""
        if "skip" in entry:
            self.skip(entry["player"], entry["skip"])
        else:
            self.apply(entry["player"], entry["action"])

    def _note(self, player: int, what: dict[str, Any]) -> None:
        """Write a decision into the log: `what` is {"action": …} or {"skip": …}."""
        self._log.append({"turn": self.turn_number, "player": player} | what)
        self._decisions += 1


def kept_reason(reason: object) -> str:
    """What is kept of a skip's reason, which a stranger may have written: not too long, no control codes."""
    return "".join(letter if letter.isprintable() else " " for letter in str(reason)[:MAX_SKIP_REASON])
