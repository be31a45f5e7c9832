"""Budgets: warned of once a month, given as spent until nothing is awake, found without asking everybody."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leases import BudgetExceeded, Cause, Lease, LeaseStatus, Ledger, Month, Why, month_of

ALICE, BOB, GM = "did:plc:alice", "did:plc:bob", "did:plc:gm"
HOUR = 3_600_000
NOVEMBER = Month(year=2025, number=11)
LEAP_FEBRUARY = Month(year=2028, number=2)
Join = Callable[..., Lease]


def test_a_warning_is_told_once_a_month_in_the_history_the_counters_and_a_row(
    ledger: Ledger, join: Join, clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 10)
    lease, asleep = join(), join("alice", "catan-8")
    ledger.sleep(asleep.id, 1)
    clock[0] += 8 * HOUR - 1
    assert ledger.sweep_budgets() == []
    assert ledger.budget_warnings() == []
    clock[0] += 1
    for _ in range(3):
        assert ledger.sweep_budgets() == []
        clock[0] += 1
    (warning,) = ledger.budget_warnings()
    assert (warning.agent_did, warning.used_ms, warning.budget_hours) == (ALICE, 8 * HOUR, 10)
    assert ledger.counters()["budget_warnings"] == 1
    (told,) = [event for event in ledger.history(lease.id) if event.cause is Cause.WARNED]
    assert told.detail == {"budget_hours": 10.0, "used_ms": 8 * HOUR}
    assert not [event for event in ledger.history(asleep.id) if event.cause is Cause.WARNED]
    clock[0] = NOVEMBER.end_ms + 8 * HOUR
    assert ledger.sweep_budgets() == []
    assert [len(ledger.budget_warnings(month)) for month in ("2025-11", "2025-12")] == [1, 1]


def test_who_is_spent_is_given_until_nothing_of_it_is_awake(
    ledger: Ledger, join: Join, clock: list[int]
) -> None:
    ledger.set_budget(None, 2)
    first, second, _ = join("alice", "a"), join("alice", "b"), join("bob", "a")
    clock[0] += HOUR
    (use,) = ledger.sweep_budgets()
    assert ([lease.id for lease in use.leases], use.is_spent) == ([first.id, second.id], True)
    ledger.sleep(first.id, 1, why=Why.BUDGET)
    (use,) = ledger.sweep_budgets()
    assert [lease.id for lease in use.leases] == [second.id]
    ledger.sleep(second.id, 1, why=Why.BUDGET)
    assert ledger.sweep_budgets() == []
    assert [event.detail for event in ledger.history(first.id)][-1] == {"why": "budget"}


def test_a_spent_agent_is_not_woken_until_the_month_turns(
    ledger: Ledger, join: Join, clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 1)
    lease = join()
    clock[0] += HOUR
    ledger.check_wake(lease.id, 1)  # it is awake: nobody wakes it
    ledger.sleep(lease.id, 1)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.check_wake(lease.id, 1)
    assert (refused.value.agent_did, refused.value.budget_hours, refused.value.used_hours) == (ALICE, 1, 1)
    ledger.renew(lease.id, 1)
    clock[0] = NOVEMBER.end_ms - 1
    with pytest.raises(BudgetExceeded):
        ledger.check_wake(lease.id, 1)
    clock[0] += 1
    ledger.check_wake(lease.id, 1)
    assert ledger.wake(lease.id, 1)


@pytest.mark.parametrize("raised", [3.0, None, "default"])
def test_nor_until_its_budget_is_raised(
    ledger: Ledger, join: Join, clock: list[int], raised: float | str | None
) -> None:
    ledger.set_budget(ALICE, 1)
    lease = join()
    clock[0] += 2 * HOUR
    ledger.sleep(lease.id, 1)
    with pytest.raises(BudgetExceeded):
        ledger.check_wake(lease.id, 1)
    if raised == "default":
        ledger.drop_budget(ALICE)
    else:
        ledger.set_budget(ALICE, float(raised) if raised else None)
    ledger.check_wake(lease.id, 1)


@pytest.mark.parametrize("whose", [ALICE, None], ids=["its-own", "the-default"])
def test_a_budget_that_is_set_under_a_running_lease_counts_at_once(
    ledger: Ledger, join: Join, clock: list[int], whose: str | None
) -> None:
    join()
    clock[0] += 2 * HOUR
    assert ledger.sweep_budgets() == []
    ledger.set_budget(whose, 1)
    assert [use.agent_did for use in ledger.sweep_budgets()] == [ALICE]


def test_time_stops_when_it_was_and_not_when_it_was_noticed(
    ledger: Ledger, join: Join, clock: list[int]
) -> None:
    lease = join()
    start = clock[0]
    clock[0] += 10_000
    ledger.sleep(lease.id, 1, why=Why.EVICTED, at_ms=start + 4_000)
    assert ledger.awake_ms(ALICE) == 4_000
    ledger.wake(lease.id, 1, at_ms=start + 9_000)
    assert ledger.awake_ms(ALICE) == 5_000
    ledger.sleep(lease.id, 1, at_ms=start)  # before it woke: nothing is taken back
    assert ledger.awake_ms(ALICE) == 4_000
    ledger.wake(lease.id, 1, at_ms=clock[0] + 99)  # not in the future either
    assert ledger.history(lease.id)[-1].at == clock[0]


def oracle(moments: list[tuple[int, bool]], month: Month, now: int) -> int:
    """Awake time the slow way: every stretch between two moments, cut to the month."""
    total = 0
    for (start, is_awake), (end, _) in pairwise([*moments, (now, False)]):
        if is_awake:
            total += max(0, min(end, month.end_ms) - max(start, month.start_ms))
    return total


STRETCHES = st.lists(st.tuples(st.sampled_from(["sleep", "wake", "back"]), st.integers(0, 20 * 24 * HOUR)))


@given(st.sampled_from([NOVEMBER.start_ms, LEAP_FEBRUARY.start_ms]), st.integers(0, 30), STRETCHES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_stretches_come_to_what_a_slow_oracle_says(
    folder: Path, month_start: int, days: int, stretches: list[tuple[str, int]]
) -> None:
    clock = [month_start + days * 24 * HOUR - 1]
    with Ledger(folder / f"{uuid4().hex}.db", clock=lambda: clock[0]) as ledger:
        lease = ledger.acquire(ALICE, "g", "catan", authority_did=GM).lease
        moments, latest = [(clock[0], True)], clock[0]
        for what, ms in stretches:
            clock[0] += -ms if what == "back" else ms
            if what != "back":
                latest = max(latest, clock[0])  # a lease's own time never goes back
                changed = ledger.sleep(lease.id, 1) if what == "sleep" else ledger.wake(lease.id, 1)
                if changed:
                    moments.append((latest, what == "wake"))
                else:
                    latest = moments[-1][0]
        for month in months(moments[0][0], max(clock[0], moments[-1][0])):
            assert ledger.awake_ms(ALICE, str(month)) == oracle(moments, month, max(clock[0], moments[-1][0]))
        ledger.check_invariants()


def months(start_ms: int, end_ms: int) -> Iterator[Month]:
    while start_ms <= end_ms:
        month = month_of(start_ms)
        yield month
        start_ms = month.end_ms


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 5 * HOUR)), max_size=25),
    st.lists(st.sampled_from([None, 1.0, 4.0, 9.0]), min_size=2, max_size=2),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sweep_finds_whom_asking_everybody_finds(
    folder: Path, moves: list[tuple[int, bool, int]], hours: list[float | None]
) -> None:
    clock = [NOVEMBER.end_ms - 30 * HOUR]
    with Ledger(folder / f"{uuid4().hex}.db", clock=lambda: clock[0]) as ledger:
        ledger.set_budget(None, hours[0])
        ledger.set_budget(BOB, hours[1])
        leases = [
            ledger.acquire(agent, environment, "catan", authority_did=GM).lease
            for agent, environment in ((ALICE, "a"), (ALICE, "b"), (BOB, "a"))
        ]
        for which, awake, ms in moves:
            change = ledger.wake if awake else ledger.sleep
            change(leases[which].id, 1)
            clock[0] += ms
            spent = {use.agent_did for use in ledger.sweep_budgets()}
            assert spent == {agent for agent in (ALICE, BOB) if is_over(ledger, agent)}


def is_over(ledger: Ledger, agent: str) -> bool:
    is_awake = any(lease.status is LeaseStatus.ACTIVE for lease in ledger.held_by(agent))
    budget = ledger.budget(agent)
    return is_awake and budget is not None and ledger.awake_ms(agent) >= round(budget * HOUR)
