"""Nothing that is asked often reads what is not asked for: by SQLite's own account of its plans."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from leases import Cause, Ledger, LedgerReader, SandboxState

ALICE, GM = "did:plc:alice", "did:plc:gm"
LEASE = f"{ALICE}::catan-7"
# tables that stay small, and partial indexes that hold only what is asked for
SMALL = {"lease_counts", "budgets", "counters", "outbox USING INDEX outbox_waiting"}

CALLS: dict[str, Callable[[Ledger], object]] = {
    "acquire": lambda ledger: ledger.acquire("did:plc:bob", "catan-7", "catan", authority_did=GM),
    "acquire-again": lambda ledger: ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM),
    "place": lambda ledger: ledger.place(LEASE, 1, sandbox_id="box", node_id="node"),
    "sandbox-state": lambda ledger: ledger.sandbox_state("box", SandboxState.RUNNING, epoch=1),
    "renew": lambda ledger: ledger.renew(LEASE, 1, last_turn=3, cursor=("agent", 7)),
    "sleep": lambda ledger: ledger.sleep(LEASE, 1),
    "check-wake": lambda ledger: ledger.check_wake(LEASE, 1),
    "wake": lambda ledger: ledger.wake(LEASE, 1),
    "sweep-ttl": lambda ledger: ledger.expired(),
    "sweep-idle": lambda ledger: ledger.idle(),
    "sweep-budgets": lambda ledger: ledger.sweep_budgets(),
    "held-by": lambda ledger: ledger.held_by(ALICE),
    "lease-of": lambda ledger: ledger.lease_of("box"),
    "awake-ms": lambda ledger: ledger.awake_ms(ALICE),
    "counts": lambda ledger: ledger.counts(),
    "page": lambda ledger: ledger.list(limit=10),
    "next-page": lambda ledger: ledger.list(limit=10, after=LEASE),
    "page-of-a-status": lambda ledger: ledger.list("active", limit=10, after=LEASE),
    "page-of-an-environment": lambda ledger: ledger.list(environment_id="catan-7", limit=10),
    "unpublished": lambda ledger: ledger.unpublished(),
    "history": lambda ledger: ledger.history(LEASE),
    "condition": lambda ledger: ledger.expire_by_condition("catan-7", "game.finished", author_did=GM),
    "expire": lambda ledger: ledger.expire(LEASE, Cause.TTL),
    "pending-destroy": lambda ledger: ledger.pending_destroy(),
    "destroyed": lambda ledger: ledger.destroyed(LEASE),
}


@pytest.fixture
def traced(path: Path) -> tuple[Ledger, list[str]]:
    """A ledger with a lease, and every statement that it has run."""
    statements: list[str] = []
    ledger = Ledger(path, tracer=statements.append)
    ledger.set_budget(ALICE, 5)
    ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM)
    return ledger, statements


def test_no_call_that_is_made_often_reads_a_whole_table(traced: tuple[Ledger, list[str]]) -> None:
    ledger, statements = traced
    scans: dict[str, list[str]] = {}
    with ledger:
        for name, call in CALLS.items():
            statements.clear()
            call(ledger)
            found = [plan for statement in list(statements) for plan in full_scans(ledger, statement)]
            if found:
                scans[name] = found
    assert scans == {}


@pytest.mark.parametrize(
    ("sweep", "index"),
    [("expired", "leases_due"), ("idle", "leases_idle"), ("sweep_budgets", "budget_checks_due")],
)
def test_a_sweep_reads_what_is_due_and_not_all_that_lives(
    traced: tuple[Ledger, list[str]], sweep: str, index: str
) -> None:
    ledger, statements = traced
    with ledger:
        statements.clear()
        getattr(ledger, sweep)()
        plan, *_ = ledger._store.rows(f"EXPLAIN QUERY PLAN {statements[0]}")
    assert re.search(rf"USING (COVERING )?INDEX {index} \(.+<\?\)", plan["detail"])


def full_scans(ledger: LedgerReader, statement: str) -> list[str]:
    """The steps of a statement's plan that go through all of a table or index."""
    if not re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)", statement):
        return []
    steps = [row["detail"] for row in ledger._store.rows(f"EXPLAIN QUERY PLAN {statement}")]
    scans = [step for step in steps if step.startswith("SCAN") and "CONSTANT ROW" not in step]
    return [step for step in scans if not is_bounded(step, statement)]


def is_bounded(step: str, statement: str) -> bool:
    what = step.removeprefix("SCAN ")
    if any(what.startswith(small) for small in SMALL):
        return True
    # in the order of an index until LIMIT
    return what == "leases USING INDEX leases_leased_at" and "LIMIT" in statement


def test_a_full_scan_would_be_seen(traced: tuple[Ledger, list[str]]) -> None:
    ledger, _ = traced
    with ledger:
        assert full_scans(ledger, "SELECT * FROM leases WHERE last_turn = 3") == ["SCAN leases"]
