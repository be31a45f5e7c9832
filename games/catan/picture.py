"""The board as an SVG picture: island, ports, robber, pieces, and a legend with names and points."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from games.catan.board import RED_NUMBERS, pips
from games.catan.cards import Card
from games.catan.scenery import DEFINITIONS, INK, PAPER, SEAT_PAINT, TERRAIN_PAINT
from games.catan.sketch import plain_name
from games.catan.table import Table
from games.catan.topology import EDGES, HEX_NODES, HEX_POSITIONS, NODE_HEXES, NODE_POSITIONS

SIDE: Final = 66.0  # pixels of a hex's side
WIDTH: Final = 1120
HEIGHT: Final = 760
CENTRE: Final = (400.0, 380.0)
LEGEND_X: Final = 800
LEGEND_WIDTH: Final = 290
LEGEND_TOP: Final = 116
LEGEND_STEP: Final = 132

Point = tuple[float, float]


def picture(table: Table, names: Sequence[str], headline: str) -> str:
    """A standalone SVG document, drawn from the table as it stands."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="DejaVu Sans, Verdana, Arial, sans-serif">',
        DEFINITIONS,
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="18" fill="url(#sea)"/>',
        *_coastline(),
        *_ports(table),
        *_hexes(table),
        *_roads(table),
        *_buildings(table),
        *_robber(table),
        *_legend(table, names, headline),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _at(position: tuple[int, int]) -> Point:
    x, y = position
    return CENTRE[0] + x * SIDE * math.sqrt(3) / 2, CENTRE[1] + y * SIDE / 2


