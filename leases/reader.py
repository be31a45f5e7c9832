"""What can be read from a ledger, by its writer or beside it."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from leases import accounts, budgets, digest, history, invariants, repairs, shares, usage
from leases.budgets import BudgetWarning
from leases.errors import UnknownLease
from leases.history import LeaseEvent
from leases.lease import Account, Lease, LeaseStatus, Placement, SandboxState
from leases.months import month_of, parse_month
from leases.repairs import Repair
from leases.rows import find_leases, get_lease, placement_of
from leases.store import Access, Store
from leases.usage import NO_RATES, AgentCost

Leases: TypeAlias = list[Lease]  # inside the classes, `list` is the method
Events: TypeAlias = list[LeaseEvent]
Costs: TypeAlias = list[AgentCost]
Accounts: TypeAlias = list[Account]
Placements: TypeAlias = list[Placement]
Warnings: TypeAlias = list[BudgetWarning]
Repairs: TypeAlias = list[Repair]


def wall_clock_ms() -> int:
    """Give the time of day in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class LedgerReader:
    """A ledger opened for reading: works on a live file beside its writer, and on one that nobody has open.

    Times are epoch milliseconds. Every method raises LedgerUnavailable when the file cannot be read.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        rates: Mapping[str, float] = NO_RATES,
    ) -> None:
        """Open `path`; `rates` are USD per awake hour by tier (others cost `usage.DEFAULT_RATE`).

        Raises: LedgerUnavailable: no such file, or no ledger. LedgerTooNew: a newer skylease wrote it.
        """
        self._adopt(Store(Path(path), Access.READ), clock, rates)

    def _adopt(self, store: Store, clock: Callable[[], int], rates: Mapping[str, float]) -> None:
        self._store, self._clock, self._rates = store, clock, dict(rates)

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._store.path

    def get(self, lease_id: str) -> Lease:
        """Give one lease. Raises: UnknownLease."""
        return get_lease(self._store, lease_id)

    def history(self, lease_id: str) -> Events:
        """Give all that happened to a lease over all its epochs, oldest first. Raises: UnknownLease."""
        events = history.read(self._store, lease_id)
        if not events:
            raise UnknownLease(lease_id)
        return events

    def expired(self, now: int | None = None) -> Leases:
        """Give the live leases whose time is over at `now` (default: the clock's), most overdue first."""
        return find_leases(
            self._store,
            # named, or SQLite goes through all live leases by their status
            "INDEXED BY leases_due"
            " WHERE status IN ('active', 'sleeping') AND expires_at <= ? ORDER BY expires_at, id",
            self._clock() if now is None else now,
        )

    def idle(self, now: int | None = None) -> Leases:
        """Give the active, placed leases without activity for their `sleep_after_ms`, most overdue first."""
        return find_leases(
            self._store,
            "INDEXED BY leases_idle"
            " WHERE status = 'active' AND node_id IS NOT NULL AND last_activity + sleep_after_ms <= ?"
            " ORDER BY last_activity + sleep_after_ms, id",
            self._clock() if now is None else now,
        )

    def is_idle(self, lease_id: str, epoch: int) -> bool:
        """Say whether `idle` would give this lease now."""
        lease = get_lease(self._store, lease_id)
        is_awake = lease.status is LeaseStatus.ACTIVE and lease.epoch == epoch and lease.node_id is not None
        return is_awake and lease.last_activity + lease.sleep_after_ms <= self._clock()

    def pending_destroy(self) -> Leases:
        """Give the ended leases whose tier has not confirmed that nothing is left, oldest ending first.

        One whose sandbox others share waits for the last of them to end.
        """
        return find_leases(
            self._store,
            "WHERE status = 'expired' AND NOT EXISTS (SELECT 1 FROM shares AS s"
            " JOIN leases AS guest ON guest.id = s.lease_id AND guest.epoch = s.epoch"
            " WHERE s.host_id = leases.id AND s.host_epoch = leases.epoch"
            " AND guest.status IN ('active', 'sleeping')) ORDER BY ended_at, id",
        )

    def host_of(self, lease: Lease) -> Lease | None:
        """Give the lease whose sandbox this one is in, live or not; None: it has its own.

        Raises: StaleEpoch: the host is another by now.
        """
        return shares.host_of(self._store, lease)

    def guests_of(self, lease: Lease) -> Leases:
        """Give the live leases in this one's sandbox, those that came first at first."""
        return shares.guests_of(self._store, lease)

    def held_by(self, agent_did: str) -> Leases:
        """Give the live leases of an agent, by environment."""
        return find_leases(
            self._store,
            "WHERE agent_did = ? AND status IN ('active', 'sleeping') ORDER BY environment_id",
            agent_did,
        )

    def placed(self, status: LeaseStatus, node_id: str | None = None) -> Leases:
        """Give the leases of a status that are placed on a node (None: on any), by id."""
        return find_leases(
            self._store,
            "WHERE status = ?1 AND node_id IS NOT NULL AND (?2 IS NULL OR node_id = ?2) ORDER BY id",
            *(status, node_id),
        )

    def unplaced(self) -> Leases:
        """Give the leases that are awake and have no sandbox, nor the intent of one, nor a host's, by id."""
        return find_leases(
            self._store,
            "WHERE status = 'active' AND node_id IS NULL AND NOT EXISTS (SELECT 1 FROM shares"
            " WHERE lease_id = leases.id AND epoch = leases.epoch) ORDER BY id",
        )

    def placed_elsewhere(self, nodes: Sequence[str]) -> Leases:
        """Give the leases that are not destroyed and placed on none of these nodes, by id."""
        return find_leases(
            self._store,
            "WHERE status IN ('active', 'sleeping', 'expired') AND node_id IS NOT NULL"
            f" AND node_id NOT IN ({', '.join('?' * len(nodes))}) ORDER BY id",
            *nodes,
        )

    def awake_since(self, lease_id: str) -> int | None:
        """Give when a lease that is awake became so, in epoch milliseconds; None: it is not."""
        row = self._store.row(
            "SELECT started_at FROM usage WHERE lease_id = ? AND ended_at IS NULL", lease_id
        )
        return None if row is None else int(row["started_at"])

    def of_agent(self, agent_did: str) -> Leases:
        """Give every lease of an agent, by the time it was leased."""
        return find_leases(self._store, "WHERE agent_did = ? ORDER BY leased_at, id", agent_did)

    def agents(self) -> tuple[str, ...]:
        """Give every agent that ever had a lease, by the time of the first of those there are."""
        first = "SELECT agent_did FROM leases GROUP BY agent_did ORDER BY min(leased_at), agent_did"
        return tuple(row["agent_did"] for row in self._store.rows(first))

    def now_ms(self) -> int:
        """Give the time by the ledger's clock, in epoch milliseconds."""
        return self._clock()

    def counts(self) -> dict[str, int]:
        """Give how many leases there are of each status."""
        counted = {row["status"]: row["n"] for row in self._store.rows("SELECT * FROM lease_counts")}
        return {status.value: counted[status] for status in LeaseStatus}

    def lease_of(self, sandbox_id: str) -> Lease | None:
        """Give the lease that a sandbox was placed for last; None: no lease ever had it."""
        row = self._store.row(
            "SELECT lease_id FROM sandboxes WHERE sandbox_id = ? ORDER BY epoch DESC LIMIT 1", sandbox_id
        )
        return None if row is None else get_lease(self._store, row["lease_id"])

    def awake_ms(self, agent_did: str, month: str | None = None) -> int:
        """Give an agent's awake time in a month (YYYY-MM, UTC; default: this one) over all its leases."""
        now = self._clock()
        return usage.awake_ms(
            self._store, agent_did, parse_month(month) if month else month_of(now), now_ms=now
        )

    def budget(self, agent_did: str) -> float | None:
        """Give an agent's awake hours per month, its own or the default; None is unlimited."""
        return budgets.budget_hours(self._store, agent_did)

    def budgets(self) -> dict[str, float | None]:
        """Give every budget that was set, by agent; "" is that of all who have none of their own."""
        return budgets.own_budgets(self._store)

    def budget_warnings(self, month: str | None = None) -> Warnings:
        """Give who came near the end of its budget in a month (YYYY-MM, UTC; default: this one)."""
        return budgets.warnings(self._store, parse_month(month) if month else month_of(self._clock()))

    def repairs(self, limit: int = 100) -> Repairs:
        """Give the newest repairs, the newest first."""
        return repairs.read(self._store, limit)

    def costs(self, month: str | None = None) -> Costs:
        """Give what each agent used of each tier in a month (YYYY-MM, UTC; default: this), dearest first."""
        now = self._clock()
        return usage.costs(
            self._store, parse_month(month) if month else month_of(now), self._rates, now_ms=now
        )

    def sandboxes(self, *, state: SandboxState | str | None = None, node_id: str | None = None) -> Placements:
        """Give every sandbox ever placed, one per epoch, oldest first; of one state or node if named."""
        rows = self._store.rows(
            "SELECT * FROM sandboxes WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR node_id = ?2)"
            " ORDER BY placed_at, sandbox_id, epoch",
            *(None if state is None else SandboxState(state), node_id),
        )
        return [placement_of(row) for row in rows]

    def cursor(self, name: str) -> int | None:
        """Give how far a stream has been dealt with; None: never."""
        row = self._store.row("SELECT seq FROM cursors WHERE name = ?", name)
        return None if row is None else int(row["seq"])

    def counters(self) -> dict[str, int]:
        """Give every counter by name."""
        return {
            row["name"]: row["n"] for row in self._store.rows("SELECT name, n FROM counters ORDER BY name")
        }

    def accounts(self) -> Accounts:
        """Give every account that the firehose told of, by DID."""
        return accounts.read(self._store)

    def unpublished(self, limit: int = 100) -> Events:
        """Give the oldest beginnings and endings of leases that are not yet published as records."""
        return history.waiting(self._store, limit)

    def digest(self) -> str:
        """Give the SHA-256 of the ledger's content: equal histories have equal digests."""
        return digest.digest(self._store)

    def check_invariants(self) -> None:
        """Check everything that must hold. Raises: InvariantBroken: with every violation in words."""
        invariants.check(self._store)

    def close(self) -> None:
        """Close the file; twice is as good as once."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def list(
        self,
        status: LeaseStatus | str | None = None,
        environment_id: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> Leases:
        """Give all leases, or those with a status or in an environment, by the time they were leased.

        With `limit` at most so many; with `after` those that come after the lease of this id. A page is cheap
        however many pages there are.
        """
        wanted: dict[str, str | int] = {}
        if status is not None:
            wanted["status = ?"] = LeaseStatus(status)
        if environment_id is not None:
            wanted["environment_id = ?"] = environment_id
        if after is not None:
            wanted["(leased_at, id) > (SELECT leased_at, id FROM leases WHERE id = ?)"] = after
        where = f"WHERE {' AND '.join(wanted)} " if wanted else ""
        most = -1 if limit is None else limit
        return find_leases(self._store, f"{where}ORDER BY leased_at, id LIMIT ?", *wanted.values(), most)
