"""Which games one order comes to, in order: a single one of Catan, a campaign's adventures in the RPG."""

from dataclasses import dataclass
from typing import Any, Final

from actors.errors import WrongUse
from actors.faces import Report
from games.rpg import Campaign

SEATS: Final = {"catan": range(2, 5), "rpg": range(1, 7)}  # players that an environment type can have
DEFAULT_ADVENTURES: Final = 2
MAX_ADVENTURES: Final = 100  # as games/rpg/settings.py has it


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGame:
    """What a game master starts from; `title` is empty where a game stands alone."""

    environment_id: str
    title: str
    seed: int
    settings: dict[str, Any]


class Series:
    """The games still to be played. After `next`, play it and call `after`, until `next` gives None."""

    def __init__(self, first: NextGame, campaign: Campaign | None) -> None:
        self._first, self._campaign = first, campaign
        self._played = 0

    @classmethod
    def single(cls, environment_id: str, seed: int, settings: dict[str, Any]) -> "Series":
        """One game."""
        return cls(NextGame(environment_id=environment_id, title="", seed=seed, settings=settings), None)

    @classmethod
    def campaign(cls, environment_id: str, seed: int, *, players: int, adventures: int) -> "Series":
        """A campaign; each adventure has an environment of its own, numbered from 1."""
        first = NextGame(environment_id=environment_id, title="", seed=seed, settings={})
        return cls(first, Campaign(players=players, seed=seed, adventures=adventures))

    def next(self) -> NextGame | None:
        """The game that comes now, or None when all is played."""
        campaign = self._campaign
        if campaign is None:
            return None if self._played else self._first
        if campaign.reason is not None:
            return None
        number = campaign.done + 1
        return NextGame(
            environment_id=f"{self._first.environment_id}-{number}",
            title=f"adventure {number} of {campaign.adventures}",
            seed=campaign.next_seed,
            settings=campaign.next_settings(),
        )

    def after(self, outcome: Report, sequel: Report) -> None:
        """Go on with what the game master told of the game that `next` gave."""
        self._played += 1
        if self._campaign is not None:
            reason = outcome["reason"] if sequel["ends_campaign"] else None
            self._campaign = self._campaign.told(sequel["characters"], reason)


def check_order(
    environment_type: str, agents: int, adventures: int | None, *, chronicle: bool, late: int = 0
) -> None:
    """Refuse what cannot be played.

    Raises:
        WrongUse: no such environment type, not with so many agents, or not with these options.
    """
    if environment_type not in SEATS:
        raise WrongUse(f"there is no environment type {environment_type!r}: there is {', '.join(SEATS)}")
    seats = SEATS[environment_type]
    if agents not in seats:
        raise WrongUse(
            f"{environment_type} is for {seats[0]} to {seats[-1]} agents, not {agents}: "
            "choose another --agents"
        )
    if environment_type != "rpg" and (adventures is not None or chronicle):
        raise WrongUse(f"{environment_type} has no campaigns: leave out --adventures and --chronicle")
    if late and environment_type != "rpg":
        raise WrongUse(f"{environment_type} begins with everybody: leave out --late")
    if not 0 <= late < agents:
        raise WrongUse(
            f"of {agents} agents 0 to {agents - 1} can come late, not {late}: choose another --late"
        )
    if adventures is not None and not 1 <= adventures <= MAX_ADVENTURES:
        raise WrongUse(f"a campaign has 1 to {MAX_ADVENTURES} adventures, not {adventures}: choose others")
