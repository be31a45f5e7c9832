"""Awake time: intervals per lease, totals per agent and month (UTC), exact to the millisecond, and its cost.

An interval that has ended is added to its months; one that runs is counted up to now when somebody asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from leases.lease import Lease
from leases.months import MS_PER_HOUR, Month, months_of, overlap_ms
from leases.store import Store

# USD per awake hour: 1 GiB * 0.009 + 1/4 vCPU * 60 min * 0.0012, a small cloud container
DEFAULT_RATE: Final = 0.027
SHARED: Final = (
    "shared"  # tier of a lease in another's sandbox: its awake time is that one's, and costs nothing
)
NO_RATES: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """What one agent used of one tier in a month."""

    agent_did: str
    tier: str
    awake_ms: int
    hours: float
    cost_usd: float


def begin(store: Store, lease: Lease, *, at: int) -> None:
    """Start an awake interval."""
    store.run(
        "INSERT INTO usage (lease_id, epoch, agent_did, tier, started_at) VALUES (?, ?, ?, ?, ?)",
        *(lease.id, lease.epoch, lease.agent_did, lease.tier, at),
    )


def end(store: Store, lease_id: str, *, at: int) -> None:
    """End the awake interval that runs, if one does."""
    row = store.row(
        "SELECT rowid, agent_did, tier, started_at FROM usage WHERE lease_id = ? AND ended_at IS NULL",
        lease_id,
    )
    if row is None:
        return
    store.run("UPDATE usage SET ended_at = ? WHERE rowid = ?", at, row["rowid"])
    for month, ms in months_of(row["started_at"], at):
        store.run(
            "INSERT INTO usage_months (month_start, agent_did, tier, ms) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (month_start, agent_did, tier) DO UPDATE SET ms = ms + excluded.ms",
            *(month.start_ms, row["agent_did"], row["tier"], ms),
        )


def awake_ms(store: Store, agent_did: str, month: Month, *, now_ms: int) -> int:
    """Give an agent's awake time in a month, over all its leases, up to now."""
    row = store.row(
        "SELECT coalesce(sum(ms), 0) AS ms FROM usage_months WHERE month_start = ? AND agent_did = ?"
        " AND tier <> ?",
        *(month.start_ms, agent_did, SHARED),
    )
    running = sum(overlap_ms(started_at, now_ms, month) for started_at in awake_since(store, agent_did))
    return (int(row["ms"]) if row else 0) + running


def awake_since(store: Store, agent_did: str) -> list[int]:
    """Give when each interval of an agent began that runs now, in epoch milliseconds."""
    rows = store.rows(
        "SELECT started_at FROM usage WHERE agent_did = ? AND ended_at IS NULL AND tier <> ?",
        *(agent_did, SHARED),
    )
    return [row["started_at"] for row in rows]


def costs(store: Store, month: Month, rates: Mapping[str, float], *, now_ms: int) -> list[AgentCost]:
    """Give what every agent used of every tier in a month, the dearest first."""
    used: dict[tuple[str, str], int] = {}
    for row in store.rows(
        "SELECT agent_did, tier, ms FROM usage_months WHERE month_start = ?", month.start_ms
    ):
        used[row["agent_did"], row["tier"]] = row["ms"]
    for row in store.rows("SELECT agent_did, tier, started_at FROM usage WHERE ended_at IS NULL"):
        if row["started_at"] < month.end_ms and now_ms > month.start_ms:
            key = (row["agent_did"], row["tier"])
            used[key] = used.get(key, 0) + overlap_ms(row["started_at"], now_ms, month)
    found = [
        AgentCost(
            agent_did=agent_did,
            tier=tier,
            awake_ms=ms,
            hours=ms / MS_PER_HOUR,
            cost_usd=ms * _rate(tier, rates) / MS_PER_HOUR,
        )
        for (agent_did, tier), ms in used.items()
    ]
    return sorted(found, key=lambda cost: (-cost.cost_usd, -cost.awake_ms, cost.agent_did, cost.tier))


def _rate(tier: str, rates: Mapping[str, float]) -> float:
    return 0.0 if tier == SHARED else rates.get(tier, DEFAULT_RATE)
