"""Budgets: awake hours per agent and month (UTC), warned of at WARN_AT, and what is done when they are spent.

An agent that is awake and has a budget has a moment at which it must be looked at again: when, as many of its
leases being awake as now, it comes to the next mark, or the month ends. So a sweep reads what is due only.
"""

import math
from dataclasses import dataclass
from typing import Final

from leases import usage
from leases.errors import BudgetExceeded, FieldInvalid
from leases.lease import Lease
from leases.months import MS_PER_HOUR, Month, month_of
from leases.rows import find_leases
from leases.store import Store

DEFAULT_BUDGET: Final = ""  # the row for agents that have none of their own
WARN_AT: Final = 0.8  # of the budget
LOOKS: Final = 500  # agents per sweep; the others are due in the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """What an agent has used of its budget this month; `leases` are those that are awake."""

    agent_did: str
    budget_hours: float
    used_ms: int
    resets_on: str
    leases: tuple[Lease, ...]

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.used_ms >= budget_ms(self.budget_hours)

    def __str__(self) -> str:
        used = self.used_ms / MS_PER_HOUR
        return f"{self.agent_did} has used {used:.4g} of {self.budget_hours:.4g} awake hours this month"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning:
    """That an agent came to WARN_AT of its budget, when, and with what numbers; once per month."""

    agent_did: str
    at: int  # epoch ms
    used_ms: int
    budget_hours: float


def set_budget(store: Store, agent_did: str, hours: float | None) -> None:
    """Set awake hours per month; None and 0 are unlimited. Who is awake is looked at next."""
    if hours is not None and (not math.isfinite(hours) or hours < 0):
        raise FieldInvalid("hours", hours, "awake hours per month, at least 0; None or 0 is unlimited")
    store.run(
        "INSERT INTO budgets (agent_did, hours) VALUES (?, ?) ON CONFLICT (agent_did)"
        " DO UPDATE SET hours = excluded.hours",
        *(agent_did, hours or None),
    )
    if agent_did != DEFAULT_BUDGET:
        look_again(store, agent_did, at=0)
    else:
        store.run(
            "INSERT OR REPLACE INTO budget_checks (agent_did, check_at)"
            " SELECT DISTINCT agent_did, 0 FROM usage WHERE ended_at IS NULL"
        )


def drop_budget(store: Store, agent_did: str) -> None:
    """Let an agent have the default budget again."""
    store.run("DELETE FROM budgets WHERE agent_did = ?", agent_did)
    look_again(store, agent_did, at=0)


def budget_hours(store: Store, agent_did: str) -> float | None:
    """Give an agent's budget: its own row, else the default's; None is unlimited."""
    row = store.row(
        "SELECT hours FROM budgets WHERE agent_did IN (?, ?) ORDER BY agent_did DESC LIMIT 1",
        agent_did,
        DEFAULT_BUDGET,
    )
    return None if row is None else row["hours"]


def own_budgets(store: Store) -> dict[str, float | None]:
    """Give every budget that was set, by agent; DEFAULT_BUDGET is that of all others."""
    return {row["agent_did"]: row["hours"] for row in store.rows("SELECT * FROM budgets ORDER BY agent_did")}


def budget_ms(hours: float) -> int:
    """Give a budget in whole milliseconds."""
    return round(hours * MS_PER_HOUR)


def check_budget(store: Store, agent_did: str, month: Month, *, now_ms: int) -> None:
    """Raises: BudgetExceeded: the agent has used up its month."""
    budget = budget_hours(store, agent_did)
    if budget is None:
        return
    used = usage.awake_ms(store, agent_did, month, now_ms=now_ms)
    if used >= budget_ms(budget):
        raise BudgetExceeded(agent_did, budget, used / MS_PER_HOUR, month.resets_on)


def look_again(store: Store, agent_did: str, *, at: int) -> None:
    """Have an agent looked at, at the latest at `at`: it began to use more, or its budget changed."""
    if budget_hours(store, agent_did) is not None:
        store.run(
            "INSERT INTO budget_checks (agent_did, check_at) VALUES (?, ?) ON CONFLICT (agent_did)"
            " DO UPDATE SET check_at = min(check_at, excluded.check_at)",
            *(agent_did, at),
        )


def is_due(store: Store, *, now_ms: int) -> bool:
    """Say whether anybody has to be looked at."""
    return store.row("SELECT 1 FROM budget_checks WHERE check_at <= ? LIMIT 1", now_ms) is not None


def look(store: Store, *, now_ms: int) -> list[BudgetUse]:
    """Look at the agents that are due; give those that have come to WARN_AT, or to the end of their budget.

    One that is spent is due again at once, until nothing of it is awake.
    """
    month = month_of(now_ms)
    due = store.rows(
        "SELECT agent_did FROM budget_checks WHERE check_at <= ? ORDER BY check_at, agent_did LIMIT ?",
        *(now_ms, LOOKS),
    )
    found = [_look(store, row["agent_did"], month, now_ms) for row in due]
    return [use for use in found if use is not None]


def _look(store: Store, agent_did: str, month: Month, now_ms: int) -> BudgetUse | None:
    budget = budget_hours(store, agent_did)
    awake = len(usage.awake_since(store, agent_did))
    if budget is None or not awake:
        store.run("DELETE FROM budget_checks WHERE agent_did = ?", agent_did)
        return None
    used_ms, limit_ms = usage.awake_ms(store, agent_did, month, now_ms=now_ms), budget_ms(budget)
    marks = [mark for mark in (math.ceil(limit_ms * WARN_AT), limit_ms) if mark > used_ms]
    next_ms = now_ms if not marks else min(month.end_ms, now_ms - (used_ms - marks[0]) // awake)
    store.run("UPDATE budget_checks SET check_at = ? WHERE agent_did = ?", next_ms, agent_did)
    if len(marks) == 2:
        return None
    leases = find_leases(
        store, "WHERE agent_did = ? AND status = 'active' ORDER BY environment_id", agent_did
    )
    return BudgetUse(
        agent_did=agent_did,
        budget_hours=budget,
        used_ms=used_ms,
        resets_on=month.resets_on,
        leases=tuple(leases),
    )


def warn(store: Store, use: BudgetUse, *, now_ms: int) -> bool:
    """Note that an agent came to WARN_AT. Returns: False if it was noted this month."""
    return (
        store.run(
            "INSERT INTO budget_warnings (month_start, agent_did, at, used_ms, budget_hours)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            *(month_of(now_ms).start_ms, use.agent_did, now_ms, use.used_ms, use.budget_hours),
        )
        > 0
    )


def warnings(store: Store, month: Month) -> list[BudgetWarning]:
    """Give who came to WARN_AT in a month, by DID."""
    return [
        BudgetWarning(
            agent_did=row["agent_did"],
            at=row["at"],
            used_ms=row["used_ms"],
            budget_hours=row["budget_hours"],
        )
        for row in store.rows(
            "SELECT * FROM budget_warnings WHERE month_start = ? ORDER BY agent_did", month.start_ms
        )
    ]
