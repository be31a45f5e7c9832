"""Catan, the base game for 2 to 4 players, by its whole rulebook and with trades between players."""

from games.catan.endings import Reason
from games.catan.game import Catan
from games.catan.view import MAX_STATE_BYTES

__all__ = ["MAX_STATE_BYTES", "Catan", "Reason"]
