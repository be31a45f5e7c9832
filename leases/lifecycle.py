"""How a lease begins, naps, ends and is buried: the rows of each step, inside the caller's transaction."""

import json
from dataclasses import replace
from typing import Final

from leases import budgets, history, shares, usage
from leases.errors import LeaseEnding
from leases.history import Happening
from leases.lease import Lease, LeaseStatus, check_key, lease_id_of
from leases.rows import find_lease, get_lease
from leases.store import Store
from leases.terms import Terms
from leases.transitions import Cause, Why

_CREATE: Final = """
    INSERT INTO leases (id, agent_did, environment_id, environment_type, authority_did, tier, image,
        leased_at, last_activity, expires_at, max_expires_at, ttl_ms, sleep_after_ms, expiry_conditions,
        status, epoch, sandbox_id)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11, ?12, ?13, 'active', ?14, ?15)
    ON CONFLICT (id) DO UPDATE SET environment_type = excluded.environment_type,
        authority_did = excluded.authority_did, tier = excluded.tier, image = excluded.image,
        leased_at = excluded.leased_at, last_activity = excluded.last_activity,
        expires_at = excluded.expires_at, max_expires_at = excluded.max_expires_at,
        ttl_ms = excluded.ttl_ms, sleep_after_ms = excluded.sleep_after_ms,
        expiry_conditions = excluded.expiry_conditions, status = 'active', epoch = excluded.epoch,
        sandbox_id = excluded.sandbox_id, node_id = NULL, ended_at = NULL, ended_by = NULL
"""
_RENEW: Final = """
    UPDATE leases SET last_activity = max(last_activity, ?1),
        expires_at = max(expires_at, min(?1 + ttl_ms, coalesce(max_expires_at, ?1 + ttl_ms))),
        last_turn = CASE WHEN ?2 IS NULL THEN last_turn ELSE max(coalesce(last_turn, 0), ?2) END
    WHERE id = ?3 AND epoch = ?4 AND status IN ('active', 'sleeping')
"""


def happen(store: Store, lease: Lease, what: Happening, *, now_ms: int) -> int:
    """Write what happens to a lease and give the time it is written under. Raises: InvalidTransition."""
    at = history.last_moment(store, lease.id, now_ms)
    history.append(store, lease.id, lease.status, what, at=at)
    return at


def create(
    store: Store, agent_did: str, environment_id: str, terms: Terms, *, sandbox_id: str, now_ms: int
) -> Lease:
    """Begin the pair's first lease, or its next epoch in the same row; `last_turn` stays: turns go on.

    Raises: InvalidTransition: the pair's lease is live or not yet destroyed.
    """
    lease_id = lease_id_of(agent_did, environment_id)
    last = find_lease(store, lease_id)
    epoch = 1 if last is None else last.epoch + 1
    at = history.last_moment(store, lease_id, now_ms)
    check_key("sandbox_id", sandbox_id)
    store.run(
        _CREATE,
        *(lease_id, agent_did, environment_id, terms.environment_type, terms.authority_did),
        *(terms.tier, terms.image, at, terms.expires_at(at), terms.max_expires_at(at), terms.ttl_ms),
        *(terms.sleep_after_ms, json.dumps(terms.expiry_conditions), epoch, sandbox_id),
    )
    what = Happening(cause=Cause.ACQUIRED, epoch=epoch, sandbox_id=sandbox_id, detail=terms.as_detail())
    history.append(store, lease_id, None if last is None else last.status, what, at=at)
    lease = get_lease(store, lease_id)
    _wakes(store, lease, at=at)
    return lease


def clear_way(store: Store, lease: Lease, *, now_ms: int) -> None:
    """Bury an ended lease of which nothing can be left, so that the pair can have a new one.

    Raises: LeaseEnding: a sandbox of it is still on the books.
    """
    placed = store.rows("SELECT * FROM sandboxes WHERE lease_id = ? AND epoch = ?", lease.id, lease.epoch)
    for row in placed:
        if row["state"] != "deleted":
            raise LeaseEnding(lease.id, lease.epoch, row["sandbox_id"])
    bury(store, lease, Cause.TIER_EMPTY if placed else Cause.NEVER_PLACED, now_ms=now_ms)


def renew(store: Store, lease_id: str, epoch: int, *, last_turn: int | None, now_ms: int) -> bool:
    """Slide the expiry of a live lease of this epoch. Returns: False if there is none."""
    return store.run(_RENEW, now_ms, last_turn, lease_id, epoch) > 0


def put_to_sleep(store: Store, lease: Lease, why: Why | None, *, now_ms: int) -> None:
    """Stop the awake time of an active lease: its sandbox sleeps, or was there and was found dead."""
    is_lost = why is Why.LOST and lease.node_id is not None
    what = _because(Cause.SANDBOX_LOST if is_lost else Cause.SLEPT, lease, why)
    if is_lost:
        what = replace(what, sandbox_id=lease.sandbox_id, node_id=lease.node_id)
    at = happen(store, lease, what, now_ms=now_ms)
    usage.end(store, lease.id, at=at)
    store.run("UPDATE leases SET status = ? WHERE id = ?", LeaseStatus.SLEEPING, lease.id)


def wake_up(store: Store, lease: Lease, why: Why | None, *, now_ms: int) -> None:
    """Start the awake time of a sleeping lease again."""
    at = happen(store, lease, _because(Cause.WOKEN, lease, why), now_ms=now_ms)
    _wakes(store, lease, at=at)
    store.run("UPDATE leases SET status = ? WHERE id = ?", LeaseStatus.ACTIVE, lease.id)


def _because(cause: Cause, lease: Lease, why: Why | None) -> Happening:
    return Happening(cause=cause, epoch=lease.epoch, detail={} if why is None else {"why": why})


def _wakes(store: Store, lease: Lease, *, at: int) -> None:
    usage.begin(store, lease, at=at)
    budgets.look_again(store, lease.agent_did, at=at)


def end(store: Store, lease: Lease, what: Happening, *, now_ms: int) -> None:
    """End a live lease; `what.condition` is the word it is remembered to have ended by."""
    at = happen(store, lease, what, now_ms=now_ms)
    usage.end(store, lease.id, at=at)
    store.run(
        "UPDATE leases SET status = ?, ended_at = ?, ended_by = ? WHERE id = ?",
        *(LeaseStatus.EXPIRED, at, what.condition, lease.id),
    )
    shares.pass_on(store, get_lease(store, lease.id), at=at)


def bury(store: Store, lease: Lease, cause: Cause, *, now_ms: int) -> None:
    """Close the books on an ended lease: nothing of its sandbox is left."""
    at = happen(store, lease, Happening(cause=cause, epoch=lease.epoch), now_ms=now_ms)
    store.run("UPDATE leases SET status = ? WHERE id = ?", LeaseStatus.DESTROYED, lease.id)
    store.run(
        "UPDATE sandboxes SET state = 'deleted', changed_at = ? WHERE lease_id = ? AND state <> 'deleted'",
        *(at, lease.id),
    )
