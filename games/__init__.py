"""The environments' rules: state in, events out. Pure, seeded, resumable; no clock, no network, no Ray.

`games.catan` and `games.rpg` are the first ones. Every environment offers the same face, `Rules`, so that the
game master that publishes turns and reads actions knows no game at all.
"""

from games.errors import GameError, IllegalAction, LogInvalid, SettingsInvalid
from games.rules import Death, Episode, GameEvent, Gathering, Mortal, Outcome, Rules, TurnRequest, deaths_in

__all__ = [
    "Death",
    "Episode",
    "GameError",
    "GameEvent",
    "Gathering",
    "IllegalAction",
    "LogInvalid",
    "Mortal",
    "Outcome",
    "Rules",
    "SettingsInvalid",
    "TurnRequest",
    "deaths_in",
]
