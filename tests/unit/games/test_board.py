"""The island: its shape, and how it is dealt."""

from collections import Counter

import pytest

from games.catan.board import NUMBERS, PORT_KINDS, TERRAIN, deal_board, pips
from games.catan.topology import (
    COAST,
    EDGES,
    HEX_NEIGHBOURS,
    HEX_NODES,
    NODE_EDGES,
    NODE_HEXES,
    NODE_NEIGHBOURS,
    PORT_EDGES,
)


def test_the_island_has_19_hexes_54_nodes_72_edges() -> None:
    assert (len(HEX_NODES), len(NODE_HEXES), len(EDGES)) == (19, 54, 72)


def test_every_node_touches_one_to_three_hexes_and_two_or_three_edges() -> None:
    assert Counter(len(hexes) for hexes in NODE_HEXES) == {1: 18, 2: 12, 3: 24}
    assert Counter(len(edges) for edges in NODE_EDGES) == {2: 18, 3: 36}


def test_neighbours_are_mutual() -> None:
    for node, others in enumerate(NODE_NEIGHBOURS):
        assert all(node in NODE_NEIGHBOURS[other] for other in others)
    for tile, tiles in enumerate(HEX_NEIGHBOURS):
        assert all(tile in HEX_NEIGHBOURS[other] for other in tiles)


def test_inner_hexes_have_six_neighbours_and_the_coast_is_one_round_of_30_edges() -> None:
    assert Counter(len(tiles) for tiles in HEX_NEIGHBOURS) == {3: 6, 4: 6, 6: 7}
    assert len(set(COAST)) == 30
    for edge, following in zip(COAST, COAST[1:] + COAST[:1], strict=True):
        assert len(set(EDGES[edge]) & set(EDGES[following])) == 1


def test_nine_ports_on_the_coast_share_no_node() -> None:
    nodes = [node for edge in PORT_EDGES for node in EDGES[edge]]
    assert len(PORT_EDGES) == 9
    assert set(PORT_EDGES) <= set(COAST)
    assert len(set(nodes)) == 18


@pytest.mark.parametrize("seed", range(60))
def test_a_dealt_board_has_every_tile_token_and_port_once_and_no_two_reds_touch(seed: int) -> None:
    board = deal_board(seed)
    assert Counter(board.terrain) == Counter(TERRAIN)
    assert Counter(n for n in board.numbers if n is not None) == Counter(NUMBERS)
    assert board.numbers[board.desert] is None
    assert Counter(kind for _, kind in board.ports) == Counter(PORT_KINDS)
    reds = {tile for tile, number in enumerate(board.numbers) if number in (6, 8)}
    assert not any(reds & set(HEX_NEIGHBOURS[tile]) for tile in reds)


def test_one_seed_one_board_and_other_seeds_others() -> None:
    assert deal_board(7) == deal_board(7)
    assert len({deal_board(seed).terrain for seed in range(20)}) == 20


def test_pips_are_the_ways_to_roll_a_number() -> None:
    ways = Counter(a + b for a in range(1, 7) for b in range(1, 7))
    assert all(pips(number) == ways[number] for number in NUMBERS)
