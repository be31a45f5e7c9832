"""What a player sees, and what a spectator sees."""

from typing import Any, Final

from games.catan.cards import BANK_OF_EACH, CARDS, RESOURCES, Card, hand_to_json
from games.catan.legal import legal_moves, open_forms
from games.catan.moves import Kind, move_to_json
from games.catan.table import Table
from games.catan.topology import EDGES, HEX_NODES

ENV_TYPE: Final = "catan"
MAX_STATE_BYTES: Final = 16 * 1024  # encoded JSON of one player's state; turn records must stay small


def player_state(table: Table, player: int) -> dict[str, Any]:
    """All that `player` may know: the open table and the own hand. JSON without floats.

    Other players' cards appear as counts only; the deck's order and the seed not at all.
    """
    seat = table.seats[player]
    return {
        "env_type": ENV_TYPE,
        "you": player,
        "current": table.current,
        "phase": table.phase.value,
        "dice": list(table.dice or ()),
        "round": 1 + table.ended_turns // len(table.seats),
        "points_to_win": table.settings.points_to_win,
        "board": _board(table),
        "bank": _counts(table.bank),
        "deck": len(table.deck),
        "players": [_public_seat(table, other) for other in range(len(table.seats))],
        "hand": _counts(seat.hand),
        "cards": {card.value: seat.cards[card] for card in CARDS},
        "playable": {card.value: _playable(table, player, card) for card in CARDS},
        "points": table.points(player),
        "rates": {resource.value: rate for resource, rate in table.rates(player).items()},
        "offer": _offer(table),
        "offers_per_turn": table.settings.offers_per_turn,
        "offers_left": table.settings.offers_per_turn - table.offers_made,
        "legal": legal_json(table),
    }


def legal_json(table: Table) -> list[dict[str, Any]]:
    """The legal actions; an open one is a form: its fields are for the player to choose."""
    forms = {
        Kind.DISCARD: lambda: {
            "type": Kind.DISCARD.value,
            "open": True,
            "count": table.discards[table.decider],
        },
        Kind.OFFER_TRADE: lambda: {"type": Kind.OFFER_TRADE.value, "open": True},
    }
    return [move_to_json(move) for move in legal_moves(table)] + [forms[k]() for k in open_forms(table)]


def standings(table: Table) -> list[dict[str, Any]]:
    """One row per player for a spectator: `points` counts the hidden victory point cards too."""
    rows = []
    for player, seat in enumerate(table.seats):
        honours = {"road": table.longest_road == player, "army": table.largest_army == player}
        row = {
            "player": player,
            "points": table.points(player),
            "settlements": len(table.nodes_of(player, cities=False)),
            "cities": len(table.nodes_of(player, cities=True)),
            "roads": len(table.edges_of(player)),
            "hand": sum(seat.hand),
            "cards": sum(seat.cards.values()),
            "knights": seat.knights,
            "holds": " ".join(name for name, held in honours.items() if held),
        }
        rows.append(row)
    return rows


def _board(table: Table) -> dict[str, Any]:
    board = table.board
    hexes = [
        {"resource": "desert" if kind is None else kind.value, "number": number or 0, "nodes": list(nodes)}
        for kind, number, nodes in zip(board.terrain, board.numbers, HEX_NODES, strict=True)
    ]
    ports = [
        {"nodes": list(EDGES[edge]), "resource": "any" if kind is None else kind.value}
        for edge, kind in board.ports
    ]
    return {"hexes": hexes, "edges": [list(ends) for ends in EDGES], "ports": ports, "robber": table.robber}


def _public_seat(table: Table, player: int) -> dict[str, Any]:
    seat = table.seats[player]
    return {
        "points": table.public_points(player),
        "hand": sum(seat.hand),
        "cards": sum(seat.cards.values()),
        "knights": seat.knights,
        "road_length": seat.road_length,
        "longest_road": table.longest_road == player,
        "largest_army": table.largest_army == player,
        "settlements": table.nodes_of(player, cities=False),
        "cities": table.nodes_of(player, cities=True),
        "roads": table.edges_of(player),
    }


def _playable(table: Table, player: int, card: Card) -> int:
    if card is Card.VICTORY_POINT or (table.card_played and player == table.current):
        return 0
    return table.seats[player].playable(card)


def _offer(table: Table) -> dict[str, Any] | None:
    if table.offer is None:
        return None
    answers = ["none" if a is None else "accept" if a else "reject" for a in table.offer.answers]
    return {
        "from": table.current,
        "give": hand_to_json(table.offer.give),
        "get": hand_to_json(table.offer.get),
        "answers": answers,
    }


def _counts(hand: tuple[int, ...]) -> dict[str, int]:
    assert max(hand) <= BANK_OF_EACH
    return {resource.value: count for resource, count in zip(RESOURCES, hand, strict=True)}
