"""TIDs: in order, whatever the clock does."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.syntax import Tid, parse_tid
from firehose.tid import TidClock, tid_from, tid_micros

MICROS = st.integers(min_value=0, max_value=(1 << 53) - 1)
CLOCKS = st.integers(min_value=0, max_value=1023)


@given(MICROS, CLOCKS)
def test_a_tid_holds_its_moment(micros: int, clock_id: int) -> None:
    tid = tid_from(micros, clock_id)
    assert parse_tid(tid) == tid
    assert tid_micros(tid) == micros


@given(MICROS, MICROS, CLOCKS, CLOCKS)
def test_tids_sort_as_their_moments(a: int, b: int, first: int, second: int) -> None:
    assert (tid_from(a, first) < tid_from(b, second)) == ((a, first) < (b, second))


@given(st.lists(st.integers(min_value=0, max_value=5), min_size=2, max_size=40))
def test_a_clock_never_repeats_itself_even_if_time_stands_still_or_steps_back(times: list[int]) -> None:
    waiting = iter(times)
    clock = TidClock(lambda: next(waiting), clock_id=7)
    tids = [clock.next() for _ in times]
    assert all(a < b for a, b in pairwise(tids))


def test_a_clock_goes_past_a_rev_of_the_future() -> None:
    late = tid_from(9_000_000)
    assert TidClock(lambda: 5).next(after=late) > late


def test_a_known_tid() -> None:
    assert tid_micros(Tid("3jzfcijpj2z2a")) == 1_688_137_381_887_007


@pytest.mark.parametrize(("micros", "clock_id"), [(-1, 0), (1 << 53, 0), (0, 1024), (0, -1)])
def test_a_moment_outside_has_no_tid(micros: int, clock_id: int) -> None:
    with pytest.raises(ValueError, match="no TID"):
        tid_from(micros, clock_id)
