"""One number for the whole ledger: equal histories have equal digests, however leases interleaved."""

import hashlib
import json
from typing import Final

from leases.store import Store

# table: (columns, order). No rowids, nothing of now; where a history was published is not part of it
_CANON: Final = {
    "leases": (
        "id, agent_did, environment_id, environment_type, authority_did, tier, image, leased_at,"
        " last_activity, expires_at, max_expires_at, ttl_ms, sleep_after_ms, expiry_conditions, status,"
        " epoch, sandbox_id, node_id, last_turn, ended_at, ended_by",
        "id",
    ),
    "lease_events": (
        "lease_id, seq, epoch, at, cause, from_status, to_status, sandbox_id, sandbox_state, node_id,"
        " condition, author_did, event, detail",
        "lease_id, seq",
    ),
    "usage": (
        "lease_id, epoch, agent_did, tier, started_at, ended_at",
        "lease_id, epoch, started_at, coalesce(ended_at, 9e18)",
    ),
    "accounts": ("did, handle, active, status, rev, seq", "did"),
    "cursors": ("name, seq", "name"),
    "counters": ("name, n", "name"),
}


def digest(store: Store) -> str:
    """Give the SHA-256 (hex) of the ledger's content in canonical order, one JSON line per row."""
    sha = hashlib.sha256()
    with store.atomic():  # one snapshot, even beside a writer
        for table, (columns, order) in _CANON.items():
            sha.update(f"{table}\n".encode())
            for row in store.rows(f"SELECT {columns} FROM {table} ORDER BY {order}"):
                sha.update(json.dumps(list(row), separators=(",", ":")).encode() + b"\n")
    return sha.hexdigest()
