"""Calendar months in UTC, in epoch milliseconds: what budgets and costs are counted by. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from leases.errors import FieldInvalid

MS_PER_HOUR: Final = 3_600_000
_MONTH_NAMES: Final = (  # not strftime("%B"), which follows the locale
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH: Final = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A calendar month; an instant belongs to it when start_ms <= instant < end_ms."""

    year: int
    number: int  # 1..12

    @property
    def start_ms(self) -> int:
        """The first millisecond of the month."""
        return _midnight_ms(self.year, self.number)

    @property
    def end_ms(self) -> int:
        """The first millisecond of the next month."""
        return _midnight_ms(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def resets_on(self) -> str:
        """The first day of the next month in words, e.g. "1 December"."""
        return f"1 {_MONTH_NAMES[self.number % 12]}"

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"


def month_of(now_ms: int) -> Month:
    """Give the month an instant lies in."""
    day = datetime.fromtimestamp(now_ms // 1000, UTC)
    return Month(year=day.year, number=day.month)


def parse_month(text: str) -> Month:
    """Read "2026-11"."""
    found = _MONTH.fullmatch(text)
    if not found or not 1970 <= int(found[1]) <= 9998:
        raise FieldInvalid("month", text, "write it as YYYY-MM, e.g. 2026-11")
    return Month(year=int(found[1]), number=int(found[2]))


def overlap_ms(start_ms: int, end_ms: int, month: Month) -> int:
    """Give how much of [start_ms, end_ms) lies in the month."""
    return max(0, min(end_ms, month.end_ms) - max(start_ms, month.start_ms))


def months_of(start_ms: int, end_ms: int) -> Iterator[tuple[Month, int]]:
    """Yield every month that [start_ms, end_ms) lies in, and how much of it lies there (more than 0 ms)."""
    while start_ms < end_ms:
        month = month_of(start_ms)
        until = min(end_ms, month.end_ms)
        yield month, until - start_ms
        start_ms = until


def _midnight_ms(year: int, number: int) -> int:
    return int(datetime(year, number, 1, tzinfo=UTC).timestamp()) * 1000
