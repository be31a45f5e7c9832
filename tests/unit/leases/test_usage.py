"""Awake time, budgets and costs: exact to the millisecond, over the ends of months."""

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leases import BudgetExceeded, Cause, FieldInvalid, Lease, LeaseStatus, Ledger, Month
from leases.months import overlap_ms

ALICE, BOB, GM = "did:plc:alice", "did:plc:bob", "did:plc:gm"
HOUR = 3_600_000
NOVEMBER, DECEMBER, JANUARY = (
    Month(year=2025, number=11),
    Month(year=2025, number=12),
    Month(year=2026, number=1),
)


def test_only_awake_time_is_counted(ledger: Ledger, join: Callable[..., Lease], clock: list[int]) -> None:
    lease = join()
    clock[0] += 1_001
    ledger.sleep(lease.id, 1)
    clock[0] += 50_000
    ledger.wake(lease.id, 1)
    clock[0] += 2_002
    assert ledger.awake_ms(ALICE) == 3_003
    ledger.expire(lease.id, Cause.RELEASED)
    clock[0] += 70_000
    ledger.destroyed(lease.id)
    assert ledger.awake_ms(ALICE) == 3_003


def test_a_new_epoch_loses_no_hours(ledger: Ledger, join: Callable[..., Lease], clock: list[int]) -> None:
    for _ in range(3):
        lease = join()
        clock[0] += 7
        ledger.expire(lease.id, Cause.RELEASED)
        ledger.destroyed(lease.id)
        clock[0] += 100
    assert ledger.awake_ms(ALICE) == 21


