"""What players say to each other and to the game master: with any action, at most two in a round."""

from dataclasses import dataclass
from typing import Any, Final

from games.errors import IllegalAction

MAX_TEXT: Final = 500  # characters
MAX_PER_ROUND: Final = 2  # of each player
PARTY: Final = "@party"
MASTER: Final = "@dm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A text to `@party`, `@dm`, or one player: `@0` is the first."""

    to: str
    text: str

    def to_json(self) -> dict[str, str]:
        """The message as a player sends it."""
        return {"to": self.to, "text": self.text}

    @property
    def player(self) -> int | None:
        """The one player it is for, or None."""
        return int(self.to[1:]) if self.to[1:].isdecimal() else None


def parse_messages(value: Any) -> tuple[Message, ...]:
    """Read the `messages` of an action. Raises: IllegalAction."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_PER_ROUND:
        raise IllegalAction(f"'messages' is a list of at most {MAX_PER_ROUND}")
    return tuple(_parse(one) for one in value)


def _parse(value: Any) -> Message:
    if not isinstance(value, dict) or value.keys() != {"to", "text"}:
        raise IllegalAction("a message has 'to' and 'text'")
    to, text = value["to"], value["text"]
    if not isinstance(to, str) or not (to in (PARTY, MASTER) or (to[:1] == "@" and to[1:] in _SEATS)):
        raise IllegalAction(f"a message goes to {PARTY}, {MASTER} or a player such as @0")
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT:
        raise IllegalAction(f"a message is a text of 1 to {MAX_TEXT} characters")
    # a stranger's text reaches terminals and records: no control codes, no lone surrogates
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return Message(to=to, text=plain)


_SEATS: Final = {str(seat) for seat in range(6)}
