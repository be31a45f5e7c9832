"""The face that every environment shows to its game master."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

GameEvent = dict[str, Any]
"""One thing that happened, as JSON without floats; public: it names no hidden card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One decision that one player must make now.

    `state` is all that the player may know, as JSON without floats, with `legal` in it, under 16 KB.
    An entry of `legal` with `"open": true` is a form to fill in, every other entry is an action as it stands.
    """

    player: int
    phase: str
    state: dict[str, Any]
    legal: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a game ended. `winner` is None when nobody leads alone; `turns` counts the decisions taken."""

    reason: str
    winner: int | None
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A player died for good at decision number `turn`; it is never asked again in this game."""

    player: int
    cause: str
    turn: int


class Rules(Protocol):
    """A game in progress.

    Contract: while `request()` is not None, call `apply(request.player, action)`, or `skip` when no action
    came. The environment plays forced moves itself, so every request is a real choice. `outcome()` is None
    until the end, then always the same.
    """

    @classmethod
    def new(cls, players: int, seed: int, settings: Mapping[str, Any]) -> Self:
        """Start a game; everything random in it follows from `seed`."""
        ...

    @classmethod
    def replay(cls, players: int, seed: int, settings: Mapping[str, Any], log: list[dict[str, Any]]) -> Self:
        """Rebuild the game that wrote `log`. Raises: LogInvalid."""
        ...

    def request(self) -> TurnRequest | None:
        """The decision that is asked for now, or None when the game is over."""
        ...

    def apply(self, player: int, action: dict[str, Any]) -> list[GameEvent]:
        """Play an action. Raises: IllegalAction, and then nothing has changed."""
        ...

    def skip(self, player: int, reason: str) -> list[GameEvent]:
        """Play a legal default for a player who gave no usable action."""
        ...

    def outcome(self) -> Outcome | None:
        """How the game ended, or None while it goes on."""
        ...

    @property
    def turn_number(self) -> int:
        """Number of the current request, from 1; after the end, of the last one."""
        ...

    @property
    def log(self) -> list[dict[str, Any]]:
        """Everything that came from outside: `{turn, player, action}`, `{turn, player, skip}`, and in a
        `Gathering` `{turn, player, presence}` before the decision of that turn."""
        ...

    def log_sha256(self) -> str:
        """Digest of settings, players, seed, log and outcome as canonical JSON."""
        ...

    def standings(self) -> list[dict[str, Any]]:
        """One row per player for a spectator, as numbers and words; it tells what players hide."""
        ...

    def render_text(self, names: Sequence[str]) -> str:
        """The game for a terminal, in ANSI colours; `names` by player, as strangers chose them."""
        ...

    def render_svg(self, names: Sequence[str]) -> str:
        """The game as a picture; `names` by player, as strangers chose them."""
        ...


@runtime_checkable
class Mortal(Protocol):
    """A game in which players can die. Games without deaths need not know of it: see `deaths_in`."""

    def deaths(self) -> list[Death]:
        """Every death so far, in order; it only ever grows."""
        ...


@runtime_checkable
class Gathering(Protocol):
    """A game that can begin without all of its players; who comes later joins the others."""

    @property
    def away(self) -> list[int]:
        """The players who are not there; none of them is asked for anything."""
        ...

    def leave_behind(self, player: int) -> list[GameEvent]:
        """Begin without a player. Raises: IllegalAction: the game has begun, or nobody else is there."""
        ...

    def arrive(self, player: int) -> list[GameEvent]:
        """Let in a player who was away. Raises: IllegalAction: it is there, or the game is over."""
        ...


@runtime_checkable
class Episode(Protocol):
    """A game that may be one of several in a row, and can be told afterwards."""

    @property
    def ends_campaign(self) -> bool:
        """Whether nothing follows; False until the game is over."""
        ...

    def characters(self) -> list[dict[str, Any]]:
        """What the players take into the next game, by player, as JSON."""
        ...

    def tell(self, event: GameEvent, names: Sequence[str]) -> str:
        """One event as a sentence, empty for what is not worth one; `names` by player."""
        ...

    def chronicle(self, names: Sequence[str]) -> str:
        """What happened, as Markdown to read; `names` by player, as strangers chose them."""
        ...


def deaths_in(game: Rules) -> list[Death]:
    """The deaths of any game so far: none in a game that knows no death."""
    return game.deaths() if isinstance(game, Mortal) else []
