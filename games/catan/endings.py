"""When a game of Catan is over, and who has won."""

from enum import StrEnum

from games.catan.table import Phase, Table


class Reason(StrEnum):
    """Why the game ended; the word in the outcome."""

    WIN = "win"
    STALEMATE = "stalemate"  # nobody built or bought anything for the agreed number of rounds
    TURN_CAP = "turn_cap"  # the agreed number of decisions was taken


def ending(table: Table, decisions: int) -> tuple[Reason, int | None] | None:
    """(why, who), or None while the game goes on. Who is None when nobody leads alone."""
    if table.phase in (Phase.SETUP_SETTLEMENT, Phase.SETUP_ROAD):
        return (Reason.TURN_CAP, leader(table)) if decisions >= table.settings.turn_cap else None
    if table.points(table.current) >= table.settings.points_to_win:
        return Reason.WIN, table.current
    if table.idle_turns >= table.settings.stalemate_rounds * len(table.seats):
        return Reason.STALEMATE, leader(table)
    if decisions >= table.settings.turn_cap:
        return Reason.TURN_CAP, leader(table)
    return None


def leader(table: Table) -> int | None:
    """The player with the most points, None if several have as many."""
    points = [table.points(player) for player in range(len(table.seats))]
    best = max(points)
    return points.index(best) if points.count(best) == 1 else None
