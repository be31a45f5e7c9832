"""kill -9 between any two statements: afterwards the ledger is as before the call, or as after it."""

import os
import signal
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path

from leases import Cause, Ledger, SandboxState

ALICE, BOB, CAROL, GM = "did:plc:alice", "did:plc:bob", "did:plc:carol", "did:plc:gm"
LEASE = f"{ALICE}::catan-7"
Call = Callable[[Ledger], object]


def _together(ledger: Ledger) -> None:
    with ledger.atomic():
        ledger.expire_by_condition("catan-7", "game.finished", author_did=GM, event="at://e")
        ledger.save_cursor("tap", 5)


SCRIPT: tuple[Call, ...] = (
    lambda ledger: ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM),
    lambda ledger: ledger.acquire(BOB, "catan-7", "catan", authority_did=GM),
    lambda ledger: ledger.place(LEASE, 1, sandbox_id="box", node_id="node"),
    lambda ledger: ledger.sandbox_state("box", SandboxState.WARM),
    lambda ledger: ledger.acquire(CAROL, "side", "rpg", authority_did=GM, share_with=(LEASE, 1)),
    lambda ledger: ledger.renew(LEASE, 1, last_turn=1, cursor=("alice", 3)),
    lambda ledger: ledger.sleep(LEASE, 1),
    lambda ledger: ledger.wake(LEASE, 1),
    lambda ledger: ledger.upsert_account(ALICE, handle="alice.test", seq=4),
    lambda ledger: ledger.expire(f"{BOB}::catan-7", Cause.TTL),
    lambda ledger: ledger.acquire(BOB, "catan-7", "catan", authority_did=GM),
    _together,
    lambda ledger: ledger.expire(f"{CAROL}::side", Cause.OPERATOR),
    lambda ledger: ledger.destroyed(LEASE),
    lambda ledger: ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM),
)


class KilledAt:
    """A tracer that kills its process before the n-th statement."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, statement: str) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_at(n: int, work: Callable[[KilledAt], None]) -> bool:
    """Do the work in a process that is killed before its n-th statement. Returns: whether it got there."""
    child = os.fork()
    if child == 0:
        try:
            work(KilledAt(n))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _play(ledger: Ledger, clock: list[int]) -> list[str]:
    digests = [ledger.digest()]
    for call in SCRIPT:
        clock[0] += 1000
        call(ledger)
        digests.append(ledger.digest())
    return digests


def test_a_kill_between_any_two_statements_leaves_a_state_between_two_calls(folder: Path) -> None:
    clock = [1_000_000]
    with Ledger(folder / "whole.db", clock=lambda: clock[0]) as ledger:
        digests = _play(ledger, clock)
    assert len(set(digests)) == len(SCRIPT) + 1
    reached = set()
    for n in count():
        path = folder / f"{n}.db"
        Ledger(path).close()

        def work(tracer: KilledAt, path: Path = path) -> None:
            now = [1_000_000]
            ledger = Ledger(path, clock=lambda: now[0])
            ledger._store._connection.set_trace_callback(tracer)
            for call in SCRIPT:
                now[0] += 1000
                call(ledger)

        was_killed = _die_at(n, work)
        with Ledger(path, lock_wait_s=0) as survivor:  # the dead one holds no lock
            survivor.check_invariants()
            reached.add(digests.index(survivor.digest()))
        if not was_killed:
            break
    assert n > 100  # statements in the script, so that the test cannot go blind
    assert reached == set(range(len(digests)))


def test_a_migration_killed_half_way_has_not_happened(folder: Path) -> None:
    outcomes = set()
    for n in count():
        path = folder / f"{n}.db"

        def work(tracer: KilledAt, path: Path = path) -> None:
            Ledger(path, tracer=tracer)

        was_killed = _die_at(n, work)
        if path.exists():
            file = sqlite3.connect(path)
            tables = {row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            names = (
                [row[0] for row in file.execute("SELECT name FROM _sqlite_migrations")]
                if "_sqlite_migrations" in tables
                else []
            )
            file.close()
            ours = tables - {"_sqlite_migrations", "sqlite_sequence"}
            assert bool(names) is bool(ours), f"killed before statement {n}: {names} but {ours}"
            outcomes.add(bool(names))
        with Ledger(path, lock_wait_s=0) as ledger:
            assert ledger.acquire(ALICE, "g", "catan", authority_did=GM).is_new
            ledger.check_invariants()
        if not was_killed:
            break
    assert outcomes == {False, True}
    assert n > 25
