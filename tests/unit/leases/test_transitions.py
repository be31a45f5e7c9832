"""Every pair of status and cause: either a row of the table, or refused."""

import itertools

import pytest

from leases import ENDINGS, LIVE, TRANSITIONS, Cause, LeaseStatus, next_status

A, S, E, D = LeaseStatus.ACTIVE, LeaseStatus.SLEEPING, LeaseStatus.EXPIRED, LeaseStatus.DESTROYED
STATUSES: tuple[LeaseStatus | None, ...] = (None, *LeaseStatus)
NOT_ENDINGS: dict[tuple[LeaseStatus | None, Cause], LeaseStatus] = {
    (None, Cause.ACQUIRED): A,
    (D, Cause.ACQUIRED): A,
    (A, Cause.SLEPT): S,
    (A, Cause.SANDBOX_LOST): S,
    (S, Cause.WOKEN): A,
    (A, Cause.PLACED): A,
    (S, Cause.PLACED): S,
    (A, Cause.SANDBOX): A,
    (S, Cause.SANDBOX): S,
    (E, Cause.SANDBOX): E,
    (E, Cause.TIER_EMPTY): D,
    (E, Cause.NEVER_PLACED): D,
    (A, Cause.WARNED): A,
    (S, Cause.WARNED): S,
    **{(status, Cause.REPAIRED): status for status in LeaseStatus},
}


@pytest.mark.parametrize(
    ("status", "cause"), list(itertools.product(STATUSES, Cause)), ids=lambda value: str(value or "none")
)
def test_every_pair_leads_where_it_should(status: LeaseStatus | None, cause: Cause) -> None:
    ends = E if status in LIVE and cause in ENDINGS else None
    assert next_status(status, cause) is NOT_ENDINGS.get((status, cause), ends)


def test_every_status_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(LeaseStatus)
    assert {status for (status, _), to in TRANSITIONS.items() if to is not status} == set(STATUSES)


def test_every_cause_does_something() -> None:
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


def test_only_a_report_that_nothing_is_left_destroys() -> None:
    assert {pair for pair, to in TRANSITIONS.items() if to is D and pair[0] is not D} == {
        (E, Cause.TIER_EMPTY),
        (E, Cause.NEVER_PLACED),
    }
