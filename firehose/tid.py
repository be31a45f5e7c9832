"""Timestamp identifiers: a clock that never repeats itself, and the time inside a TID.

Source: atproto.com/specs/tid. 53 bits of microseconds since 1970, 10 bits of clock
identifier, in a base32 that sorts.
"""

from collections.abc import Callable
from typing import Final

from firehose.syntax import Tid

ALPHABET: Final = "234567abcdefghijklmnopqrstuvwxyz"
CLOCK_ID_BITS: Final = 10
_VALUES: Final = {letter: value for value, letter in enumerate(ALPHABET)}


def tid_from(micros: int, clock_id: int = 0) -> Tid:
    """The TID of a moment, in microseconds since 1970, under a clock identifier from 0 to 1023."""
    if not 0 <= micros < 1 << 53 or not 0 <= clock_id < 1 << CLOCK_ID_BITS:
        raise ValueError(f"no TID for {micros} µs with clock {clock_id}")
    number = micros << CLOCK_ID_BITS | clock_id
    return Tid("".join(ALPHABET[number >> shift & 31] for shift in range(60, -1, -5)))


def tid_micros(tid: Tid) -> int:
    """Microseconds since 1970 that `tid` stands for."""
    number = 0
    for letter in tid:
        number = number << 5 | _VALUES[letter]
    return number >> CLOCK_ID_BITS


class TidClock:
    """Hands out strictly increasing TIDs, also when its clock stands still or steps back.

    >>> clock = TidClock(lambda: 1_000_000)
    >>> clock.next() < clock.next()
    True
    """

    def __init__(self, clock_us: Callable[[], int], clock_id: int = 0) -> None:
        """`clock_us` gives microseconds since 1970; `clock_id` (0 to 1023) tells two clocks apart."""
        self._clock_us = clock_us
        self._clock_id = clock_id
        self._last_us = -1

    def next(self, after: Tid | None = None) -> Tid:
        """A TID later than every one before it, and later than `after` (the account's last rev)."""
        floor = self._last_us if after is None else max(self._last_us, tid_micros(after))
        self._last_us = max(self._clock_us(), floor + 1)
        return tid_from(self._last_us, self._clock_id)
