"""Acquire: idempotent, fenced, and only for what can be a lease."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leases import (
    Cause,
    FieldInvalid,
    Lease,
    LeaseEnding,
    LeaseStatus,
    Ledger,
    SandboxState,
    UnknownLease,
    lease_id_of,
)

ALICE, GM = "did:plc:alice", "did:plc:gm"
COLUMNS = [
    *("id", "agent_did", "environment_id", "environment_type", "authority_did", "tier", "image"),
    *("leased_at", "last_activity", "expires_at", "max_expires_at", "ttl_ms", "sleep_after_ms"),
    *("expiry_conditions", "status", "epoch", "sandbox_id", "node_id", "last_turn", "ended_at", "ended_by"),
]


def test_a_fresh_ledger_has_every_column_and_index(ledger: Ledger, path: Path) -> None:
    file = sqlite3.connect(path)
    assert [row[1] for row in file.execute("PRAGMA table_info(leases)")] == COLUMNS
    indexed = {
        tuple(row[2] for row in file.execute(f"PRAGMA index_info({name})"))
        for _, name, *_ in file.execute("PRAGMA index_list(leases)").fetchall()
    }
    assert {("agent_did", "environment_id"), ("environment_id",), ("expires_at", "id")} <= indexed
    assert {("status", "leased_at", "id"), ("leased_at", "id")} <= indexed
    file.close()


def test_the_schema_refuses_a_second_row_for_a_pair(join: Callable[..., Lease], path: Path) -> None:
    join()
    file = sqlite3.connect(path)
    columns = ", ".join(COLUMNS[1:])
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        file.execute(f"INSERT INTO leases (id, {columns}) SELECT 'other', {columns} FROM leases")
    file.close()


def test_the_first_acquire_creates_and_the_second_gives_the_same(ledger: Ledger, clock: list[int]) -> None:
    first = ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM, ttl_ms=1000)
    clock[0] += 500
    second = ledger.acquire(ALICE, "catan-7", "rpg", authority_did="did:plc:other", ttl_ms=5, tier="docker")
    assert (first.is_new, second.is_new) == (True, False)
    assert second.lease == first.lease
    assert len(ledger.history(first.lease.id)) == 1


def test_a_new_lease_says_what_was_asked_for(ledger: Ledger, clock: list[int]) -> None:
    lease = ledger.acquire(
        ALICE,
        "rpg_00abc",
        "rpg",
        authority_did=GM,
        ttl_ms=60_000,
        max_ttl_ms=90_000,
        sleep_after_ms=5_000,
        tier="docker",
        image="skylease/rpg:1",
    ).lease
    assert lease.id == "did:plc:alice::rpg_00abc"
    assert (lease.status, lease.epoch, lease.is_live) == (LeaseStatus.ACTIVE, 1, True)
    assert (lease.leased_at, lease.last_activity) == (clock[0], clock[0])
    assert (lease.expires_at, lease.max_expires_at) == (clock[0] + 60_000, clock[0] + 90_000)
    assert (lease.ttl_ms, lease.sleep_after_ms) == (60_000, 5_000)
    assert lease.expiry_conditions == ("agent.death", "game.finished", "campaign.ended")
    assert (lease.tier, lease.image, lease.authority_did) == ("docker", "skylease/rpg:1", GM)
    assert (lease.node_id, lease.last_turn, lease.ended_at, lease.ended_by) == (None, None, None, None)
    assert ledger.get(lease.id) == lease


def test_the_defaults_are_a_day_and_five_minutes(join: Callable[..., Lease]) -> None:
    lease = join()
    assert (lease.ttl_ms, lease.sleep_after_ms, lease.max_expires_at) == (86_400_000, 300_000, None)
    assert (lease.tier, lease.image) == ("process", None)


def test_a_cap_below_the_ttl_caps_the_first_expiry_too(join: Callable[..., Lease], clock: list[int]) -> None:
    assert join(ttl_ms=1000, max_ttl_ms=400).expires_at == clock[0] + 400


def test_a_sleeping_lease_comes_back_unchanged(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    ledger.sleep(lease.id, lease.epoch)
    again = ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM)
    assert (again.is_new, again.lease.status, again.lease.epoch) == (False, LeaseStatus.SLEEPING, 1)


def test_two_environments_of_one_type_are_two_leases(join: Callable[..., Lease]) -> None:
    first, second = join("alice", "catan-7"), join("alice", "catan-8")
    assert first.id != second.id
    assert first.sandbox_id != second.sandbox_id


def test_long_dids_that_differ_at_the_end_are_two_leases(join: Callable[..., Lease]) -> None:
    assert join("a" * 200 + "1").sandbox_id != join("a" * 200 + "2").sandbox_id


def test_the_sandbox_is_named_once_by_who_knows_how(path: Path, clock: list[int]) -> None:
    name = "alice-catan-7-0123456789abcdef"
    with Ledger(path, clock=lambda: clock[0], name_sandbox=lambda agent, environment: name) as ledger:
        assert ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM).lease.sandbox_id == name
    with Ledger(path, clock=lambda: clock[0], name_sandbox=lambda agent, environment: "another") as ledger:
        assert ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM).lease.sandbox_id == name


def test_after_destroyed_the_same_row_gets_the_next_epoch(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    ledger.renew(lease.id, 1, last_turn=9)
    ledger.expire(lease.id, Cause.RELEASED)
    ledger.destroyed(lease.id)
    clock[0] += 1000
    again = join(tier="docker", ttl_ms=7, environment_type="rpg", expiry_conditions=["x"])
    assert (again.id, again.epoch, again.status, again.tier) == (lease.id, 2, LeaseStatus.ACTIVE, "docker")
    assert (again.leased_at, again.expires_at, again.expiry_conditions) == (clock[0], clock[0] + 7, ("x",))
    assert (again.ended_at, again.ended_by, again.node_id, again.last_turn) == (None, None, None, 9)
    assert [event.epoch for event in ledger.history(lease.id)] == [1, 1, 1, 1, 2]
    assert len(ledger.list()) == 1


def test_an_expired_lease_that_was_never_placed_does_not_stand_in_the_way(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    ledger.expire(lease.id, Cause.TTL)
    assert join().epoch == 2
    causes = [event.cause for event in ledger.history(lease.id)]
    assert causes == [Cause.ACQUIRED, Cause.TTL, Cause.NEVER_PLACED, Cause.ACQUIRED]


def test_an_expired_lease_with_a_sandbox_must_be_destroyed_first(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    ledger.expire(lease.id, Cause.TTL)
    before = ledger.digest()
    with pytest.raises(LeaseEnding, match="box"):
        join()
    assert ledger.digest() == before
    ledger.sandbox_state("box", SandboxState.DELETED)
    assert join().epoch == 2
    assert ledger.history(lease.id)[-2].cause is Cause.TIER_EMPTY


@pytest.mark.parametrize(
    ("field", "terms"),
    [
        ("agent_did", {"agent": "alice::"}),
        ("agent_did", {"agent": ""}),
        ("agent_did", {"agent": "a" * 3000}),
        ("agent_did", {"agent": "alice\n"}),
        ("environment_id", {"environment_id": ""}),
        ("environment_id", {"environment_id": "a::b"}),
        ("environment_id", {"environment_id": ":b"}),
        ("environment_id", {"environment_id": "a b"}),
        ("environment_id", {"environment_id": "a" * 513}),
        ("environment_type", {"environment_type": ""}),
        ("authority_did", {"authority_did": "gm"}),
        ("ttl_ms", {"ttl_ms": 0}),
        ("ttl_ms", {"ttl_ms": 2**63}),
        ("ttl_ms", {"ttl_ms": 1.5}),
        ("ttl_ms", {"ttl_ms": True}),
        ("max_ttl_ms", {"max_ttl_ms": -1}),
        ("sleep_after_ms", {"sleep_after_ms": 0}),
        ("expiry_conditions", {"expiry_conditions": "game.finished"}),
        ("expiry_conditions", {"expiry_conditions": [f"c{n}" for n in range(40)]}),
        ("condition", {"expiry_conditions": ["two words"]}),
        ("tier", {"tier": ""}),
        ("image", {"image": "../" * 200}),
    ],
)
def test_what_can_be_no_lease_is_refused_and_nothing_written(
    ledger: Ledger, join: Callable[..., Lease], field: str, terms: dict[str, Any]
) -> None:
    with pytest.raises(FieldInvalid) as refused:
        join(**terms)
    assert refused.value.field == field
    assert ledger.list() == []


def test_no_two_pairs_share_a_key() -> None:
    with pytest.raises(FieldInvalid):
        lease_id_of("did:x:a", "b::c")
    with pytest.raises(FieldInvalid):
        lease_id_of("did:x:a:", "b")
    assert lease_id_of("did:x:a::b", "c") == "did:x:a::b::c"


def test_an_unknown_lease_is_said_to_be_unknown(ledger: Ledger) -> None:
    for call in (
        lambda: ledger.get("x"),
        lambda: ledger.history("x"),
        lambda: ledger.renew("x", 1),
        lambda: ledger.place("x", 1, sandbox_id="s", node_id="n"),
        lambda: ledger.sleep("x", 1),
        lambda: ledger.wake("x", 1),
        lambda: ledger.expire("x", Cause.TTL),
        lambda: ledger.destroyed("x"),
    ):
        with pytest.raises(UnknownLease, match="there is no lease x"):
            call()


def test_leases_are_listed_by_status_and_environment(ledger: Ledger, join: Callable[..., Lease]) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol", "catan-8")
    ledger.sleep(bob.id, 1)
    assert [lease.id for lease in ledger.list()] == sorted([alice.id, bob.id, carol.id])
    assert [lease.id for lease in ledger.list(status="sleeping")] == [bob.id]
    assert [lease.id for lease in ledger.list(environment_id="catan-8")] == [carol.id]
    assert ledger.list(LeaseStatus.ACTIVE, "catan-7") == [alice]
    with pytest.raises(ValueError, match="asleep"):
        ledger.list(status="asleep")
