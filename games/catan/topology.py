"""The shape of the island: 19 hexes, 54 nodes, 72 edges, and which of them touch.

Hexes are numbered row by row from the north-west (3, 4, 5, 4, 3), nodes and edges likewise. Positions are
whole numbers on a grid where a hex with pointed top is 2 wide and 4 high, so that a corner shared by three
hexes has one and the same position in all three.
"""

from collections.abc import Iterable
from typing import Final

Position = tuple[int, int]

HEX_COUNT: Final = 19
NODE_COUNT: Final = 54
EDGE_COUNT: Final = 72
PORT_COUNT: Final = 9

_RADIUS: Final = 2
_CORNERS: Final = ((0, -2), (1, -1), (1, 1), (0, 2), (-1, 1), (-1, -1))  # clockwise from the north
_PORT_GAPS: Final = (3, 4, 3)  # coastal edges from port to port on the base game's frame, three times


def _hexes() -> Iterable[Position]:
    for r in range(-_RADIUS, _RADIUS + 1):
        for q in range(-_RADIUS, _RADIUS + 1):
            if abs(q + r) <= _RADIUS:
                yield 2 * q + r, 3 * r


def _corners(centre: Position) -> list[Position]:
    return [(centre[0] + dx, centre[1] + dy) for dx, dy in _CORNERS]


HEX_POSITIONS: Final[tuple[Position, ...]] = tuple(_hexes())
NODE_POSITIONS: Final[tuple[Position, ...]] = tuple(
    sorted({corner for centre in HEX_POSITIONS for corner in _corners(centre)}, key=lambda p: (p[1], p[0]))
)
_NODE_AT: Final = {position: node for node, position in enumerate(NODE_POSITIONS)}
HEX_NODES: Final[tuple[tuple[int, ...], ...]] = tuple(
    tuple(_NODE_AT[corner] for corner in _corners(centre)) for centre in HEX_POSITIONS
)


def _sides(nodes: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(min(a, b), max(a, b)) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]


EDGES: Final[tuple[tuple[int, int], ...]] = tuple(
    sorted({side for nodes in HEX_NODES for side in _sides(nodes)})
)
NODE_HEXES: Final[tuple[tuple[int, ...], ...]] = tuple(
    tuple(tile for tile, nodes in enumerate(HEX_NODES) if node in nodes) for node in range(NODE_COUNT)
)
NODE_EDGES: Final[tuple[tuple[int, ...], ...]] = tuple(
    tuple(edge for edge, ends in enumerate(EDGES) if node in ends) for node in range(NODE_COUNT)
)
NODE_NEIGHBOURS: Final[tuple[tuple[int, ...], ...]] = tuple(
    tuple(sum(EDGES[edge]) - node for edge in NODE_EDGES[node]) for node in range(NODE_COUNT)
)
HEX_NEIGHBOURS: Final[tuple[tuple[int, ...], ...]] = tuple(
    tuple(other for other in range(HEX_COUNT) if len(set(HEX_NODES[tile]) & set(HEX_NODES[other])) == 2)
    for tile in range(HEX_COUNT)
)
EDGE_BETWEEN: Final[dict[tuple[int, int], int]] = {ends: edge for edge, ends in enumerate(EDGES)}


def _coast() -> tuple[int, ...]:
    """The 30 edges that belong to one hex only, clockwise from the north-western corner's top."""
    sides = [EDGE_BETWEEN[side] for nodes in HEX_NODES for side in _sides(nodes)]
    left = [edge for edge in range(EDGE_COUNT) if sides.count(edge) == 1]
    walk = [EDGE_BETWEEN[HEX_NODES[0][0], HEX_NODES[0][1]]]  # north to north-east: clockwise
    node = HEX_NODES[0][1]
    left.remove(walk[0])
    while left:
        edge = next(edge for edge in left if node in EDGES[edge])
        node = sum(EDGES[edge]) - node
        walk.append(edge)
        left.remove(edge)
    return tuple(walk)


def _port_edges() -> tuple[int, ...]:
    places = [0]
    for port in range(PORT_COUNT - 1):
        places.append(places[-1] + _PORT_GAPS[port % len(_PORT_GAPS)])
    return tuple(COAST[place] for place in places)


COAST: Final[tuple[int, ...]] = _coast()
PORT_EDGES: Final[tuple[int, ...]] = _port_edges()
