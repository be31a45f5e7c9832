"""Which moves are legal now. The only place that says so: what is not here is refused."""

from collections.abc import Iterator
from itertools import combinations_with_replacement

from games.catan.board import OWN_PORT_RATE
from games.catan.cards import (
    CARD_COST,
    CITY_COST,
    RESOURCES,
    ROAD_COST,
    SETTLEMENT_COST,
    Card,
    Hand,
    covers,
    hand_of,
    single,
)
from games.catan.moves import Kind, Move
from games.catan.roads import can_extend
from games.catan.table import Phase, Table
from games.catan.topology import EDGES, HEX_COUNT, HEX_NODES, NODE_COUNT, NODE_EDGES, NODE_NEIGHBOURS
from games.errors import IllegalAction


def legal_moves(table: Table) -> list[Move]:
    """Every legal move of the decider, but for the forms to fill in (`open_forms`)."""
    player = table.decider
    match table.phase:
        case Phase.SETUP_SETTLEMENT:
            free = (node for node in range(NODE_COUNT) if _has_room(table, node))
            return [Move(kind=Kind.BUILD_SETTLEMENT, place=node) for node in free]
        case Phase.SETUP_ROAD:
            assert table.setup_node is not None
            return _roads([edge for edge in NODE_EDGES[table.setup_node] if edge not in table.roads])
        case Phase.ROLL:
            return [Move(kind=Kind.ROLL), *_card_plays(table, player)]
        case Phase.DISCARD:
            return _only_discard(table, player)
        case Phase.ROBBER:
            return list(_robber_moves(table, player))
        case Phase.MAIN:
            return list(_main_moves(table, player))
        case Phase.ROAD_BUILDING:
            return _roads(road_sites(table, player))
        case Phase.ANSWER:
            return _answers(table, player)
        case Phase.SETTLE:
            return _settlements_of_trade(table)
        case Phase.OVER:
            return []


def open_forms(table: Table) -> list[Kind]:
    """Kinds of move that are legal now with any content that `check_move` accepts."""
    if table.phase is Phase.DISCARD and not _only_discard(table, table.decider):
        return [Kind.DISCARD]
    if table.phase is Phase.MAIN and _may_offer(table):
        return [Kind.OFFER_TRADE]
    return []


def check_move(table: Table, move: Move) -> None:
    """Raises: IllegalAction, if `move` is not legal for the decider now."""
    if move.kind in open_forms(table):
        if move.kind is Kind.DISCARD:
            _check_discard(table, move)
        else:
            _check_offer(table, move)
    elif move not in legal_moves(table):
        raise IllegalAction(f"{move.kind} is not legal here now (phase {table.phase})")


def road_sites(table: Table, player: int) -> list[int]:
    """Free edges next to a player's network, none if no road is left in the box."""
    if table.roads_left(player) == 0:
        return []
    return [
        edge
        for edge, ends in enumerate(EDGES)
        if edge not in table.roads
        and any(can_extend(node, table.roads, player, table.owner(node)) for node in ends)
    ]


def settlement_sites(table: Table, player: int) -> list[int]:
    """Free nodes on a player's roads with no building next door, none if no settlement is left in the box."""
    if table.settlements_left(player) == 0:
        return []
    return [
        node
        for node in range(NODE_COUNT)
        if _has_room(table, node) and any(table.roads.get(edge) == player for edge in NODE_EDGES[node])
    ]


def _has_room(table: Table, node: int) -> bool:
    return node not in table.buildings and not any(
        other in table.buildings for other in NODE_NEIGHBOURS[node]
    )


def _roads(edges: list[int]) -> list[Move]:
    return [Move(kind=Kind.BUILD_ROAD, place=edge) for edge in edges]


def _main_moves(table: Table, player: int) -> Iterator[Move]:
    yield Move(kind=Kind.END_TURN)
    hand = table.seats[player].hand
    if covers(hand, ROAD_COST):
        yield from _roads(road_sites(table, player))
    if covers(hand, SETTLEMENT_COST):
        for node in settlement_sites(table, player):
            yield Move(kind=Kind.BUILD_SETTLEMENT, place=node)
    if covers(hand, CITY_COST) and table.cities_left(player):
        for node in table.nodes_of(player, cities=False):
            yield Move(kind=Kind.BUILD_CITY, place=node)
    if covers(hand, CARD_COST) and table.deck:
        yield Move(kind=Kind.BUY_CARD)
    yield from _card_plays(table, player)
    yield from _bank_trades(table, player, hand)


