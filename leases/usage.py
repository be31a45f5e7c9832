"""Awake time: intervals per lease, budgets and costs per agent and month (UTC), exact to the millisecond."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from leases.errors import BudgetExceeded, FieldInvalid
from leases.lease import Lease
from leases.months import MS_PER_HOUR, Month
from leases.store import Store

# USD per awake hour: 1 GiB * 0.009 + 1/4 vCPU * 60 min * 0.0012, a small cloud container
DEFAULT_RATE: Final = 0.027
NO_RATES: Final[Mapping[str, float]] = MappingProxyType({})
DEFAULT_BUDGET: Final = ""  # the row for agents that have none of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """What one agent used of one tier in a month."""

    agent_did: str
    tier: str
    awake_ms: int
    hours: float
    cost_usd: float


# how much of an interval lies in [?1, ?2); ?3 is now, the end of what still runs
_CLIPPED: Final = "max(0, min(coalesce(ended_at, ?3), ?2) - max(started_at, ?1))"
_TOUCHES: Final = "started_at < ?2 AND coalesce(ended_at, ?3) > ?1"


def begin(store: Store, lease: Lease, *, at: int) -> None:
    """Start an awake interval."""
    store.run(
        "INSERT INTO usage (lease_id, epoch, agent_did, tier, started_at) VALUES (?, ?, ?, ?, ?)",
        *(lease.id, lease.epoch, lease.agent_did, lease.tier, at),
    )


def end(store: Store, lease_id: str, *, at: int) -> None:
    """End the awake interval that runs, if one does."""
    store.run("UPDATE usage SET ended_at = ? WHERE lease_id = ? AND ended_at IS NULL", at, lease_id)


def awake_ms(store: Store, agent_did: str, month: Month, *, now_ms: int) -> int:
    """Give an agent's awake time in a month, over all its leases, up to now."""
    row = store.row(
        f"SELECT coalesce(sum({_CLIPPED}), 0) AS ms FROM usage WHERE {_TOUCHES} AND agent_did = ?4",
        *(month.start_ms, month.end_ms, now_ms, agent_did),
    )
    return int(row["ms"]) if row else 0


def costs(store: Store, month: Month, rates: Mapping[str, float], *, now_ms: int) -> list[AgentCost]:
    """Give what every agent used of every tier in a month, the dearest first."""
    rows = store.rows(
        f"SELECT agent_did, tier, sum({_CLIPPED}) AS ms FROM usage WHERE {_TOUCHES} GROUP BY agent_did, tier",
        *(month.start_ms, month.end_ms, now_ms),
    )
    found = [
        AgentCost(
            agent_did=row["agent_did"],
            tier=row["tier"],
            awake_ms=row["ms"],
            hours=row["ms"] / MS_PER_HOUR,
            cost_usd=row["ms"] * rates.get(row["tier"], DEFAULT_RATE) / MS_PER_HOUR,
        )
        for row in rows
    ]
    return sorted(found, key=lambda cost: (-cost.cost_usd, -cost.awake_ms, cost.agent_did, cost.tier))


def set_budget(store: Store, agent_did: str, hours: float | None) -> None:
    """Set awake hours per month; None and 0 are unlimited."""
    if hours is not None and (not math.isfinite(hours) or hours < 0):
        raise FieldInvalid("hours", hours, "awake hours per month, at least 0; None or 0 is unlimited")
    store.run(
        "INSERT INTO budgets (agent_did, hours) VALUES (?, ?) ON CONFLICT (agent_did)"
        " DO UPDATE SET hours = excluded.hours",
        *(agent_did, hours or None),
    )


def budget_hours(store: Store, agent_did: str) -> float | None:
    """Give an agent's budget: its own row, else the default's; None is unlimited."""
    row = store.row(
        "SELECT hours FROM budgets WHERE agent_did IN (?, ?) ORDER BY agent_did DESC LIMIT 1",
        agent_did,
        DEFAULT_BUDGET,
    )
    return None if row is None else row["hours"]


def is_spent(budget: float | None, used_ms: int) -> bool:
    """Say whether the time used has reached the budget, in whole milliseconds."""
    return budget is not None and used_ms >= round(budget * MS_PER_HOUR)


def check_budget(store: Store, agent_did: str, month: Month, *, now_ms: int) -> None:
    """Raises: BudgetExceeded: the agent has used up its month."""
    budget = budget_hours(store, agent_did)
    if budget is None:
        return
    used = awake_ms(store, agent_did, month, now_ms=now_ms)
    if is_spent(budget, used):
        raise BudgetExceeded(agent_did, budget, used / MS_PER_HOUR, month.resets_on)