def _points(corners: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _towards(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _coastline() -> Iterator[str]:
    """Surf and beach: every hex once more, larger, under the land."""
    for width, colour, opacity in ((34, "#9fd3ea", 0.35), (20, "#f3e6bd", 1.0)):
        shapes = "".join(f'<polygon points="{_points(_corners(tile))}"/>' for tile in range(len(HEX_NODES)))
        yield (
            f'<g fill="{colour}" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" '
            f'opacity="{opacity}">{shapes}</g>'
        )


def _corners(tile: int) -> list[Point]:
    return [_at(NODE_POSITIONS[node]) for node in HEX_NODES[tile]]


def _hexes(table: Table) -> Iterator[str]:
    for tile, position in enumerate(HEX_POSITIONS):
        x, y = _at(position)
        kind, number = table.board.terrain[tile], table.board.numbers[tile]
        name = "desert" if kind is None else kind.value
        corners = [_towards((x, y), corner, 0.965) for corner in _corners(tile)]
        yield (
            f'<polygon points="{_points(corners)}" fill="{TERRAIN_PAINT[name]}" stroke="#00000030" '
            f'stroke-width="1.5" stroke-linejoin="round"/>'
        )
        yield f'<use href="#{name}" x="{x:.1f}" y="{y - (0 if number is None else 31):.1f}"/>'
        if number is not None:
            yield from _token(x, y + 10, number)


def _token(x: float, y: float, number: int) -> Iterator[str]:
    colour = "#c0281c" if number in RED_NUMBERS else INK
    dots = pips(number)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="20" fill="{PAPER}" stroke="#00000040" stroke-width="1.5"/>'
    yield (
        f'<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" font-size="{19 if dots < 5 else 21}" '
        f'font-weight="bold" fill="{colour}">{number}</text>'
    )
    for dot in range(dots):
        dx = (dot - (dots - 1) / 2) * 5
        yield f'<circle cx="{x + dx:.1f}" cy="{y + 12:.1f}" r="1.7" fill="{colour}"/>'


def _ports(table: Table) -> Iterator[str]:
    for edge, kind in table.board.ports:
        ends = [_at(NODE_POSITIONS[node]) for node in EDGES[edge]]
        (tile,) = set(NODE_HEXES[EDGES[edge][0]]) & set(NODE_HEXES[EDGES[edge][1]])
        middle = _towards(ends[0], ends[1], 0.5)
        x, y = _towards(_at(HEX_POSITIONS[tile]), middle, 1.78)
        for end in ends:
            near = _towards(end, (x, y), 0.62)
            yield (
                f'<line x1="{end[0]:.1f}" y1="{end[1]:.1f}" x2="{near[0]:.1f}" y2="{near[1]:.1f}" '
                f'stroke="#7a5430" stroke-width="6" stroke-linecap="round" stroke-dasharray="1 8"/>'
            )
        paint = PAPER if kind is None else TERRAIN_PAINT[kind.value]
        ink = INK if kind is None or kind.value in ("wheat", "sheep") else "#ffffff"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="23" fill="{paint}" stroke="#ffffff" stroke-width="3"/>'
        rate, what = ("3:1", "any") if kind is None else ("2:1", kind.value)
        yield _centred(x, y - 1, rate, 14, ink)
        yield _centred(x, y + 11, what, 11, ink)


def _centred(x: float, y: float, text: str, size: int, colour: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size}" font-weight="bold" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _roads(table: Table) -> Iterator[str]:
    for edge, player in sorted(table.roads.items()):
        a, b = (_at(NODE_POSITIONS[node]) for node in EDGES[edge])
        start, end = _towards(a, b, 0.17), _towards(a, b, 0.83)
        line = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        paint = SEAT_PAINT[player]
        yield f'<line {line} stroke="{paint.edge}" stroke-width="13" stroke-linecap="round"/>'
        yield f'<line {line} stroke="{paint.fill}" stroke-width="8.5" stroke-linecap="round"/>'


def _buildings(table: Table) -> Iterator[str]:
    for node, building in sorted(table.buildings.items()):
        x, y = _at(NODE_POSITIONS[node])
        yield _piece("city" if building.is_city else "settlement", x, y, building.player)


def _piece(shape: str, x: float, y: float, player: int) -> str:
    paint = SEAT_PAINT[player]
    return (
        f'<use href="#{shape}" x="{x:.1f}" y="{y:.1f}" fill="{paint.fill}" stroke="{paint.edge}" '
        f'stroke-width="2.5" stroke-linejoin="round"/>'
    )


def _robber(table: Table) -> Iterator[str]:
    x, y = _at(HEX_POSITIONS[table.robber])
    shift = 0 if table.board.numbers[table.robber] is None else 34
    yield f'<use href="#robber" x="{x + shift:.1f}" y="{y + 10:.1f}"/>'


def _legend(table: Table, names: Sequence[str], headline: str) -> Iterator[str]:
    size = min(25.0, LEGEND_WIDTH / (0.7 * max(1, len(headline))))  # bold letters are about 0.7 em wide
    yield (
        f'<text x="{LEGEND_X}" y="92" font-size="{size:.1f}" font-weight="bold" fill="{PAPER}">'
        f"{escape(headline)}</text>"
    )
    best = max(table.points(player) for player in range(len(table.seats)))
    for player in range(len(table.seats)):
        yield from _seat(table, player, plain_name(names, player), leads=table.points(player) == best)


def _seat(table: Table, player: int, name: str, *, leads: bool) -> Iterator[str]:
    top, paint, seat = LEGEND_TOP + player * LEGEND_STEP, SEAT_PAINT[player], table.seats[player]
    frame = 'stroke="#f2c94c" stroke-width="4"' if leads else 'stroke="#00000030" stroke-width="1.5"'
    yield (
        f'<rect x="{LEGEND_X}" y="{top}" width="{LEGEND_WIDTH}" height="116" rx="12" fill="{PAPER}" {frame}/>'
        f'<rect x="{LEGEND_X + 14}" y="{top + 14}" width="34" height="34" rx="8" fill="{paint.fill}" '
        f'stroke="{paint.edge}" stroke-width="2.5"/>'
    )
    size = 19 if len(name) <= 14 else 14
    yield _label(LEGEND_X + 60, top + 38, name, size, bold=True)
    yield (
        f'<text x="{LEGEND_X + 274}" y="{top + 43}" text-anchor="end" font-size="32" font-weight="bold" '
        f'fill="{INK}">{table.points(player)}</text>'
    )
    yield from _counts(table, player, top + 76)
    honours = []
    if table.longest_road == player:
        honours.append(f"longest road ({seat.road_length})")
    if table.largest_army == player:
        honours.append(f"largest army ({seat.knights})")
    if hidden := seat.cards[Card.VICTORY_POINT]:
        honours.append(f"+{hidden} in cards")
    yield _label(LEGEND_X + 16, top + 104, " · ".join(honours), 13, bold=True)


def _counts(table: Table, player: int, y: float) -> Iterator[str]:
    paint = SEAT_PAINT[player]
    x = LEGEND_X + 28
    yield _piece("settlement", x, y - 4, player)
    yield _label(x + 17, y + 2, str(len(table.nodes_of(player, cities=False))), 16)
    yield _piece("city", x + 66, y - 4, player)
    yield _label(x + 88, y + 2, str(len(table.nodes_of(player, cities=True))), 16)
    for width, colour in ((11, paint.edge), (7, paint.fill)):
        yield (
            f'<line x1="{x + 126}" y1="{y + 1}" x2="{x + 148}" y2="{y - 9}" stroke="{colour}" '
            f'stroke-width="{width}" stroke-linecap="round"/>'
        )
    yield _label(x + 160, y + 2, str(len(table.edges_of(player))), 16)
    yield f'<use href="#robber" transform="translate({x + 207} {y - 4}) scale(0.62)"/>'
    yield _label(x + 222, y + 2, str(table.seats[player].knights), 16)


def _label(x: float, y: float, text: str, size: int, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight} fill="{INK}">{escape(text)}</text>'
