"""What must hold of every ledger at every moment; each check gives one sentence per violation."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from leases import budgets, history
from leases.errors import InvariantBroken
from leases.history import LeaseEvent
from leases.lease import LeaseStatus
from leases.months import months_of
from leases.store import Store
from leases.transitions import TRANSITIONS, Cause
from leases.usage import SHARED


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
        if _joined(sorted(written, key=lambda one: (one[1], one[2] or 2**63))) != _joined(told):
            yield f"{row['id']} was awake {told}, usage says {written}"
        for before, after in pairwise(written):
            if before[2] is None or after[1] < before[2]:
                yield f"{row['id']}: awake intervals {before} and {after} overlap"


def _joined(intervals: list[tuple[int, int, int | None]]) -> list[tuple[int, int, int | None]]:
    """Intervals of one epoch that follow each other without a gap, as one: their tier has changed."""
    joined: list[tuple[int, int, int | None]] = []
    for epoch, start, end in intervals:
        if joined and (joined[-1][0], joined[-1][2]) == (epoch, start):
            joined[-1] = (epoch, joined[-1][1], end)
        else:
            joined.append((epoch, start, end))
    return joined


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


def months_add_up(store: Store) -> Iterator[str]:
    """The months hold exactly the intervals that have ended."""
    told: Counter[tuple[int, str, str]] = Counter()
    for row in store.rows("SELECT * FROM usage WHERE ended_at IS NOT NULL"):
        for month, ms in months_of(row["started_at"], row["ended_at"]):
            told[month.start_ms, row["agent_did"], row["tier"]] += ms
    written = {
        (row["month_start"], row["agent_did"], row["tier"]): row["ms"]
        for row in store.rows("SELECT * FROM usage_months")
    }
    if written != told:
        yield f"the months hold {written}, the intervals come to {dict(told)}"


def statuses_are_counted(store: Store) -> Iterator[str]:
    """The counts are those of the leases."""
    for row in store.rows("SELECT status, n FROM lease_counts"):
        n = _count(store, f"SELECT count(*) FROM leases WHERE status = '{row['status']}'")
        if n != row["n"]:
            yield f"{n} leases are {row['status']}, {row['n']} are counted"


def budgets_are_watched(store: Store) -> Iterator[str]:
    """Whoever is awake and has a budget will be looked at."""
    for row in store.rows(
        "SELECT DISTINCT agent_did FROM usage WHERE ended_at IS NULL"
        " AND agent_did NOT IN (SELECT agent_did FROM budget_checks)"
    ):
        if budgets.budget_hours(store, row["agent_did"]) is not None:
            yield f"{row['agent_did']} is awake, and nobody watches its budget"


def guests_have_a_host(store: Store) -> Iterator[str]:
    """The sandbox that a live lease shares is still there, and has one lease that pays for it at most."""
    live = "l.status IN ('active', 'sleeping')"
    for row in store.rows(
        "SELECT s.lease_id, s.host_id FROM shares s JOIN leases l ON l.id = s.lease_id AND l.epoch = s.epoch"
        f" JOIN leases h ON h.id = s.host_id WHERE {live}"
        " AND (h.epoch <> s.host_epoch OR h.status = 'destroyed')"
    ):
        yield f"{row['lease_id']} is in the sandbox of {row['host_id']}, which is gone"
    for row in store.rows(
        "SELECT s.host_id, count(*) AS n, min(h.status) AS status"
        " FROM shares s JOIN leases l ON l.id = s.lease_id AND l.epoch = s.epoch"
        f" JOIN leases h ON h.id = s.host_id WHERE {live} AND l.tier <> '{SHARED}' GROUP BY s.host_id"
    ):
        if row["n"] > 1 or row["status"] in ("active", "sleeping"):
            yield f"the sandbox of {row['host_id']} is billed more than once"


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
    months_add_up,
    statuses_are_counted,
    budgets_are_watched,
    guests_have_a_host,
)
