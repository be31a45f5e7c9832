"""What is stored about a shared sandbox: lossless JSON with the tier's name as its type."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sandboxes.errors import InvalidSpec
from sandboxes.names import check_name
from sandboxes.sharing.errors import StateUnreadable, UnknownState

FORMAT: Final = 1
MAX_STATE_BYTES: Final = 65_536  # a name, some digests, and what others add


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a sandbox and its files are. `extra` holds fields that are not ours: they are written back."""

    type: str  # the tier
    name: str
    epoch: int  # the token of who wrote this
    node: str | None  # where it lives, or was being made; None: it sleeps, its snapshot is all there is
    image: str
    snapshot: str | None = None  # digest of the newest manifest that was named
    projection: str | None = None  # digest of what was last projected into it
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return it as JSON.

        Raises:
            InvalidSpec: it is too large.
        """
        ours = asdict(self)
        extra = ours.pop("extra")
        raw = json.dumps({**extra, **ours, "format": FORMAT}, sort_keys=True).encode()
        if len(raw) > MAX_STATE_BYTES:
            raise InvalidSpec("state", f"{len(raw)} bytes are more than {MAX_STATE_BYTES}")
        return raw


_FIELDS: Final = ("type", "name", "epoch", "node", "image", "snapshot", "projection")


def parse_state(key: str, raw: bytes, known: Collection[str]) -> State:
    """Return the state in these bytes; fields that we do not know stay in `extra`.

    Args:
        key: whose it is, for the error.
        raw: as `State.to_bytes` gave them, or anything else.
        known: names of the tiers there are.

    Raises:
        UnknownState: its tier is none of these.
        StateUnreadable: these bytes are no state, or one of another format.
    """
    if len(raw) > MAX_STATE_BYTES:
        raise StateUnreadable(key, f"{len(raw)} bytes are more than {MAX_STATE_BYTES}")
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StateUnreadable(key, f"it is no JSON ({type(error).__name__})") from None
    if not isinstance(told, dict):
        raise StateUnreadable(key, "it is no JSON object")
    version = told.pop("format", None)
    if version != FORMAT:
        raise StateUnreadable(key, f"its format is {version!r}, and ours is {FORMAT}")
    _check(key, told)
    if told["type"] not in known:
        raise UnknownState(key, told["type"], ", ".join(known))
    ours = {name: told.pop(name) for name in _FIELDS if name in told}
    return State(**ours, extra=told)


def _check(key: str, told: dict[str, Any]) -> None:
    for name in ("type", "name", "image"):
        if not isinstance(told.get(name), str):
            raise StateUnreadable(key, f"its {name} is {told.get(name)!r}")
    for name in ("node", "snapshot", "projection"):
        if not isinstance(told.setdefault(name, None), str | None):
            raise StateUnreadable(key, f"its {name} is {told[name]!r}")
    epoch = told.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**63:
        raise StateUnreadable(key, f"its epoch is {epoch!r}")
    try:
        check_name(told["name"])
    except InvalidSpec as invalid:
        raise StateUnreadable(key, str(invalid)) from None
