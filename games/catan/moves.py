"""The moves of Catan, and the one place where a stranger's JSON becomes one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from games.catan.cards import EMPTY, Hand, hand_of, hand_to_json, parse_hand, parse_resource, single
from games.catan.topology import EDGE_COUNT, HEX_COUNT, NODE_COUNT
from games.errors import IllegalAction

MAX_SEATS: Final = 4


class Kind(StrEnum):
    """What a move does; the word in the action's `type`."""

    ROLL = "roll"
    END_TURN = "end_turn"
    BUILD_ROAD = "build_road"
    BUILD_SETTLEMENT = "build_settlement"
    BUILD_CITY = "build_city"
    BUY_CARD = "buy_card"
    PLAY_KNIGHT = "play_knight"
    PLAY_ROAD_BUILDING = "play_road_building"
    PLAY_YEAR_OF_PLENTY = "play_year_of_plenty"
    PLAY_MONOPOLY = "play_monopoly"
    MOVE_ROBBER = "move_robber"
    DISCARD = "discard"
    BANK_TRADE = "bank_trade"
    OFFER_TRADE = "offer_trade"
    ACCEPT_TRADE = "accept_trade"
    REJECT_TRADE = "reject_trade"
    SETTLE_TRADE = "settle_trade"
    CANCEL_TRADE = "cancel_trade"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move; two moves that do the same are equal."""

    kind: Kind
    place: int | None = None  # node, edge or hex, by kind
    player: int | None = None  # the victim of a theft, the partner of a trade
    give: Hand = EMPTY  # what leaves the mover's hand; for a bank trade one card of the resource
    get: Hand = EMPTY  # what the mover wants


def move_to_json(move: Move) -> dict[str, Any]:
    """The action as it is published: `{"type": "build_road", "edge": 31}`."""
    return {"type": move.kind.value} | _FORMS[move.kind].fields(move)


def parse_move(action: Any) -> Move:
    """Read an action a stranger wrote. Raises: IllegalAction, naming the field."""
    if not isinstance(action, dict):
        raise IllegalAction("an action is one JSON object")
    kind = action.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise IllegalAction("the action's type is not a move of Catan")
    form = _FORMS[Kind(kind)]
    if set(action) != {"type", *form.names}:
        raise IllegalAction(f"{kind} takes exactly the fields {', '.join(('type', *form.names))}")
    return form.parse(Kind(kind), action)


@dataclass(frozen=True, slots=True)
class _Form:
    names: tuple[str, ...]
    fields: Callable[[Move], dict[str, Any]]
    parse: Callable[[Kind, dict[str, Any]], Move]


def _number(action: dict[str, Any], field: str, limit: int) -> int:
    value = action[field]
    if type(value) is not int or not 0 <= value < limit:  # True is an int, and no place
        raise IllegalAction(f"{field} must be a whole number from 0 to {limit - 1}")
    return value


def _bare() -> _Form:
    return _Form((), lambda move: {}, lambda kind, action: Move(kind=kind))


def _placed(field: str, limit: int) -> _Form:
    return _Form(
        (field,),
        lambda move: {field: move.place},
        lambda kind, action: Move(kind=kind, place=_number(action, field, limit)),
    )


def _resource_name(hand: Hand) -> str:
    return next(iter(hand_to_json(hand)))


def _parse_robber(kind: Kind, action: dict[str, Any]) -> Move:
    victim = None if action["victim"] is None else _number(action, "victim", MAX_SEATS)
    return Move(kind=kind, place=_number(action, "hex", HEX_COUNT), player=victim)


def _parse_offer(kind: Kind, action: dict[str, Any]) -> Move:
    return Move(kind=kind, give=parse_hand(action["give"], "give"), get=parse_hand(action["get"], "get"))


def _parse_bank_trade(kind: Kind, action: dict[str, Any]) -> Move:
    give = parse_resource(action["give"], "give")
    return Move(kind=kind, give=single(give), get=single(parse_resource(action["get"], "get")))


def _parse_monopoly(kind: Kind, action: dict[str, Any]) -> Move:
    return Move(kind=kind, get=hand_of([parse_resource(action["resource"], "resource")]))


_FORMS: Final[dict[Kind, _Form]] = dict.fromkeys(Kind, _bare()) | {
    Kind.BUILD_ROAD: _placed("edge", EDGE_COUNT),
    Kind.BUILD_SETTLEMENT: _placed("node", NODE_COUNT),
    Kind.BUILD_CITY: _placed("node", NODE_COUNT),
    Kind.MOVE_ROBBER: _Form(
        ("hex", "victim"), lambda move: {"hex": move.place, "victim": move.player}, _parse_robber
    ),
    Kind.DISCARD: _Form(
        ("cards",),
        lambda move: {"cards": hand_to_json(move.give)},
        lambda kind, action: Move(kind=kind, give=parse_hand(action["cards"], "cards")),
    ),
    Kind.BANK_TRADE: _Form(
        ("give", "get"),
        lambda move: {"give": _resource_name(move.give), "get": _resource_name(move.get)},
        _parse_bank_trade,
    ),
    Kind.PLAY_YEAR_OF_PLENTY: _Form(
        ("get",),
        lambda move: {"get": hand_to_json(move.get)},
        lambda kind, action: Move(kind=kind, get=parse_hand(action["get"], "get")),
    ),
    Kind.PLAY_MONOPOLY: _Form(
        ("resource",), lambda move: {"resource": _resource_name(move.get)}, _parse_monopoly
    ),
    Kind.OFFER_TRADE: _Form(
        ("give", "get"),
        lambda move: {"give": hand_to_json(move.give), "get": hand_to_json(move.get)},
        _parse_offer,
    ),
    Kind.SETTLE_TRADE: _Form(
        ("with",),
        lambda move: {"with": move.player},
        lambda kind, action: Move(kind=kind, player=_number(action, "with", MAX_SEATS)),
    ),
}
_KINDS: Final = frozenset(kind.value for kind in Kind)
