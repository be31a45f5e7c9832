"""The guard in the ledger's file, beside its writer."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leases import Ledger, LedgerLatch, LedgerReader, LedgerTooNew, LedgerUnavailable

ALICE, GM = "did:plc:alice", "did:plc:gm"


def test_it_works_beside_the_writer_and_a_reader(path: Path) -> None:
    with Ledger(path) as ledger, LedgerReader(path) as reader:
        latch = LedgerLatch(path)
        assert latch.try_enter("k", "a", 60_000, 0) == 1
        lease = ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM).lease
        assert latch.renew("k", "a", 60_000)
        assert reader.get(lease.id) == lease
        assert latch.leave("k", "a")
        latch.close()
    other = LedgerLatch(path)
    assert other.try_enter("k", "b", 60_000, 0) == 2
    other.close()


def test_the_writer_waits_for_a_guard_that_is_being_written(path: Path) -> None:
    """Each writes after the other has read: neither is refused."""
    with Ledger(path) as ledger:
        latches = [LedgerLatch(path) for _ in range(4)]

        def enter_and_leave(latch: LedgerLatch) -> int:
            for n in range(25):
                if latch.try_enter("k", str(id(latch)), 60_000, 0):
                    latch.leave("k", str(id(latch)))
                ledger.count(f"n{n}")
            return 25

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(enter_and_leave, latches)) == 100
        assert sum(ledger.counters().values()) == 100
        for latch in latches:
            latch.close()


def test_many_make_the_file_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as threads:
        latches = list(threads.map(lambda _: LedgerLatch(tmp_path / "new" / "ledger.db"), range(6)))
    assert [latch.try_enter("k", str(n), 60_000, 0) for n, latch in enumerate(latches)].count(1) == 1
    for latch in latches:
        latch.close()


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerUnavailable, match="belongs to another program"):
        LedgerLatch(tmp_path / "other.db")
    with Ledger(tmp_path / "newer.db") as ledger:
        ledger._store.run(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
            " VALUES ('skylease.ledger', '9999_x', '')"
        )
        with pytest.raises(LedgerTooNew, match="9999_x"):
            LedgerLatch(tmp_path / "newer.db")
    latch = LedgerLatch(tmp_path / "ledger.db")
    latch.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        latch.try_enter("k", "a", 1, 0)
