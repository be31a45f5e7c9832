"""The wall clock of this room: epoch milliseconds. Everything else takes its clock as a parameter."""

import time


def now_ms() -> int:
    """Milliseconds since 1970, as records and the ledger count them."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Microseconds since 1970, as traces and TIDs count them."""
    return time.time_ns() // 1000
