"""What must hold of every ledger at every moment; each check gives one sentence per violation."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from leases import history
from leases.errors import InvariantBroken
from leases.history import LeaseEvent
from leases.lease import LeaseStatus
from leases.store import Store
from leases.transitions import TRANSITIONS, Cause


def check(store: Store) -> None:
    """Raises: InvariantBroken: with every violation in words."""
    with store.atomic():
        violations = [sentence for rule in RULES for sentence in rule(store)]
    if violations:
        raise InvariantBroken(violations)


def file_is_whole(store: Store) -> Iterator[str]:
    """SQLite finds nothing wrong, and every reference leads somewhere."""
    yield from (f"integrity: {row[0]}" for row in store.rows("PRAGMA integrity_check(10)") if row[0] != "ok")
    yield from (
        f"{row[0]} row {row[1]} refers to no {row[2]}" for row in store.rows("PRAGMA foreign_key_check")
    )


def keys_are_canonical(store: Store) -> Iterator[str]:
    """A lease's id is its pair, and a pair has one row."""
    for row in store.rows("SELECT id FROM leases WHERE id <> agent_did || '::' || environment_id"):
        yield f"{row['id']} is not the key of its pair"
    for row in store.rows(
        "SELECT agent_did FROM leases GROUP BY agent_did, environment_id HAVING count(*) > 1"
    ):
        yield f"{row['agent_did']} has two rows for one environment"


def histories_add_up(store: Store) -> Iterator[str]:
    """The history leads, by the table and without a gap, to the status and epoch that the row has."""
    for row in store.rows("SELECT * FROM leases"):
        events = history.read(store, row["id"])
        if not events:
            yield f"{row['id']} has no history"
            continue
        yield from (f"{row['id']}: {fault}" for fault in _chain_faults(events))
        if (events[-1].to_status, events[-1].epoch) != (row["status"], row["epoch"]):
            yield f"{row['id']} is {row['status']} at epoch {row['epoch']}, its history says {events[-1]}"


def _chain_faults(events: list[LeaseEvent]) -> Iterator[str]:
    if (events[0].from_status, events[0].cause, events[0].epoch) != (None, Cause.ACQUIRED, 1):
        yield f"history begins with {events[0]}"
    for event in events:
        if TRANSITIONS.get((event.from_status, event.cause)) is not event.to_status:
            yield f"no rule allows {event}"
    for before, after in pairwise(events):
        if after.seq != before.seq + 1 or after.from_status is not before.to_status or after.at < before.at:
            yield f"{after} does not follow {before}"
        if after.epoch != before.epoch + (after.cause is Cause.ACQUIRED):
            yield f"epoch {after.epoch} follows {before.epoch} by {after.cause}"


def awake_time_adds_up(store: Store) -> Iterator[str]:
    """The usage table holds exactly the intervals that the history says the lease was active."""
    for row in store.rows("SELECT id FROM leases"):
        written = [
            (used["epoch"], used["started_at"], used["ended_at"])
            for used in store.rows(
                "SELECT * FROM usage WHERE lease_id = ? ORDER BY started_at, coalesce(ended_at, 9e18), rowid",
                row["id"],
            )
        ]
        told = sorted(_awake(history.read(store, row["id"])), key=lambda one: (one[1], one[2] or 2**63))
        if sorted(written, key=lambda one: (one[1], one[2] or 2**63)) != told:
            yield f"{row['id']} was awake {told}, usage says {written}"
        for before, after in pairwise(written):
            if before[2] is None or after[1] < before[2]:
                yield f"{row['id']}: awake intervals {before} and {after} overlap"


def _awake(events: list[LeaseEvent]) -> Iterator[tuple[int, int, int | None]]:
    start: int | None = None
    for event in events:
        is_active = event.to_status is LeaseStatus.ACTIVE
        if is_active and start is None:
            start = event.at
        elif not is_active and start is not None:
            yield event.epoch, start, event.at
            start = None
    if start is not None:
        yield events[-1].epoch, start, None


def nothing_is_lost(store: Store) -> Iterator[str]:
    """Acquired = live + expired + destroyed, counted in epochs."""
    acquired = _count(store, "SELECT count(*) FROM lease_events WHERE cause = 'acquired'")
    gone = _count(store, "SELECT count(*) FROM lease_events WHERE cause IN ('tier_empty', 'never_placed')")
    standing = _count(store, "SELECT count(*) FROM leases WHERE status <> 'destroyed'")
    epochs = _count(store, "SELECT coalesce(sum(epoch), 0) FROM leases")
    if not acquired == standing + gone == epochs:
        yield f"{acquired} acquired, {standing} live or expired, {gone} destroyed, {epochs} epochs"


def the_gone_is_gone(store: Store) -> Iterator[str]:
    """No sandbox of a destroyed lease or of an older epoch is still on the books."""
    rows = store.rows(
        "SELECT s.sandbox_id, s.state FROM sandboxes s JOIN leases l ON l.id = s.lease_id"
        " WHERE s.state <> 'deleted' AND (l.status = 'destroyed' OR s.epoch <> l.epoch)"
    )
    yield from (f"sandbox {row['sandbox_id']} is {row['state']}, its lease is gone" for row in rows)


def the_outbox_is_full(store: Store) -> Iterator[str]:
    """Every beginning and every ending is in the outbox once, nothing else is."""
    told = _count(
        store,
        "SELECT count(*) FROM lease_events WHERE cause = 'acquired'"
        " OR (to_status = 'expired' AND from_status <> 'expired')",
    )
    held = _count(store, "SELECT count(*) FROM outbox")
    if told != held:
        yield f"{told} beginnings and endings, {held} in the outbox"


def _count(store: Store, sql: str) -> int:
    row = store.row(sql)
    return int(row[0]) if row else 0


RULES: Final[tuple[Callable[[Store], Iterator[str]], ...]] = (
    file_is_whole,
    keys_are_canonical,
    histories_add_up,
    awake_time_adds_up,
    nothing_is_lost,
    the_gone_is_gone,
    the_outbox_is_full,
)
