"""The powers of the land, what they think of a hero, and what that changes."""

from enum import StrEnum
from typing import Final

MAX_STANDING: Final = 100  # either way


class Faction(StrEnum):
    """Who remembers what the heroes do."""

    TOWN = "town"  # sells
    CLANS = "clans"  # goblins
    HORDE = "horde"  # orcs
    COURT = "court"  # the walking dead


class Mood(StrEnum):
    """A standing in words, worst first."""

    HOSTILE = "hostile"
    UNFRIENDLY = "unfriendly"
    NEUTRAL = "neutral"
    FRIENDLY = "friendly"
    ALLIED = "allied"


FACTIONS: Final = tuple(Faction)
# What a mood does: to a bid to negotiate, in per cent points; to a price, in per cent; none: no sale.
TALK_BONUS: Final = {
    Mood.HOSTILE: -20,
    Mood.UNFRIENDLY: -10,
    Mood.NEUTRAL: 0,
    Mood.FRIENDLY: 10,
    Mood.ALLIED: 20,
}
PRICE_PERCENT: Final = {Mood.UNFRIENDLY: 125, Mood.NEUTRAL: 100, Mood.FRIENDLY: 90, Mood.ALLIED: 80}
# What a deed does to the standing of every living hero.
KILL_OFFENDS: Final = -3  # the faction of the slain
KILL_PLEASES: Final = 1  # the town
PEACE_PLEASES: Final = 10  # the faction that was talked to
QUEST_PLEASES: Final = 10  # the town, after a victory


def mood(standing: int) -> Mood:
    """A standing from -100 to 100 in words."""
    if standing < -50:
        return Mood.HOSTILE
    if standing <= -10:
        return Mood.UNFRIENDLY
    if standing <= 9:
        return Mood.NEUTRAL
    return Mood.FRIENDLY if standing <= 49 else Mood.ALLIED