def _card_plays(table: Table, player: int) -> Iterator[Move]:
    if table.card_played:
        return
    playable = table.seats[player].playable
    if playable(Card.KNIGHT):
        yield Move(kind=Kind.PLAY_KNIGHT)
    if playable(Card.ROAD_BUILDING) and road_sites(table, player):
        yield Move(kind=Kind.PLAY_ROAD_BUILDING)
    if playable(Card.YEAR_OF_PLENTY):
        for get in _plenty(table.bank):
            yield Move(kind=Kind.PLAY_YEAR_OF_PLENTY, get=get)
    if playable(Card.MONOPOLY):
        for resource in RESOURCES:
            yield Move(kind=Kind.PLAY_MONOPOLY, get=single(resource))


def _plenty(bank: Hand) -> list[Hand]:
    """Any two cards of the bank; the last one when there is only one; never none."""
    wanted = min(2, sum(bank))
    if wanted == 0:
        return []
    choices = (hand_of(pair) for pair in combinations_with_replacement(RESOURCES, wanted))
    return [choice for choice in choices if covers(bank, choice)]


def _bank_trades(table: Table, player: int, hand: Hand) -> Iterator[Move]:
    if max(hand) < OWN_PORT_RATE:
        return
    rates = table.rates(player)
    for give, held in zip(RESOURCES, hand, strict=True):
        if held < rates[give]:
            continue
        for get, left in zip(RESOURCES, table.bank, strict=True):
            if get is not give and left:
                yield Move(kind=Kind.BANK_TRADE, give=single(give), get=single(get))


def _robber_moves(table: Table, player: int) -> Iterator[Move]:
    for tile in range(HEX_COUNT):
        if tile == table.robber:
            continue
        owners = {table.owner(node) for node in HEX_NODES[tile]}
        victims: list[int | None] = [
            other for other in table.others() if other in owners and any(table.seats[other].hand)
        ]
        for victim in victims or [None]:
            yield Move(kind=Kind.MOVE_ROBBER, place=tile, player=victim)


def _only_discard(table: Table, player: int) -> list[Move]:
    """The discard that leaves no choice: all cards are of one resource."""
    hand = table.seats[player].hand
    if sum(1 for held in hand if held) > 1:
        return []
    resource = RESOURCES[hand.index(max(hand))]
    return [Move(kind=Kind.DISCARD, give=single(resource, table.discards[player]))]


def _check_discard(table: Table, move: Move) -> None:
    player = table.decider
    if sum(move.give) != table.discards[player]:
        raise IllegalAction(f"discard exactly {table.discards[player]} cards, not {sum(move.give)}")
    if not covers(table.seats[player].hand, move.give):
        raise IllegalAction("discard only cards that you hold")


def _may_offer(table: Table) -> bool:
    return (
        table.offers_made < table.settings.offers_per_turn
        and any(table.seats[table.current].hand)
        and any(any(table.seats[other].hand) for other in table.others())
    )


def _check_offer(table: Table, move: Move) -> None:
    if not any(move.give) or not any(move.get):
        raise IllegalAction("an offer gives something and gets something")
    if any(give and get for give, get in zip(move.give, move.get, strict=True)):
        raise IllegalAction("an offer does not give and get the same resource")
    if not covers(table.seats[table.current].hand, move.give):
        raise IllegalAction("offer only cards that you hold")


def _answers(table: Table, player: int) -> list[Move]:
    assert table.offer is not None
    reject = Move(kind=Kind.REJECT_TRADE)
    if covers(table.seats[player].hand, table.offer.get):
        return [Move(kind=Kind.ACCEPT_TRADE), reject]
    return [reject]


def _settlements_of_trade(table: Table) -> list[Move]:
    assert table.offer is not None
    partners = [player for player, answer in enumerate(table.offer.answers) if answer]
    return [
        *(Move(kind=Kind.SETTLE_TRADE, player=partner) for partner in partners),
        Move(kind=Kind.CANCEL_TRADE),
    ]
