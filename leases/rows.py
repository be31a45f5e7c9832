"""From the ledger's rows to its frozen data."""

import json
import sqlite3

from leases.errors import UnknownLease
from leases.lease import Lease, LeaseId, LeaseStatus, Placement, SandboxState
from leases.store import Store, Value


def find_leases(store: Store, where: str, *values: Value) -> list[Lease]:
    """Give the leases that a WHERE clause of ours selects, in its order."""
    return [_lease_of(row) for row in store.rows(f"SELECT * FROM leases {where}", *values)]


def find_lease(store: Store, lease_id: str) -> Lease | None:
    """Give one lease; None: there is none."""
    row = store.row("SELECT * FROM leases WHERE id = ?", lease_id)
    return None if row is None else _lease_of(row)


def get_lease(store: Store, lease_id: str) -> Lease:
    """Give one lease. Raises: UnknownLease."""
    lease = find_lease(store, lease_id)
    if lease is None:
        raise UnknownLease(lease_id)
    return lease


def placement_of(row: sqlite3.Row) -> Placement:
    """Make a Placement of its row."""
    fields = dict(row)
    return Placement(**fields | {"lease_id": LeaseId(row["lease_id"]), "state": SandboxState(row["state"])})


def _lease_of(row: sqlite3.Row) -> Lease:
    fields = dict(row)
    fields["id"] = LeaseId(row["id"])
    fields["status"] = LeaseStatus(row["status"])
    fields["expiry_conditions"] = tuple(json.loads(row["expiry_conditions"]))
    return Lease(**fields)
