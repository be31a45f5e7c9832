"""Calendar months in UTC."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leases import FieldInvalid, Month, month_of, parse_month
from leases.months import overlap_ms

INSTANTS = st.integers(min_value=0, max_value=4_102_444_800_000)  # 1970..2100


def test_november_ends_where_december_begins() -> None:
    november = Month(year=2025, number=11)
    assert november.start_ms == 1_761_955_200_000
    assert november.end_ms == Month(year=2025, number=12).start_ms == 1_764_547_200_000
    assert month_of(november.end_ms - 1) == november
    assert month_of(november.end_ms) == Month(year=2025, number=12)


def test_december_leads_into_the_next_year() -> None:
    december = Month(year=2025, number=12)
    assert december.end_ms == Month(year=2026, number=1).start_ms
    assert december.resets_on == "1 January"
    assert str(december) == "2025-12"


@given(INSTANTS)
def test_an_instant_lies_in_its_month(now_ms: int) -> None:
    month = month_of(now_ms)
    day = datetime.fromtimestamp(now_ms / 1000, UTC)
    assert month.start_ms <= now_ms < month.end_ms
    assert (month.year, month.number) == (day.year, day.month)
    assert parse_month(str(month)) == month


@given(st.tuples(INSTANTS, INSTANTS).map(sorted))
def test_the_months_share_an_interval_among_them_without_rest(interval: list[int]) -> None:
    start, end = interval
    end = min(end, start + 10 * 366 * 86_400_000)
    total, month = 0, month_of(start)
    while month.start_ms < end:
        total += overlap_ms(start, end, month)
        month = month_of(month.end_ms)
    assert total == end - start


@pytest.mark.parametrize(
    "text", ["2025-13", "2025-00", "2025-1", "11-2025", "", "2025-11-01", "1969-12", "９999-01"]
)
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(FieldInvalid, match="YYYY-MM"):
        parse_month(text)
