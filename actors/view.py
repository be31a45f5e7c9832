"""What a person sees while a game runs: a live picture on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Any, Final, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from actors.simulate import Moment

COLOURS: Final = ("red", "blue", "dark_orange", "white", "green", "magenta")  # as on the board
PLAIN_EVERY_S: Final = 5.0
RECENT: Final = 5  # happenings shown


class PlainView:
    """A line per stage and, while the game runs, one every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._last = 0.0
        self._started = time.monotonic()
        self.names: dict[str, str] = {}
        self.moment: Moment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, moment: Moment) -> None:
        """Print what is new."""
        self.moment = moment
        self.names = moment.names or self.names
        if moment.stage != self._stage:
            self._stage = moment.stage
            self._line(moment.stage)
        elif time.monotonic() - self._last >= PLAIN_EVERY_S and moment.environment:
            self._line(_standing(moment))

    def farewell(self) -> str:
        """What is said after an interruption."""
        cleared = self.moment.cleared if self.moment else None
        if not cleared:
            return "interrupted before anything was leased; nothing is left"
        return f"interrupted: {cleared['ended']} leases ended, {cleared['left']} sandboxes left"

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(f"[{self._last - self._started:6.1f} s] {text}", markup=False)


class LiveView(PlainView):
    """The board or the dungeon, the standings, the leases and the stream, redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, moment: Moment) -> None:
        """Redraw."""
        self.moment = moment
        self.names = moment.names or self.names
        self._live.update(self._draw(moment) if moment.environment else Text(f"{moment.stage} …"))

    def _draw(self, moment: Moment) -> RenderableType:
        environment = moment.environment or {}
        head = Text.assemble(
            (environment["environment"], "bold"),
            f"  decision {environment['turn']}  skipped {environment['skipped']}",
        )
        names = list(self.names.values())
        board = Panel(Text.from_ansi(moment.board), title=environment["type"], expand=False)
        side = Group(_standings(environment, names), "", _leases(moment), "", _stream(moment))
        happened = moment.told or [happening(event, names) for event in environment["recent"]]
        recent = Text("\n".join(happened[-RECENT:]), style="dim", overflow="ellipsis", no_wrap=True)
        return Group(head, Columns([board, side]), recent)


def _standing(moment: Moment) -> str:
    environment = moment.environment or {}
    names = list((moment.names or {}).values())
    points = ", ".join(
        f"{names[row['player']]} {row['points']}"
        for row in environment["standings"]
        if row["player"] < len(names)
    )
    live = len((moment.supervisor or {}).get("live", []))
    return f"decision {environment['turn']}, {live} leases live, points: {points or '-'}"


def happening(event: dict[str, Any], names: list[str]) -> str:
    """A public event of the game as a line: who, what, and its details."""
    player = event.get("player")
    who = names[player] if isinstance(player, int) and player < len(names) else "the game"
    told = {key: value for key, value in event.items() if key not in ("event", "type", "player")}
    details = ", ".join(f"{key} {_plain(value)}" for key, value in told.items())
    return f"{who}: {str(event.get('event') or event.get('type')).replace('_', ' ')} {details}".rstrip()


def _plain(value: object) -> str:
    if value is None or value is False or value == []:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{count} {name}" for name, count in value.items())
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _standings(environment: dict[str, Any], names: list[str]) -> Table:
    table = Table(title="standings", box=None, title_justify="left", title_style="bold")
    rows = environment["standings"]
    columns = [key for key in (rows[0] if rows else {}) if key != "player" and _says_something(key, rows)]
    table.add_column("player")
    for key in columns:
        table.add_column(key.replace("_", " "), justify="right")
    for row in rows:
        player = row["player"]
        name = Text(
            names[player] if player < len(names) else str(player), style=COLOURS[player % len(COLOURS)]
        )
        table.add_row(name, *(_plain(row[key]) for key in columns))
    return table


def _says_something(key: str, rows: list[dict[str, Any]]) -> bool:
    return any(row[key] not in (None, False, []) for row in rows)


def _leases(moment: Moment) -> Table:
    table = Table(title="leases", box=None, title_justify="left", title_style="bold")
    for head in ("agent", "status", "sandbox", "last turn"):
        table.add_column(head)
    names = moment.names or {}
    for lease in (moment.supervisor or {}).get("live", []):
        agent = names.get(lease["agent"], lease["agent"])
        table.add_row(agent, lease["status"], lease["sandbox"], str(lease["last_turn"] or "-"))
    return table


def _stream(moment: Moment) -> Text:
    tap = moment.tap or {}
    return Text(
        f"firehose  {tap.get('seen', 0)} seen, {tap.get('verified', 0)} verified, "
        f"{tap.get('rejected', 0)} rejected, seq {tap.get('seq')}"
    )
