"""The rulebook, rule by rule, on small arranged tables."""

from collections import Counter
from typing import Any

import pytest

from games import IllegalAction
from games.catan import Catan
from games.catan.effects import production
from games.catan.legal import legal_moves
from games.catan.moves import Kind
from games.catan.roads import longest_road_holder
from games.catan.table import Phase
from games.catan.topology import HEX_NODES, NODE_EDGES, NODE_NEIGHBOURS


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
    path = scene.trail(20, 2)
    scene.build(0, settlements=(20,))
    scene.pave(0, *scene.edges_along(path))
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
    path = scene.trail(20, 15)
    if piece == "road":
        scene.build(0, settlements=(20,))
        scene.pave(0, *scene.edges_along(path))
    elif piece == "settlement":
        scene.build(0, settlements=(0, 2, 50, 52, 20))
        scene.pave(0, *scene.edges_along(scene.trail(20, 2)))
    else:
        scene.build(0, settlements=(20,), cities=(0, 2, 50, 52))
    scene.give(0, 5, 5, 5, 5, 5)
    assert f"build_{piece}" not in kinds(scene.play())


def test_a_road_does_not_go_on_behind_a_rivals_building(scene: Any) -> None:
    a, b, c = scene.trail(20, 2)
    scene.build(0, settlements=(a,))
    scene.build(1, settlements=(b,))
    scene.pave(0, scene.edge(a, b))
    scene.give(0, 1, 1, 0, 0, 0)
    sites = {move.place for move in legal_moves(scene.table) if move.kind is Kind.BUILD_ROAD}
    assert scene.edge(b, c) not in sites
    assert sites == set(NODE_EDGES[a]) - {scene.edge(a, b)}


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


# -- longest road -------------------------------------------------------------------------------------------


def test_five_roads_in_a_row_are_the_longest_road(scene: Any) -> None:
    path = scene.trail(20, 5)
    scene.build(0, settlements=(20,))
    scene.pave(0, *scene.edges_along(path)[:4])
    assert scene.table.longest_road is None
    scene.pave(0, scene.edges_along(path)[4])
    assert [scene.table.longest_road, scene.table.points(0)] == [0, 3]


def test_a_fork_does_not_count_twice_and_a_ring_counts_whole(scene: Any) -> None:
    ring = list(HEX_NODES[9])
    scene.pave(0, *(scene.edge(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)))
    assert scene.table.seats[0].road_length == 6
    outside = next(n for n in NODE_NEIGHBOURS[ring[0]] if n not in ring)
    other = next(n for n in NODE_NEIGHBOURS[ring[3]] if n not in ring)
    scene.pave(0, scene.edge(ring[0], outside), scene.edge(ring[3], other))
    assert scene.table.seats[0].road_length == 7


def test_a_rivals_settlement_breaks_a_road_and_the_card_goes_to_the_next(scene: Any) -> None:
    path = scene.trail(20, 6)
    scene.pave(0, *scene.edges_along(path))
    far = scene.trail(0, 5, avoid=tuple(path))
    scene.pave(1, *scene.edges_along(far))
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
