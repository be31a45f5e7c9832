"""The rulebook, rule by rule, on small arranged tables."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from games import IllegalAction
from games.catan import Catan
from games.catan.cards import Card
from games.catan.effects import production
from games.catan.legal import legal_moves
from games.catan.moves import Kind
from games.catan.roads import longest_road_holder
from games.catan.table import Phase
from games.catan.topology import EDGE_BETWEEN, EDGES, HEX_NODES, NODE_EDGES, NODE_NEIGHBOURS


def edge(a: int, b: int) -> int:
    return EDGE_BETWEEN[min(a, b), max(a, b)]


def trail(start: int, steps: int, avoid: tuple[int, ...] = ()) -> list[int]:
    """Nodes of a path along the island, `steps` edges long."""
    path = [start]
    while len(path) <= steps:
        path.append(next(n for n in NODE_NEIGHBOURS[path[-1]] if n not in path and n not in avoid))
    return path


def edges_along(path: list[int]) -> list[int]:
    return [edge(a, b) for a, b in pairwise(path)]


def kinds(game: Catan) -> Counter[str]:
    request = game.request()
    assert request is not None
    assert request.legal is not None
    return Counter(action["type"] for action in request.legal)


# -- setting up ---------------------------------------------------------------------------------------------


def test_setup_is_a_snake_of_settlement_and_road_and_the_second_one_pays() -> None:
    game, order = Catan.new(4, 3, {}), []
    while (request := game.request()) is not None and request.phase.startswith("setup"):
        assert request.legal is not None
        order.append((request.player, request.phase))
        before = game.table.seats[request.player].hand
        game.apply(request.player, request.legal[0])
        if request.phase == "setup_settlement":
            second = len(game.table.nodes_of(request.player, cities=False)) == 2
            node = request.legal[0]["node"]
            lands = [
                t for t, n in enumerate(HEX_NODES) if node in n and game.table.board.terrain[t] is not None
            ]
            gained = sum(game.table.seats[request.player].hand) - sum(before)
            assert gained == (len(lands) if second else 0)
    phases = [phase for _, phase in order]
    assert [player for player, _ in order][::2] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert phases == ["setup_settlement", "setup_road"] * 8
    assert game.table.current == 0


def test_settlements_may_not_be_neighbours_even_in_setup() -> None:
    game = Catan.new(2, 0, {})
    game.apply(0, {"type": "build_settlement", "node": 20})
    game.apply(0, {"type": "build_road", "edge": NODE_EDGES[20][0]})
    for node in (20, *NODE_NEIGHBOURS[20]):
        with pytest.raises(IllegalAction):
            game.apply(1, {"type": "build_settlement", "node": node})


def test_a_setup_road_touches_the_settlement_just_built() -> None:
    game = Catan.new(2, 0, {})
    game.apply(0, {"type": "build_settlement", "node": 20})
    request = game.request()
    assert request is not None
    assert [action["edge"] for action in request.legal or []] == list(NODE_EDGES[20])


# -- building -----------------------------------------------------------------------------------------------


def test_building_needs_the_cards_a_site_and_a_piece(scene: Any) -> None:
    path = trail(20, 2)
    scene.build(0, settlements=(20,))
    scene.pave(0, *edges_along(path))
    scene.give(0, 1, 1, 1, 1, 1)
    scene.give(1, 1, 0, 0, 0, 0)
    game = scene.play()
    assert kinds(game)["build_settlement"] == 1
    with pytest.raises(IllegalAction):
        game.apply(0, {"type": "build_city", "node": 20})
    game.apply(0, {"type": "build_settlement", "node": path[2]})
    assert scene.table.seats[0].hand == (0, 0, 0, 0, 1)
    assert scene.table.points(0) == 2


def test_a_city_replaces_a_settlement_and_gives_the_piece_back(scene: Any) -> None:
    scene.build(0, settlements=(0, 2, 20, 50, 52))
    scene.give(0, 0, 0, 0, 2, 4)
    scene.give(1, 1, 0, 0, 0, 0)
    game = scene.play()
    assert scene.table.settlements_left(0) == 0
    game.apply(0, {"type": "build_city", "node": 20})
    assert scene.table.settlements_left(0) == 1
    assert scene.table.points(0) == 6


@pytest.mark.parametrize("piece", ["road", "settlement", "city"])
def test_no_more_pieces_than_are_in_the_box(scene: Any, piece: str) -> None:
    path = trail(20, 15)
    if piece == "road":
        scene.build(0, settlements=(20,))
        scene.pave(0, *edges_along(path))
    elif piece == "settlement":
        scene.build(0, settlements=(0, 2, 50, 52, 20))
        scene.pave(0, *edges_along(trail(20, 2)))
    else:
        scene.build(0, settlements=(20,), cities=(0, 2, 50, 52))
    scene.give(0, 5, 5, 5, 5, 5)
    assert f"build_{piece}" not in kinds(scene.play())


def test_a_road_does_not_go_on_behind_a_rivals_building(scene: Any) -> None:
    a, b, c = trail(20, 2)
    scene.build(0, settlements=(a,))
    scene.build(1, settlements=(b,))
    scene.pave(0, edge(a, b))
    scene.give(0, 1, 1, 0, 0, 0)
    sites = {move.place for move in legal_moves(scene.table) if move.kind is Kind.BUILD_ROAD}
    assert edge(b, c) not in sites
    assert sites == set(NODE_EDGES[a]) - {edge(a, b)}


# -- dice, bank, robber -------------------------------------------------------------------------------------


def tile_with(scene: Any, number: int) -> int:
    return int(scene.table.board.numbers.index(number))


def test_a_roll_pays_settlements_one_and_cities_two_but_not_under_the_robber(scene: Any) -> None:
    tile = tile_with(scene, 2)
    nodes = HEX_NODES[tile]
    scene.build(0, settlements=(nodes[0],))
    scene.build(1, cities=(nodes[2],))
    assert [sum(hand) for hand in production(scene.table, 2)] == [1, 2, 0]
    scene.table.robber = tile
    assert [sum(hand) for hand in production(scene.table, 2)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("players", "left", "paid"), [((0, 1), 2, [0, 0]), ((0,), 1, [1, 0]), ((0, 1), 3, [1, 2])]
)
def test_a_bank_that_is_short_pays_nobody_unless_one_alone_is_due(
    scene: Any, players: tuple[int, ...], left: int, paid: list[int]
) -> None:
    tile = tile_with(scene, 12)
    nodes, resource = HEX_NODES[tile], scene.table.board.terrain[tile]
    cities = {0: (nodes[0],)} if players == (0,) else {1: (nodes[2],)}
    for player, where in cities.items():
        scene.build(player, cities=where)
    if players == (0, 1):
        scene.build(0, settlements=(nodes[0],))
    scene.table.bank = tuple(left if other == resource else 19 for other in scene.table.rates(0))
    assert [sum(hand) for hand in production(scene.table, 12)][:2] == paid


def test_a_seven_takes_half_of_hands_over_seven_then_moves_the_robber(scene: Any) -> None:
    scene.table.phase, scene.table.rolled = Phase.ROLL, False
    scene.chance.rolls = [(3, 4)]
    scene.give(0, 4, 4, 1, 0, 0)
    scene.give(1, 7, 0, 0, 0, 0)
    scene.give(2, 1, 7, 1, 0, 0)
    game = scene.play()
    request = game.request()
    assert request is not None
    assert (request.player, request.phase, request.legal) == (
        0,
        "discard",
        [{"type": "discard", "open": True, "count": 4}],
    )
    for wrong in ({"wood": 3}, {"wood": 5}, {"ore": 4}, {"wood": 2, "sheep": 2}, {}):
        with pytest.raises(IllegalAction):
            game.apply(0, {"type": "discard", "cards": wrong})
    game.apply(0, {"type": "discard", "cards": {"wood": 3, "brick": 1}})
    game.apply(2, {"type": "discard", "cards": {"brick": 4}})
    assert [sum(seat.hand) for seat in scene.table.seats] == [5, 7, 5]
    assert scene.table.phase is Phase.ROBBER


def test_a_discard_without_choice_is_played_by_the_environment(scene: Any) -> None:
    scene.table.phase, scene.table.rolled = Phase.ROLL, False
    scene.chance.rolls = [(3, 4)]
    scene.give(1, 9, 0, 0, 0, 0)
    game = scene.play()
    assert scene.table.seats[1].hand == (5, 0, 0, 0, 0)
    request = game.request()
    assert request is not None
    assert request.phase == "robber"


def test_the_robber_must_move_and_steals_one_card_of_who_has_any(scene: Any) -> None:
    tile = tile_with(scene, 5)
    scene.build(1, settlements=(HEX_NODES[tile][0],))
    scene.build(2, settlements=(HEX_NODES[tile][2],))
    scene.give(1, 0, 2, 0, 0, 1)
    scene.table.phase, scene.chance.draws = Phase.ROBBER, [2]
    game = scene.play()
    with pytest.raises(IllegalAction):
        game.apply(0, {"type": "move_robber", "hex": scene.table.robber, "victim": None})
    for victim in (None, 0, 2):  # must steal where there is something, and only there
        with pytest.raises(IllegalAction):
            game.apply(0, {"type": "move_robber", "hex": tile, "victim": victim})
    events = game.apply(0, {"type": "move_robber", "hex": tile, "victim": 1})
    assert scene.table.seats[0].hand == (0, 0, 0, 0, 1)
    assert scene.table.seats[1].hand == (0, 2, 0, 0, 0)
    assert "ore" not in str(events)


# -- development cards --------------------------------------------------------------------------------------


def hold(scene: Any, *cards: Card, player: int = 0) -> None:
    for card in cards:
        scene.table.deck.remove(card)
        scene.table.seats[player].cards[card] += 1


def test_a_card_is_not_played_on_the_turn_it_was_bought_and_one_a_turn(scene: Any) -> None:
    scene.table.deck.append(Card.KNIGHT)
    del scene.table.deck[0]
    scene.give(0, 1, 0, 1, 1, 1)
    scene.give(1, 1, 1, 0, 0, 0)
    hold(scene, Card.MONOPOLY, Card.YEAR_OF_PLENTY)
    game = scene.play()
    game.apply(0, {"type": "buy_card"})
    assert kinds(game)["play_knight"] == 0
    assert kinds(game)["play_monopoly"] == 5
    game.apply(0, {"type": "play_monopoly", "resource": "wood"})
    assert kinds(game)["play_year_of_plenty"] == 0


def test_cards_may_be_played_before_the_roll(scene: Any) -> None:
    scene.table.phase, scene.table.rolled = Phase.ROLL, False
    hold(scene, Card.KNIGHT, Card.MONOPOLY)
    assert kinds(scene.play()) == {"roll": 1, "play_knight": 1, "play_monopoly": 5}


def test_a_knight_before_the_roll_goes_on_with_the_roll(scene: Any) -> None:
    scene.table.phase, scene.table.rolled, scene.chance.rolls = Phase.ROLL, False, [(1, 1)]
    hold(scene, Card.KNIGHT)
    scene.give(0, 1, 0, 0, 0, 0)
    scene.give(1, 1, 0, 0, 0, 0)
    game = scene.play()
    game.apply(0, {"type": "play_knight"})
    game.apply(0, {"type": "move_robber", "hex": 0, "victim": None})
    assert (scene.table.dice, scene.table.phase) == ((1, 1), Phase.MAIN)


def test_monopoly_takes_all_of_one_resource_from_everybody(scene: Any) -> None:
    hold(scene, Card.MONOPOLY)
    for player, wood in enumerate((1, 3, 2)):
        scene.give(player, wood, 1, 0, 0, 0)
    scene.play().apply(0, {"type": "play_monopoly", "resource": "wood"})
    assert [seat.hand[0] for seat in scene.table.seats] == [6, 0, 0]
    assert [seat.hand[1] for seat in scene.table.seats] == [1, 1, 1]


def test_year_of_plenty_takes_two_cards_that_the_bank_has(scene: Any) -> None:
    hold(scene, Card.YEAR_OF_PLENTY)
    scene.give(1, 18, 19, 0, 0, 0)
    game = scene.play()
    for wrong in ({"wood": 2}, {"brick": 1, "ore": 1}, {"ore": 1}, {"ore": 3}, {}):
        with pytest.raises(IllegalAction):
            game.apply(0, {"type": "play_year_of_plenty", "get": wrong})
    game.apply(0, {"type": "play_year_of_plenty", "get": {"wood": 1, "ore": 1}})
    assert scene.table.seats[0].hand == (1, 0, 0, 0, 1)


def test_road_building_lays_two_roads_for_nothing(scene: Any) -> None:
    hold(scene, Card.ROAD_BUILDING)
    scene.build(0, settlements=(20,))
    game = scene.play()
    game.apply(0, {"type": "play_road_building"})
    path = trail(20, 2)
    game.apply(0, {"type": "build_road", "edge": edge(path[0], path[1])})
    assert scene.table.phase is Phase.ROAD_BUILDING
    scene.chance.rolls = [(1, 1)] * 9
    game.apply(0, {"type": "build_road", "edge": edge(path[1], path[2])})
    assert scene.table.edges_of(0) == sorted(edges_along(path))


def test_road_building_with_one_road_left_lays_one(scene: Any) -> None:
    hold(scene, Card.ROAD_BUILDING)
    scene.build(0, settlements=(20,))
    scene.give(0, 1, 0, 0, 0, 0)
    scene.give(1, 1, 0, 0, 0, 0)
    scene.pave(0, *edges_along(trail(20, 14)))
    game = scene.play()
    game.apply(0, {"type": "play_road_building"})
    request = game.request()
    assert request is not None
    assert request.legal is not None
    game.apply(0, request.legal[0])
    assert scene.table.phase is Phase.MAIN
    assert scene.table.roads_left(0) == 0


def test_the_third_knight_takes_largest_army_and_only_more_takes_it_away(scene: Any) -> None:
    scene.give(0, 1, 0, 0, 0, 0)
    scene.table.seats[0].knights, scene.table.seats[1].knights = 2, 3
    scene.table.largest_army = 1
    hold(scene, Card.KNIGHT, Card.KNIGHT)
    game = scene.play()
    game.apply(0, {"type": "play_knight"})
    assert scene.table.largest_army == 1  # equal is not more
    scene.table.phase, scene.table.card_played = Phase.MAIN, False
    game.apply(0, {"type": "play_knight"})
    assert scene.table.largest_army == 0


def test_victory_point_cards_count_but_are_hidden(scene: Any) -> None:
    hold(scene, Card.VICTORY_POINT)
    assert (scene.table.points(0), scene.table.public_points(0)) == (1, 0)


# -- longest road -------------------------------------------------------------------------------------------


def test_five_roads_in_a_row_are_the_longest_road(scene: Any) -> None:
    path = trail(20, 5)
    scene.build(0, settlements=(20,))
    scene.pave(0, *edges_along(path)[:4])
    assert scene.table.longest_road is None
    scene.pave(0, edges_along(path)[4])
    assert [scene.table.longest_road, scene.table.points(0)] == [0, 3]


def test_a_fork_does_not_count_twice_and_a_ring_counts_whole(scene: Any) -> None:
    ring = list(HEX_NODES[9])
    scene.pave(0, *(edge(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)))
    assert scene.table.seats[0].road_length == 6
    outside = next(n for n in NODE_NEIGHBOURS[ring[0]] if n not in ring)
    other = next(n for n in NODE_NEIGHBOURS[ring[3]] if n not in ring)
    scene.pave(0, edge(ring[0], outside), edge(ring[3], other))
    assert scene.table.seats[0].road_length == 7


def test_a_rivals_settlement_breaks_a_road_and_the_card_goes_to_the_next(scene: Any) -> None:
    path = trail(20, 6)
    scene.pave(0, *edges_along(path))
    far = trail(0, 5, avoid=tuple(path))
    scene.pave(1, *edges_along(far))
    assert scene.table.longest_road == 0
    scene.build(2, settlements=(path[3],))
    scene.table.measure_roads()
    assert (scene.table.seats[0].road_length, scene.table.longest_road) == (3, 1)


@pytest.mark.parametrize(
    ("lengths", "holder", "now"),
    [
        pytest.param([4, 4, 0], None, None, id="four-is-too-short"),
        pytest.param([5, 5, 0], 1, 1, id="the-holder-keeps-it-on-a-tie"),
        pytest.param([6, 5, 0], 1, 0, id="longer-takes-it"),
        pytest.param([4, 5, 5], 0, None, id="broken-and-a-tie-leaves-nobody"),
        pytest.param([4, 5, 6], 0, 2, id="broken-and-the-longest-takes-it"),
        pytest.param([4, 4, 4], 0, None, id="broken-and-nobody-has-five"),
        pytest.param([5, 5, 4], None, None, id="set-aside-stays-aside-on-a-tie"),
    ],
)
def test_longest_road_holder(lengths: list[int], holder: int | None, now: int | None) -> None:
    assert longest_road_holder(lengths, holder) == now


# -- trade --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["none", "any", "own", "both"])
def test_the_bank_trades_4_to_1_a_port_3_to_1_its_own_resource_2_to_1(scene: Any, port: str) -> None:
    ports = {kind: edge for edge, kind in scene.table.board.ports}
    wood = next(kind for kind in ports if kind == "wood")
    nodes = {"none": (), "any": EDGES[ports[None]][:1], "own": EDGES[ports[wood]][:1]}
    nodes["both"] = nodes["any"] + nodes["own"]
    scene.build(0, settlements=nodes[port])
    rates = scene.table.rates(0)
    assert (rates[wood], rates["ore"]) == {"none": (4, 4), "any": (3, 3), "own": (2, 4), "both": (2, 3)}[port]
    scene.give(0, rates[wood], 0, 0, 0, 0)
    scene.give(1, 1, 0, 0, 0, 0)
    game = scene.play()
    game.apply(0, {"type": "bank_trade", "give": "wood", "get": "ore"})
    assert scene.table.bank == (18, 19, 19, 19, 18)


def test_the_bank_gives_nothing_it_does_not_have(scene: Any) -> None:
    scene.give(1, 0, 0, 0, 0, 19)
    scene.give(0, 4, 0, 0, 0, 0)
    with pytest.raises(IllegalAction):
        scene.play().apply(0, {"type": "bank_trade", "give": "wood", "get": "ore"})


def offer(give: dict[str, Any], get: dict[str, Any]) -> dict[str, Any]:
    return {"type": "offer_trade", "give": give, "get": get}


def trading(scene: Any) -> Catan:
    scene.give(0, 2, 0, 1, 0, 0)
    scene.give(1, 0, 0, 0, 0, 2)
    scene.give(2, 0, 0, 0, 1, 1)
    game: Catan = scene.play()
    return game


def test_a_trade_is_offered_answered_by_all_and_settled_with_one(scene: Any) -> None:
    game = trading(scene)
    game.apply(0, offer({"wood": 1}, {"ore": 1}))
    game.apply(1, {"type": "accept_trade"})
    game.apply(2, {"type": "accept_trade"})
    request = game.request()
    assert request is not None
    assert [action["type"] for action in request.legal or []] == [
        "settle_trade",
        "settle_trade",
        "cancel_trade",
    ]
    game.apply(0, {"type": "settle_trade", "with": 2})
    assert [seat.hand for seat in scene.table.seats] == [(1, 0, 1, 0, 1), (0, 0, 0, 0, 2), (1, 0, 0, 1, 0)]


def test_who_lacks_the_cards_is_not_asked_and_who_rejected_is_no_partner(scene: Any) -> None:
    game = trading(scene)
    scene.chance.rolls = [(1, 1)]  # after the second offer nothing is left to do
    game.apply(0, offer({"wood": 1}, {"ore": 2}))
    request = game.request()
    assert request is not None
    assert request.player == 1  # player 2 has one ore only
    game.apply(1, {"type": "reject_trade"})
    assert scene.table.phase is Phase.MAIN
    game.apply(0, offer({"wood": 1}, {"ore": 1}))
    game.apply(1, {"type": "accept_trade"})
    game.apply(2, {"type": "reject_trade"})
    with pytest.raises(IllegalAction):
        game.apply(0, {"type": "settle_trade", "with": 2})
    game.apply(0, {"type": "cancel_trade"})
    assert scene.table.seats[0].hand == (2, 0, 1, 0, 0)


def test_offers_per_turn_are_bounded(scene: Any) -> None:
    scene.give(0, 2, 0, 0, 0, 0)  # enough for the bank, so that the turn goes on
    game = trading(scene)
    for _ in range(2):
        game.apply(0, offer({"wood": 1}, {"brick": 1}))
    with pytest.raises(IllegalAction):
        game.apply(0, offer({"wood": 1}, {"brick": 1}))


@pytest.mark.parametrize(
    ("give", "get"),
    [
        pytest.param({}, {"ore": 1}, id="a-gift-asked"),
        pytest.param({"wood": 1}, {}, id="a-gift-given"),
        pytest.param({"wood": 1}, {"wood": 1}, id="like-for-like"),
        pytest.param({"wood": 3}, {"ore": 1}, id="more-than-held"),
        pytest.param({"wood": -1}, {"ore": 1}, id="negative-given"),
        pytest.param({"wood": 1}, {"ore": -1}, id="negative-asked"),
        pytest.param({"wood": True}, {"ore": 1}, id="a-boolean"),
        pytest.param({"wood": 1.0}, {"ore": 1}, id="a-float"),
        pytest.param({"gold": 1}, {"ore": 1}, id="no-such-resource"),
        pytest.param(["wood"], {"ore": 1}, id="a-list"),
    ],
)
def test_an_unfair_offer_is_refused(scene: Any, give: Any, get: Any) -> None:
    game = trading(scene)
    with pytest.raises(IllegalAction):
        game.apply(0, offer(give, get))
    assert scene.table.seats[0].hand == (2, 0, 1, 0, 0)
    assert scene.table.offers_made == 0
