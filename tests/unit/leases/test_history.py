"""The history, what is published of it, accounts, cursors, counters and the digest."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from leases import Cause, FieldInvalid, Lease, Ledger, SandboxState

ALICE, GM = "did:plc:alice", "did:plc:gm"


def test_the_history_cannot_be_rewritten(ledger: Ledger, join: Callable[..., Lease], path: Path) -> None:
    join()
    file = sqlite3.connect(path, isolation_level=None)
    for sql in ("UPDATE lease_events SET at = 0", "DELETE FROM lease_events"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            file.execute(sql)
    file.close()


def test_an_acquire_keeps_its_terms(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join(ttl_ms=5)
    ledger.expire(lease.id, Cause.TTL)
    join(ttl_ms=6)
    kept = [event.detail for event in ledger.history(lease.id) if event.is_acquired]
    assert [detail["ttl_ms"] for detail in kept] == [5, 6]
    assert kept[0]["expiry_conditions"] == ["game.finished"]


def test_beginnings_and_endings_wait_to_be_published_in_order(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    alice, bob = join("alice"), join("bob")
    ledger.place(alice.id, 1, sandbox_id="box", node_id="node")
    ledger.sleep(bob.id, 1)
    ledger.expire_by_condition("catan-7", "game.finished", author_did=GM, event="at://x")
    ledger.sandbox_state("box", SandboxState.DELETED)
    ledger.destroyed(bob.id)
    waiting = ledger.unpublished()
    assert [(event.agent_did, event.is_acquired, event.is_ended) for event in waiting] == [
        ("did:plc:alice", True, False),
        ("did:plc:bob", True, False),
        ("did:plc:alice", False, True),
        ("did:plc:bob", False, True),
    ]
    assert (waiting[2].environment_id, waiting[2].condition, waiting[2].event) == (
        "catan-7",
        "game.finished",
        "at://x",
    )
    assert [event.id for event in ledger.unpublished(1)] == [waiting[0].id]


def test_what_was_published_does_not_wait_any_more(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    (event,) = ledger.unpublished()
    before = ledger.digest()
    assert ledger.mark_published(event.id, "at://did:plc:us/dev.skylease.lease.acquired/3k") is True
    assert ledger.mark_published(event.id, "at://another") is False
    assert ledger.mark_published(event.id + 100, "at://another") is False
    assert ledger.unpublished() == []
    assert ledger.history(lease.id)[0].published_uri == "at://did:plc:us/dev.skylease.lease.acquired/3k"
    assert ledger.digest() == before  # where it was published is no part of what happened


def test_cursors_never_move_back(ledger: Ledger) -> None:
    assert ledger.cursor("wss://relay") is None
    for seq in (5, 9, 7):
        ledger.save_cursor("wss://relay", seq)
    assert ledger.cursor("wss://relay") == 9
    ledger.forget_cursor("wss://relay")
    ledger.save_cursor("wss://relay", 2**62)
    assert ledger.cursor("wss://relay") == 2**62
    with pytest.raises(FieldInvalid):
        ledger.save_cursor("", 1)


def test_counters_add_up(ledger: Ledger) -> None:
    ledger.count("turn.stranger")
    ledger.count("turn.stranger", 4)
    ledger.count("bad", 0)
    assert ledger.counters() == {"bad": 0, "turn.stranger": 5}
    with pytest.raises(FieldInvalid):
        ledger.count("turn.stranger", -1)
    with pytest.raises(FieldInvalid):
        ledger.count("two words")


def test_accounts_keep_what_was_not_said(ledger: Ledger) -> None:
    ledger.upsert_account(ALICE, handle="alice.test", rev="3k1", seq=5)
    ledger.upsert_account(ALICE, active=False, status="suspended", seq=6)
    ledger.upsert_account(ALICE, rev="3k0", seq=7)
    (alice,) = ledger.accounts()
    assert (alice.handle, alice.active, alice.status, alice.rev, alice.seq) == (
        "alice.test",
        False,
        "suspended",
        "3k1",
        7,
    )
    assert ledger.upsert_account(ALICE, active=True, seq=6) is False
    assert ledger.upsert_account(ALICE, active=True, seq=8) is True
    (alice,) = ledger.accounts()
    assert (alice.active, alice.status) == (True, None)
    with pytest.raises(FieldInvalid):
        ledger.upsert_account("alice")


def test_an_account_keeps_no_more_of_a_stranger_than_it_must(ledger: Ledger) -> None:
    ledger.upsert_account(
        ALICE, handle="h" * 10**6, status="\ud800" + "s" * 10**6, rev="r" * 10**6, active=False
    )
    (alice,) = ledger.accounts()
    assert (alice.handle, alice.status, alice.rev) == ("h" * 253, "?" + "s" * 63, "r" * 13)
    with pytest.raises(FieldInvalid, match="seq"):
        ledger.upsert_account(ALICE, seq=2**63)


def play(path: Path, agents: list[str], *, ending: str = "game.finished", late: int = 0) -> str:
    clock = [1_000_000]
    with Ledger(path, clock=lambda: clock[0]) as ledger:
        for agent in agents:
            lease = ledger.acquire(f"did:plc:{agent}", "g", "rpg", authority_did=GM).lease
            ledger.place(lease.id, 1, sandbox_id=agent, node_id="node")
            ledger.upsert_account(f"did:plc:{agent}", seq=1)
        clock[0] += 500 + late
        ledger.expire_by_condition("g", ending, author_did=GM, event="at://e")
        ledger.save_cursor("tap", 9)
        return ledger.digest()


def test_equal_histories_have_equal_digests_however_leases_interleave(folder: Path) -> None:
    first = play(folder / "1", ["alice", "bob", "carol"])
    assert first == play(folder / "2", ["carol", "alice", "bob"])
    assert first == play(folder / "3", ["alice", "bob", "carol"])
    assert len(first) == 64


def test_different_histories_have_different_digests(folder: Path) -> None:
    digests = [
        play(folder / "1", ["alice", "bob"]),
        play(folder / "2", ["alice"]),
        play(folder / "3", ["alice", "bob"], ending="agent.death"),
        play(folder / "4", ["alice", "bob"], late=1),
        play(folder / "5", ["alice", "bob"], ending="unheard.of"),
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda ledger: ledger.renew("did:plc:alice::g", 1, last_turn=2), id="a-turn"),
        pytest.param(lambda ledger: ledger.sleep("did:plc:alice::g", 1), id="a-nap"),
        pytest.param(lambda ledger: ledger.count("x"), id="a-count"),
        pytest.param(lambda ledger: ledger.save_cursor("x", 1), id="a-cursor"),
        pytest.param(lambda ledger: ledger.upsert_account("did:plc:x"), id="an-account"),
    ],
)
def test_whatever_happens_changes_the_digest(ledger: Ledger, happens: Callable[[Ledger], object]) -> None:
    ledger.acquire(ALICE, "g", "catan", authority_did=GM)
    before = ledger.digest()
    assert ledger.digest() == before
    happens(ledger)
    assert ledger.digest() != before
