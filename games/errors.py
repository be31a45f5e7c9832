"""What can go wrong in a game, by whose fault it is.

GameError
├── IllegalAction     the player's: the action is not legal now; nothing has changed
├── SettingsInvalid   the caller's: a setting that does not exist, or out of its range
└── LogInvalid        the log's: an entry does not follow from the game before it
"""


class GameError(Exception):
    """Base of every error of this room."""


class IllegalAction(GameError, ValueError):
    """The action is refused and the game is as it was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SettingsInvalid(GameError, ValueError):
    """A setting of a game cannot be used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"game setting {self.name!r}: {self.reason}"


class LogInvalid(GameError, ValueError):
    """A log cannot be replayed: entry `index` (0-based) does not fit."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"entry {self.index} of the game log does not replay: {self.reason}"
