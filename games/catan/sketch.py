"""The board as text for a terminal: 17 lines, in colour by ANSI codes, and a line per player."""

from collections.abc import Sequence
from typing import Final

from games.catan.table import Table
from games.catan.topology import EDGES, HEX_POSITIONS, NODE_POSITIONS

COLUMN: Final = 5  # characters between two neighbouring grid columns
MARGIN: Final = 3
HEIGHT: Final = 17
WIDTH: Final = 10 * COLUMN + 2 * MARGIN + 1
MAX_NAME: Final = 24  # characters of a name that are shown
RESET: Final = "\x1b[0m"
DIM: Final = "\x1b[2m"
SEAT_COLOURS: Final = ("\x1b[91m", "\x1b[94m", "\x1b[93m", "\x1b[97m")  # red, blue, orange, white


class _Canvas:
    def __init__(self) -> None:
        self._cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(self, column: int, row: int, text: str, colour: str = "") -> None:
        start = column - len(text) // 2
        for offset, letter in enumerate(text):
            self._cells[row][start + offset] = f"{colour}{letter}{RESET}" if colour else letter

    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]


def sketch(table: Table, names: Sequence[str]) -> str:
    """Hexes by resource and number, `*` is the robber, `o` a settlement, `@` a city, a bold stroke a road."""
    canvas = _Canvas()
    for tile, (x, y) in enumerate(HEX_POSITIONS):
        kind, number = table.board.terrain[tile], table.board.numbers[tile]
        label = "desert" if kind is None else f"{kind.value} {number}"
        canvas.put(_column(x), _row(y), label + ("*" if tile == table.robber else ""))
    for edge, (a, b) in enumerate(EDGES):
        owner = table.roads.get(edge)
        colour = DIM if owner is None else SEAT_COLOURS[owner]
        _stroke(canvas, NODE_POSITIONS[a], NODE_POSITIONS[b], colour, built=owner is not None)
    for node, (x, y) in enumerate(NODE_POSITIONS):
        building = table.buildings.get(node)
        if building is None:
            canvas.put(_column(x), _row(y), "·", DIM)
        else:
            canvas.put(_column(x), _row(y), "@" if building.is_city else "o", SEAT_COLOURS[building.player])
    return "\n".join([*canvas.lines(), "", *_legend(table, names)])


def plain_name(names: Sequence[str], player: int) -> str:
    """A player's name as it may be shown: a stranger chose it, so no control codes and not too long."""
    name = names[player] if player < len(names) else f"player {player + 1}"
    printable = "".join(letter for letter in name if letter.isprintable())
    return printable if len(printable) <= MAX_NAME else printable[: MAX_NAME - 1] + "…"


def _legend(table: Table, names: Sequence[str]) -> list[str]:
    return [
        f"{SEAT_COLOURS[player]}■ {plain_name(names, player)}{RESET} {table.points(player)}"
        for player in range(len(table.seats))
    ]


def _column(x: int) -> int:
    return MARGIN + (x + 5) * COLUMN


def _row(y: int) -> int:
    return y + 8


def _stroke(canvas: _Canvas, a: tuple[int, int], b: tuple[int, int], colour: str, *, built: bool) -> None:
    (ax, ay), (bx, _) = sorted((a, b), key=lambda position: position[1])
    if ax == bx:
        canvas.put(_column(ax), _row(ay) + 1, "┃" if built else "│", colour)
        return
    middle = (_column(ax) + _column(bx)) // 2 + (1 if bx > ax else 0)
    falling, rising = ("━╲", "╱━") if built else ("─╲", "╱─")
    canvas.put(middle, _row(ay), falling if bx > ax else rising, colour)
