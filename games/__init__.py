"""The environments' rules: state in, events out. Pure, seeded, resumable; no clock, no network, no Ray.

`games.catan` is the first one. Every environment offers the same face, `Rules`, so that the game master that
publishes turns and reads actions knows no game at all.
"""

from games.errors import GameError, IllegalAction, LogInvalid, SettingsInvalid
from games.rules import GameEvent, Outcome, Rules, TurnRequest

__all__ = [
    "GameError",
    "GameEvent",
    "IllegalAction",
    "LogInvalid",
    "Outcome",
    "Rules",
    "SettingsInvalid",
    "TurnRequest",
]
