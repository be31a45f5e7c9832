"""Every invariant notices the damage that it is there for."""

import sqlite3
from pathlib import Path

import pytest

from leases import Cause, InvariantBroken, Ledger, LedgerReader

ALICE, GM = "did:plc:alice", "did:plc:gm"


@pytest.fixture
def played(path: Path) -> Path:
    """A ledger with one destroyed epoch, one live lease and one that is expired."""
    clock = [1_000]
    with Ledger(path, clock=lambda: clock[0]) as ledger:
        for agent in ("alice", "bob", "alice"):
            lease = ledger.acquire(f"did:plc:{agent}", "g", "catan", authority_did=GM).lease
            ledger.place(lease.id, lease.epoch, sandbox_id=agent, node_id="node")
            clock[0] += 10
            ledger.sleep(lease.id, lease.epoch)
            clock[0] += 10
            ledger.wake(lease.id, lease.epoch)
            if lease.epoch == 1:
                ledger.expire(lease.id, Cause.TTL)
            if agent == "alice" and lease.epoch == 1:
                ledger.destroyed(lease.id)
        ledger.check_invariants()
    return path


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param("UPDATE leases SET id = 'x' WHERE agent_did = 'did:plc:bob'", "not the key", id="key"),
        pytest.param(
            "UPDATE lease_events SET lease_id = 'x' WHERE id = 1", "refers to no leases", id="orphan"
        ),
        pytest.param(
            "DELETE FROM lease_events WHERE lease_id LIKE '%bob%'", "has no history", id="no-history"
        ),
        pytest.param("DELETE FROM lease_events WHERE seq = 3", "does not follow", id="a-gap"),
        pytest.param("UPDATE lease_events SET at = 0 WHERE seq = 5", "does not follow", id="time-goes-back"),
        pytest.param(
            "UPDATE lease_events SET cause = 'woken' WHERE seq = 3", "no rule allows", id="bad-cause"
        ),
        pytest.param("UPDATE lease_events SET epoch = 9 WHERE seq = 3", "epoch 9 follows 1", id="bad-epoch"),
        pytest.param("DELETE FROM lease_events WHERE seq = 1", "history begins with", id="no-beginning"),
        pytest.param(
            "UPDATE leases SET status = 'sleeping' WHERE status = 'active'",
            "its history says",
            id="bad-status",
        ),
        pytest.param("UPDATE leases SET epoch = 3 WHERE epoch = 2", "its history says", id="row-epoch"),
        pytest.param(
            "UPDATE usage SET ended_at = ended_at + 1 WHERE epoch = 2", "usage says", id="a-ms-more"
        ),
        pytest.param("UPDATE usage SET started_at = 1 WHERE epoch = 2", "overlap", id="overlap"),
        pytest.param(
            "UPDATE usage SET ended_at = 5000 WHERE ended_at IS NULL", "usage says", id="not-running"
        ),
        pytest.param("DELETE FROM usage WHERE epoch = 1", "usage says", id="lost-hours"),
        pytest.param("UPDATE leases SET epoch = epoch + 1", "epochs", id="conservation"),
        pytest.param(
            "UPDATE sandboxes SET state = 'warm' WHERE state = 'deleted'", "its lease is gone", id="zombie"
        ),
        pytest.param("DELETE FROM outbox WHERE event_id = 1", "in the outbox", id="lost-record"),
    ],
)
def test_damage_is_noticed(played: Path, damage: str, complaint: str) -> None:
    with sqlite3.connect(played) as file:
        file.execute("DROP TRIGGER lease_events_keep")
        file.execute("DROP TRIGGER lease_events_stay")
        assert file.execute(damage).rowcount > 0
    file.close()
    with LedgerReader(played) as reader, pytest.raises(InvariantBroken, match=complaint):
        reader.check_invariants()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("UPDATE shares SET host_epoch = 1", "which is gone"),
        ("UPDATE leases SET tier = 'docker' WHERE agent_did = 'did:plc:carol'", "billed more than once"),
    ],
    ids=["host-gone", "billed-twice"],
)
def test_damage_to_shares_is_noticed(played: Path, damage: str, complaint: str) -> None:
    with Ledger(played) as ledger:
        ledger.acquire("did:plc:carol", "h", "catan", authority_did=GM, share_with=(f"{ALICE}::g", 2))
        ledger.check_invariants()
    with sqlite3.connect(played) as file:
        assert file.execute(damage).rowcount > 0
    with LedgerReader(played) as reader, pytest.raises(InvariantBroken, match=complaint):
        reader.check_invariants()
