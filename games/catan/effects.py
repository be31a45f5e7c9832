"""What each move does to the table. Every move that comes here was found legal by `games.catan.legal`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from games.catan.board import Board
from games.catan.cards import (
    CARD_COST,
    CITY_COST,
    EMPTY,
    RESOURCES,
    ROAD_COST,
    SETTLEMENT_COST,
    Card,
    Hand,
    add,
    as_hand,
    hand_to_json,
    single,
    times,
)
from games.catan.chance import Chance
from games.catan.legal import road_sites
from games.catan.moves import Kind, Move
from games.catan.table import HAND_LIMIT, LARGEST_ARMY_FROM, Building, Offer, Phase, Table
from games.catan.topology import HEX_NODES, NODE_HEXES
from games.rules import GameEvent

FREE_ROADS: Final = 2  # of the road building card


def play(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    """Carry out a legal move of the decider.

    Returns: what everybody may know of it. A stolen card and a bought card are not named.
    """
    return _EFFECTS[move.kind](table, move, chance)


def production(table: Table, number: int) -> list[Hand]:
    """What each player gets for a roll.

    Of a resource that the bank is short of nobody gets any, unless one player alone is due: then the rest.
    """
    due = [EMPTY] * len(table.seats)
    for tile, token in enumerate(table.board.numbers):
        resource = table.board.terrain[tile]
        if token != number or tile == table.robber or resource is None:
            continue
        for node in HEX_NODES[tile]:
            building = table.buildings.get(node)
            if building is not None:
                cards = single(resource, 2 if building.is_city else 1)
                due[building.player] = add(due[building.player], cards)
    return _within_bank(due, table.bank)


def _within_bank(due: list[Hand], bank: Hand) -> list[Hand]:
    paid = [list(hand) for hand in due]
    for index, left in enumerate(bank):
        owed = [hand[index] for hand in due]
        if sum(owed) > left:
            alone = sum(map(bool, owed)) == 1
            for player, count in enumerate(owed):
                paid[player][index] = min(count, left) if alone else 0
    return [as_hand(counts) for counts in paid]


def _event(name: str, player: int, **more: Any) -> GameEvent:
    return {"event": name, "player": player, **more}


# -- setting up and building ---------------------------------------------------------------------------------


def _build_settlement(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player, node = table.current, _place(move)
    events = [_event("built", player, what="settlement", node=node)]
    table.buildings[node] = Building(player=player)
    if table.phase is Phase.SETUP_SETTLEMENT:
        if len(table.nodes_of(player, cities=False)) == 2:
            cards = _harvest(table.board, node)
            table.take(player, cards)
            events.append(_event("received", player, cards=hand_to_json(cards)))
        table.setup_node, table.phase = node, Phase.SETUP_ROAD
        return events
    table.pay(player, SETTLEMENT_COST)
    return events + _after_build(table)


def _harvest(board: Board, node: int) -> Hand:
    """One card of each hex around the second settlement."""
    cards = EMPTY
    for tile in NODE_HEXES[node]:
        resource = board.terrain[tile]
        if resource is not None:
            cards = add(cards, single(resource))
    return cards


def _build_road(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player, edge = table.current, _place(move)
    table.roads[edge] = player
    events = [_event("built", player, what="road", edge=edge)]
    if table.phase is Phase.SETUP_ROAD:
        table.measure_roads()
        _next_setup(table)
        return events
    if table.phase is Phase.ROAD_BUILDING:
        table.free_roads -= 1
        if table.free_roads == 0 or not road_sites(table, player):
            table.free_roads = 0
            _back_to_turn(table)
    else:
        table.pay(player, ROAD_COST)
    return events + _after_build(table)


def _next_setup(table: Table) -> None:
    """The snake: 0 1 2 3 3 2 1 0, then the first turn of player 0."""
    table.setup_node = None
    placed, players = len(table.roads), len(table.seats)
    if placed == 2 * players:
        table.phase = Phase.ROLL
        return
    table.current = placed if placed < players else 2 * players - 1 - placed
    table.phase = Phase.SETUP_SETTLEMENT


def _build_city(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player, node = table.current, _place(move)
    table.buildings[node] = Building(player=player, is_city=True)
    table.pay(player, CITY_COST)
    table.idle_turns = 0
    return [_event("built", player, what="city", node=node)]


def _after_build(table: Table) -> list[GameEvent]:
    table.idle_turns = 0
    before = table.longest_road
    table.measure_roads()
    if table.longest_road == before:
        return []
    return [{"event": "longest_road", "player": table.longest_road}]


# -- the turn ------------------------------------------------------------------------------------------------


def _roll(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    dice = chance.roll()
    table.dice, table.rolled = dice, True
    events = [_event("rolled", table.current, dice=list(dice))]
    if sum(dice) == 7:
        over = {p: sum(seat.hand) for p, seat in enumerate(table.seats) if sum(seat.hand) > HAND_LIMIT}
        table.discards = {player: held // 2 for player, held in over.items()}
        table.phase = Phase.DISCARD if table.discards else Phase.ROBBER
        return events
    for player, cards in enumerate(production(table, sum(dice))):
        if any(cards):
            table.take(player, cards)
            events.append(_event("received", player, cards=hand_to_json(cards)))
    table.phase = Phase.MAIN
    return events


def _discard(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player = table.decider
    table.pay(player, move.give)
    del table.discards[player]
    if not table.discards:
        table.phase = Phase.ROBBER
    return [_event("discarded", player, cards=hand_to_json(move.give))]


def _move_robber(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player, victim = table.current, move.player
    table.robber = _place(move)
    if victim is not None:
        table.move_cards(victim, player, _drawn(table.seats[victim].hand, chance))
    _back_to_turn(table)
    return [_event("robber_moved", player, hex=table.robber, victim=victim)]


def _drawn(hand: Hand, chance: Chance) -> Hand:
    index = chance.steal(sum(hand))
    for resource, held in zip(RESOURCES, hand, strict=True):
        if index < held:
            return single(resource)
        index -= held
    raise ValueError("chance drew a card that is not there")


def _end_turn(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player = table.current
    table.seats[player].bought = dict.fromkeys(Card, 0)
    table.current = (player + 1) % len(table.seats)
    table.phase, table.rolled, table.card_played = Phase.ROLL, False, False
    table.dice, table.offers_made = None, 0
    table.ended_turns += 1
    table.idle_turns += 1
    return [_event("turn_ended", player)]


def _back_to_turn(table: Table) -> None:
    table.phase = Phase.MAIN if table.rolled else Phase.ROLL


# -- development cards ---------------------------------------------------------------------------------------


def _buy_card(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    seat = table.seats[table.current]
    table.pay(table.current, CARD_COST)
    card = table.deck.pop()
    seat.cards[card] += 1
    seat.bought[card] += 1
    table.idle_turns = 0
    return [_event("card_bought", table.current)]


def _spend(table: Table, card: Card) -> None:
    table.seats[table.current].cards[card] -= 1
    table.card_played = True


def _play_knight(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player = table.current
    _spend(table, Card.KNIGHT)
    table.seats[player].knights += 1
    table.phase = Phase.ROBBER
    events = [_event("card_played", player, card=Card.KNIGHT.value)]
    holder = table.largest_army
    to_beat = LARGEST_ARMY_FROM - 1 if holder is None else table.seats[holder].knights
    if holder != player and table.seats[player].knights > to_beat:
        table.largest_army = player
        events.append(_event("largest_army", player))
    return events


def _play_road_building(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    _spend(table, Card.ROAD_BUILDING)
    table.free_roads = min(FREE_ROADS, table.roads_left(table.current))
    table.phase = Phase.ROAD_BUILDING
    return [_event("card_played", table.current, card=Card.ROAD_BUILDING.value)]


def _play_year_of_plenty(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    _spend(table, Card.YEAR_OF_PLENTY)
    table.take(table.current, move.get)
    cards = hand_to_json(move.get)
    return [_event("card_played", table.current, card=Card.YEAR_OF_PLENTY.value, cards=cards)]


def _play_monopoly(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    _spend(table, Card.MONOPOLY)
    index = move.get.index(1)
    taken = 0
    for other in table.others():
        held = table.seats[other].hand[index]
        table.move_cards(other, table.current, single(RESOURCES[index], held))
        taken += held
    cards = hand_to_json(single(RESOURCES[index], taken))
    return [_event("card_played", table.current, card=Card.MONOPOLY.value, cards=cards)]


# -- trade ---------------------------------------------------------------------------------------------------


def _bank_trade(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    player = table.current
    rate = table.rates(player)[RESOURCES[move.give.index(1)]]
    give = times(move.give, rate)
    table.pay(player, give)
    table.take(player, move.get)
    return [_event("bank_traded", player, give=hand_to_json(give), get=hand_to_json(move.get))]


def _offer_trade(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    table.offer = Offer(give=move.give, get=move.get, answers=(None,) * len(table.seats))
    table.offers_made += 1
    table.phase = Phase.ANSWER
    return [_event("trade_offered", table.current, give=hand_to_json(move.give), get=hand_to_json(move.get))]


def _answer(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    assert table.offer is not None
    player, accepted = table.decider, move.kind is Kind.ACCEPT_TRADE
    answers = tuple(accepted if p == player else a for p, a in enumerate(table.offer.answers))
    table.offer = replace(table.offer, answers=answers)
    events = [_event("trade_answered", player, accepted=accepted)]
    if all(answers[other] is not None for other in table.others()):
        table.phase = Phase.SETTLE
        if not any(answers):
            events += _close_offer(table, None)
    return events


def _settle(table: Table, move: Move, chance: Chance) -> list[GameEvent]:
    assert table.offer is not None
    partner = move.player
    if partner is not None:
        table.move_cards(table.current, partner, table.offer.give)
        table.move_cards(partner, table.current, table.offer.get)
    return _close_offer(table, partner)


def _close_offer(table: Table, partner: int | None) -> list[GameEvent]:
    table.offer = None
    table.phase = Phase.MAIN
    return [_event("trade_closed", table.current, partner=partner)]


def _place(move: Move) -> int:
    assert move.place is not None
    return move.place


_EFFECTS: Final[dict[Kind, Callable[[Table, Move, Chance], list[GameEvent]]]] = {
    Kind.ROLL: _roll,
    Kind.END_TURN: _end_turn,
    Kind.BUILD_ROAD: _build_road,
    Kind.BUILD_SETTLEMENT: _build_settlement,
    Kind.BUILD_CITY: _build_city,
    Kind.BUY_CARD: _buy_card,
    Kind.PLAY_KNIGHT: _play_knight,
    Kind.PLAY_ROAD_BUILDING: _play_road_building,
    Kind.PLAY_YEAR_OF_PLENTY: _play_year_of_plenty,
    Kind.PLAY_MONOPOLY: _play_monopoly,
    Kind.MOVE_ROBBER: _move_robber,
    Kind.DISCARD: _discard,
    Kind.BANK_TRADE: _bank_trade,
    Kind.OFFER_TRADE: _offer_trade,
    Kind.ACCEPT_TRADE: _answer,
    Kind.REJECT_TRADE: _answer,
    Kind.SETTLE_TRADE: _settle,
    Kind.CANCEL_TRADE: _settle,
}
