"""The move that the environment plays for a player who gives no usable action: legal and plain."""

from games.catan.board import pips
from games.catan.cards import EMPTY, RESOURCES, Hand, add, single
from games.catan.legal import legal_moves
from games.catan.moves import Kind, Move
from games.catan.table import Phase, Table
from games.catan.topology import NODE_HEXES


def fallback_move(table: Table) -> Move:
    """A legal move that keeps the game going: the best starting place, else the least that may be done."""
    match table.phase:
        case Phase.SETUP_SETTLEMENT:
            return max(legal_moves(table), key=lambda move: _node_pips(table, move.place))
        case Phase.DISCARD:
            return Move(kind=Kind.DISCARD, give=_largest_piles(table))
        case Phase.MAIN:
            return Move(kind=Kind.END_TURN)
        case Phase.ANSWER:
            return Move(kind=Kind.REJECT_TRADE)
        case Phase.SETTLE:
            return Move(kind=Kind.CANCEL_TRADE)
        case _:
            return legal_moves(table)[0]


def _node_pips(table: Table, node: int | None) -> int:
    return sum(pips(table.board.numbers[tile]) for tile in NODE_HEXES[node or 0])


def _largest_piles(table: Table) -> Hand:
    """Give up cards one by one from whatever there is most of."""
    player = table.decider
    left, given = list(table.seats[player].hand), EMPTY
    for _ in range(table.discards[player]):
        index = left.index(max(left))
        left[index] -= 1
        given = add(given, single(RESOURCES[index]))
    return given
