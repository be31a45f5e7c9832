"""The append-only history of every lease, and the outbox of what is still to be published."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leases.errors import InvalidTransition
from leases.lease import LeaseId, LeaseStatus, SandboxState
from leases.store import Store
from leases.transitions import ENDINGS, Cause, next_status


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent:
    """One thing that happened to a lease; `id` is for `mark_published`, `seq` counts in its lease from 1."""

    id: int
    lease_id: LeaseId
    agent_did: str
    environment_id: str
    epoch: int
    seq: int
    at: int  # epoch ms, never before the event that precedes it
    cause: Cause
    from_status: LeaseStatus | None  # None: the pair never had a lease before
    to_status: LeaseStatus
    sandbox_id: str | None
    sandbox_state: SandboxState | None
    node_id: str | None
    condition: str | None  # what ended it, in one word: "game.finished", "ttl", or somebody's own words
    author_did: str | None  # who signed the ending
    event: str | None  # firehose reference of the ending
    detail: Mapping[str, Any]  # an acquire's parameters
    published_uri: str | None

    @property
    def is_acquired(self) -> bool:
        """Whether a lease began here."""
        return self.cause is Cause.ACQUIRED

    @property
    def is_ended(self) -> bool:
        """Whether a lease ended here."""
        return self.cause in ENDINGS

    def __str__(self) -> str:
        move = f"{self.from_status or '-'} -> {self.to_status}"
        return f"{self.at} {self.cause} {move} (epoch {self.epoch})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """What is about to be written into a lease's history."""

    cause: Cause
    epoch: int
    sandbox_id: str | None = None
    sandbox_state: SandboxState | None = None
    node_id: str | None = None
    condition: str | None = None
    author_did: str | None = None
    event: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


_SELECT: Final = """
    SELECT e.*, l.agent_did, l.environment_id, o.uri AS published_uri
    FROM lease_events e JOIN leases l ON l.id = e.lease_id LEFT JOIN outbox o ON o.event_id = e.id
"""


def last_moment(store: Store, lease_id: str, now_ms: int) -> int:
    """Give the time for a lease's next event: now, or the time of its last event if the clock went back."""
    last = store.row("SELECT at FROM lease_events WHERE lease_id = ? ORDER BY seq DESC LIMIT 1", lease_id)
    return now_ms if last is None else max(now_ms, last["at"])


def append(
    store: Store, lease_id: LeaseId, status: LeaseStatus | None, what: Happening, *, at: int
) -> LeaseStatus:
    """Write what happens to a lease in `status` and give the status it leads to.

    Raises: InvalidTransition: the table has no such row; carries the history.
    """
    to = next_status(status, what.cause)
    if to is None:
        raise InvalidTransition(lease_id, status, what.cause, [str(event) for event in read(store, lease_id)])
    event_id = store.insert(
        """
        INSERT INTO lease_events (lease_id, seq, epoch, at, cause, from_status, to_status,
            sandbox_id, sandbox_state, node_id, condition, author_did, event, detail)
        VALUES (?1, (SELECT coalesce(max(seq), 0) + 1 FROM lease_events WHERE lease_id = ?1),
            ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
        """,
        *(lease_id, what.epoch, at, what.cause, status, to),
        *(what.sandbox_id, what.sandbox_state, what.node_id, what.condition, what.author_did, what.event),
        json.dumps(what.detail, sort_keys=True) if what.detail else None,
    )
    if what.cause is Cause.ACQUIRED or what.cause in ENDINGS:
        store.run("INSERT INTO outbox (event_id) VALUES (?)", event_id)
    return to


def read(store: Store, lease_id: str) -> list[LeaseEvent]:
    """Give the whole history of a lease, oldest first; empty if there is no such lease."""
    return [_event(row) for row in store.rows(f"{_SELECT} WHERE e.lease_id = ? ORDER BY e.seq", lease_id)]


def waiting(store: Store, limit: int) -> list[LeaseEvent]:
    """Give the oldest beginnings and endings that have not been published."""
    oldest = "SELECT event_id FROM outbox WHERE uri IS NULL ORDER BY event_id LIMIT ?"
    return [_event(row) for row in store.rows(f"{_SELECT} WHERE e.id IN ({oldest}) ORDER BY e.id", limit)]


def publish(store: Store, event_id: int, uri: str, *, at: int) -> bool:
    """Note where an event was published. Returns: False if it was already, or is not one to publish."""
    return (
        store.run(
            "UPDATE outbox SET uri = ?, published_at = ? WHERE event_id = ? AND uri IS NULL",
            uri,
            at,
            event_id,
        )
        > 0
    )


def _event(row: sqlite3.Row) -> LeaseEvent:
    return LeaseEvent(
        id=row["id"],
        lease_id=LeaseId(row["lease_id"]),
        agent_did=row["agent_did"],
        environment_id=row["environment_id"],
        epoch=row["epoch"],
        seq=row["seq"],
        at=row["at"],
        cause=Cause(row["cause"]),
        from_status=LeaseStatus(row["from_status"]) if row["from_status"] else None,
        to_status=LeaseStatus(row["to_status"]),
        sandbox_id=row["sandbox_id"],
        sandbox_state=SandboxState(row["sandbox_state"]) if row["sandbox_state"] else None,
        node_id=row["node_id"],
        condition=row["condition"],
        author_did=row["author_did"],
        event=row["event"],
        detail=json.loads(row["detail"]) if row["detail"] else {},
        published_uri=row["published_uri"],
    )
