"""What can be read from a ledger, by its writer or beside it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from leases import accounts, digest, history, invariants, usage
from leases.errors import UnknownLease
from leases.history import LeaseEvent
from leases.lease import Account, Lease, LeaseStatus, Placement, SandboxState
from leases.months import month_of, parse_month
from leases.rows import find_leases, get_lease, placement_of
from leases.store import Access, Store
from leases.usage import NO_RATES, AgentCost

Leases: TypeAlias = list[Lease]  # inside the classes, `list` is the method
Events: TypeAlias = list[LeaseEvent]
Costs: TypeAlias = list[AgentCost]
Accounts: TypeAlias = list[Account]
Placements: TypeAlias = list[Placement]


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
            "WHERE status IN ('active', 'sleeping') AND expires_at <= ? ORDER BY expires_at, id",
            self._clock() if now is None else now,
        )

    def pending_destroy(self) -> Leases:
        """Give the ended leases whose tier has not confirmed that nothing is left, oldest ending first."""
        return find_leases(self._store, "WHERE status = 'expired' ORDER BY ended_at, id")

    def over_budget(self) -> Leases:
        """Give the active leases of agents that have used up this month; a sleeping one uses nothing."""
        now = self._clock()
        month = month_of(now)
        active = find_leases(self._store, "WHERE status = 'active' ORDER BY agent_did, id")
        spent = {
            agent: usage.is_spent(
                usage.budget_hours(self._store, agent), usage.awake_ms(self._store, agent, month, now_ms=now)
            )
            for agent in {lease.agent_did for lease in active}
        }
        return [lease for lease in active if spent[lease.agent_did]]

    def awake_ms(self, agent_did: str, month: str | None = None) -> int:
        """Give an agent's awake time in a month (YYYY-MM, UTC; default: this one) over all its leases."""
        now = self._clock()
        return usage.awake_ms(
            self._store, agent_did, parse_month(month) if month else month_of(now), now_ms=now
        )

    def budget(self, agent_did: str) -> float | None:
        """Give an agent's awake hours per month, its own or the default; None is unlimited."""
        return usage.budget_hours(self._store, agent_did)

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

    def list(self, status: LeaseStatus | str | None = None, environment_id: str | None = None) -> Leases:
        """Give all leases, or those with a status or in an environment, by the time they were leased."""
        return find_leases(
            self._store,
            "WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR environment_id = ?2)"
            " ORDER BY leased_at, id",
            *(None if status is None else LeaseStatus(status), environment_id),
        )