def test_an_interval_over_two_month_ends_is_split_to_the_millisecond(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    clock[0] = NOVEMBER.end_ms - 3
    lease = join()
    clock[0] = DECEMBER.end_ms + 5
    whole = DECEMBER.end_ms - DECEMBER.start_ms
    assert [ledger.awake_ms(ALICE, month) for month in ("2025-11", "2025-12", "2026-01")] == [3, whole, 5]
    ledger.expire(lease.id, Cause.TTL)
    clock[0] += 10**9
    assert [ledger.awake_ms(ALICE, month) for month in ("2025-11", "2025-12", "2026-01")] == [3, whole, 5]
    assert ledger.awake_ms(ALICE, "2025-10") == 0


def test_costs_are_hours_times_the_rate_of_the_tier(path: Path, clock: list[int]) -> None:
    with Ledger(path, clock=lambda: clock[0], rates={"docker": 0.5}) as ledger:
        ledger.acquire(ALICE, "a", "catan", authority_did=GM)
        ledger.acquire(ALICE, "b", "catan", authority_did=GM, tier="docker")
        bob = ledger.acquire(BOB, "a", "catan", authority_did=GM).lease
        clock[0] += HOUR
        ledger.sleep(bob.id, 1)
        clock[0] += HOUR
        rows = [
            (cost.agent_did, cost.tier, cost.awake_ms, cost.hours, cost.cost_usd) for cost in ledger.costs()
        ]
        assert rows == [
            (ALICE, "docker", 2 * HOUR, 2.0, 1.0),
            (ALICE, "process", 2 * HOUR, 2.0, pytest.approx(0.054)),
            (BOB, "process", HOUR, 1.0, pytest.approx(0.027)),
        ]
        assert ledger.costs("2025-10") == []
        with pytest.raises(FieldInvalid):
            ledger.costs("November")


Nap = tuple[int, int]  # awake for, asleep for, in ms


@given(
    st.integers(min_value=-3, max_value=70 * 24),
    st.lists(
        st.tuples(st.integers(0, 40 * 24 * HOUR), st.integers(0, 40 * 24 * HOUR)), min_size=1, max_size=6
    ),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scripted_intervals_give_exact_hours_per_month(folder: Path, hours: int, naps: list[Nap]) -> None:
    clock = [NOVEMBER.end_ms - hours * HOUR - 1]
    expected = dict.fromkeys((NOVEMBER, DECEMBER, JANUARY), 0)
    with Ledger(folder / f"{uuid4().hex}.db", clock=lambda: clock[0]) as ledger:
        lease = ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM).lease
        for awake, asleep in naps:
            for month in expected:
                expected[month] += overlap_ms(clock[0], clock[0] + awake, month)
            clock[0] += awake
            ledger.sleep(lease.id, 1)
            clock[0] += asleep
            ledger.wake(lease.id, 1)
        assert {month: ledger.awake_ms(ALICE, str(month)) for month in expected} == expected
        ledger.check_invariants()


def test_over_budget_is_refused_with_the_three_numbers_and_no_row(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 10)
    join("alice", "catan-1")
    clock[0] += 10 * HOUR
    with pytest.raises(BudgetExceeded) as refused:
        join("alice", "catan-2")
    assert (refused.value.agent_did, refused.value.budget_hours, refused.value.used_hours) == (
        ALICE,
        10,
        10.0,
    )
    assert str(refused.value) == (
        "did:plc:alice has used 10 of 10 awake hours this month: raise its budget, or wait for 1 December"
    )
    assert [lease.environment_id for lease in ledger.list()] == ["catan-1"]
    assert join("bob", "catan-2").is_live


def test_the_last_millisecond_of_a_budget_may_be_used(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 0.001)  # 3600 ms
    lease = join("alice", "catan-1")
    clock[0] += 3_599
    assert join("alice", "catan-2").is_live
    ledger.expire(lease.id, Cause.RELEASED)
    ledger.expire("did:plc:alice::catan-2", Cause.RELEASED)
    assert join("alice", "catan-3").is_live
    clock[0] += 1
    with pytest.raises(BudgetExceeded):
        join("alice", "catan-4")


def test_a_held_lease_comes_back_however_much_was_used(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 1)
    lease = join()
    clock[0] += 5 * HOUR
    assert join() == lease
    ledger.sleep(lease.id, 1)
    assert join().status is LeaseStatus.SLEEPING


def test_a_new_month_begins_with_nothing_used(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    ledger.set_budget(ALICE, 1)
    clock[0] = NOVEMBER.end_ms - 2 * HOUR
    lease = join("alice", "catan-1")
    clock[0] = NOVEMBER.end_ms - 1
    ledger.expire(lease.id, Cause.BUDGET)
    with pytest.raises(BudgetExceeded):
        join("alice", "catan-2")
    clock[0] = NOVEMBER.end_ms
    assert join("alice", "catan-2").is_live


@pytest.mark.parametrize("unlimited", [None, 0, 0.0])
def test_none_and_zero_are_unlimited(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int], unlimited: float | None
) -> None:
    ledger.set_budget(None, 1)
    ledger.set_budget(ALICE, unlimited)
    join("alice", "catan-1")
    join("bob", "catan-1")
    clock[0] += 2 * HOUR
    assert ledger.budget(ALICE) is None
    assert join("alice", "catan-2").is_live
    with pytest.raises(BudgetExceeded):
        join("bob", "catan-2")
    ledger.set_budget(BOB, 3)
    assert ledger.budget(BOB) == 3
    assert join("bob", "catan-2").is_live


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_what_is_no_budget_is_refused(ledger: Ledger, hours: float) -> None:
    with pytest.raises(FieldInvalid, match="hours"):
        ledger.set_budget(ALICE, hours)


def test_the_sweep_finds_active_leases_of_agents_that_are_over(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    ledger.set_budget(None, 2)
    asleep, awake = join("alice", "catan-1"), join("alice", "catan-2")
    join("bob", "catan-1")
    ledger.sleep(asleep.id, 1)
    clock[0] += 2 * HOUR - 1
    assert ledger.sweep_budgets() == []
    ledger.set_budget(BOB, 3)
    clock[0] += 1
    (use,) = ledger.sweep_budgets()
    assert (use.agent_did, use.budget_hours, use.used_ms) == (ALICE, 2, 2 * HOUR)
    assert [lease.id for lease in use.leases] == [awake.id]


def test_costs_are_plain_numbers(ledger: Ledger, join: Callable[..., Lease], clock: list[int]) -> None:
    join()
    clock[0] += 1
    (cost,) = ledger.costs()
    assert json.loads(json.dumps([cost.awake_ms, cost.hours, cost.cost_usd]))[0] == 1
