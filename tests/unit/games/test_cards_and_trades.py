"""Development cards and trades, rule by rule, on small arranged tables."""

from collections import Counter
from typing import Any

import pytest

from games import IllegalAction
from games.catan import Catan
from games.catan.cards import Card
from games.catan.table import Phase
from games.catan.topology import EDGES


def kinds(game: Catan) -> Counter[str]:
    request = game.request()
    assert request is not None
    assert request.legal is not None
    return Counter(action["type"] for action in request.legal)


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
    path = scene.trail(20, 2)
    game.apply(0, {"type": "build_road", "edge": scene.edge(path[0], path[1])})
    assert scene.table.phase is Phase.ROAD_BUILDING
    scene.chance.rolls = [(1, 1)] * 9
    game.apply(0, {"type": "build_road", "edge": scene.edge(path[1], path[2])})
    assert scene.table.edges_of(0) == sorted(scene.edges_along(path))


def test_road_building_with_one_road_left_lays_one(scene: Any) -> None:
    hold(scene, Card.ROAD_BUILDING)
    scene.build(0, settlements=(20,))
    scene.give(0, 1, 0, 0, 0, 0)
    scene.give(1, 1, 0, 0, 0, 0)
    scene.pave(0, *scene.edges_along(scene.trail(20, 14)))
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
