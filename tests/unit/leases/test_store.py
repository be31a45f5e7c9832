"""The ledger's file: one writer, many readers, and what it says when it cannot."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leases import (
    Cause,
    Ledger,
    LedgerLocked,
    LedgerReader,
    LedgerTooNew,
    LedgerUnavailable,
)

ALICE, GM = "did:plc:alice", "did:plc:gm"
HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_writer_is_refused_and_told_who_writes(ledger: Ledger, path: Path) -> None:
    with pytest.raises(LedgerLocked, match=f"process {os.getpid()} is writing it") as refused:
        Ledger(path, lock_wait_s=0)
    assert refused.value.holder_pid == os.getpid()
    assert ledger.acquire(ALICE, "g", "catan", authority_did=GM).is_new  # the first one goes on


def test_a_second_writer_waits_for_one_that_leaves(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, f"{path}.lock"], stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LedgerLocked, match="another process"):
            Ledger(path, lock_wait_s=0.05)
        holder.kill()
        Ledger(path, lock_wait_s=10).close()


def test_a_closed_ledger_lets_the_next_writer_in(path: Path) -> None:
    first = Ledger(path)
    first.close()
    first.close()
    with Ledger(path, lock_wait_s=0) as second:
        with pytest.raises(LedgerUnavailable, match="closed"):
            first.list()
        with pytest.raises(LedgerUnavailable, match="closed"):
            first.acquire(ALICE, "g", "catan", authority_did=GM)
        assert second.list() == []


def test_a_forgotten_ledger_lets_the_next_writer_in(path: Path) -> None:
    forgotten = Ledger(path)
    forgotten.acquire(ALICE, "g", "catan", authority_did=GM)
    del forgotten
    with Ledger(path, lock_wait_s=0) as ledger:
        assert len(ledger.list()) == 1


def test_a_bug_of_ours_is_not_blamed_on_the_disk(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        ledger._store.run("INSERT INTO outbox (event_id) VALUES (99)")
    with pytest.raises(sqlite3.ProgrammingError):
        ledger._store.run("SELECT ?")


def test_readers_work_beside_a_writer_and_see_each_commit(
    ledger: Ledger, path: Path, clock: list[int]
) -> None:
    with LedgerReader(path, clock=lambda: clock[0]) as reader, LedgerReader(path) as other:
        assert reader.list() == []
        lease = ledger.acquire(ALICE, "g", "catan", authority_did=GM).lease
        with ledger.atomic():
            ledger.sleep(lease.id, 1)
            assert reader.get(lease.id) == lease  # not before the commit
        assert reader.get(lease.id) == ledger.get(lease.id) == other.get(lease.id)
        assert reader.history(lease.id) == ledger.history(lease.id)
        assert (reader.costs(), reader.counters(), reader.accounts()) == (ledger.costs(), {}, [])
        assert reader.digest() == ledger.digest()
        reader.check_invariants()
        with pytest.raises(LedgerUnavailable, match="reading only"):
            reader._store.run("DELETE FROM usage")


def test_a_reader_works_on_a_ledger_that_nobody_has_open(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.acquire(ALICE, "g", "catan", authority_did=GM)
    with LedgerReader(path) as reader:
        assert len(reader.list()) == 1


def test_a_reader_makes_no_file(path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="no such file"):
        LedgerReader(path)
    assert list(path.parent.iterdir()) == []


def test_everything_is_there_after_a_restart(path: Path, clock: list[int]) -> None:
    with Ledger(path, clock=lambda: clock[0]) as ledger:
        lease = ledger.acquire(ALICE, "g", "catan", authority_did=GM).lease
        ledger.sleep(lease.id, 1)
        before = (ledger.digest(), ledger.get(lease.id), ledger.history(lease.id))
    with Ledger(path, clock=lambda: clock[0]) as ledger:
        assert (ledger.digest(), ledger.get(lease.id), ledger.history(lease.id)) == before
        assert not ledger.acquire(ALICE, "g", "catan", authority_did=GM).is_new


@pytest.mark.parametrize("opener", [Ledger, LedgerReader])
def test_what_is_no_ledger_is_refused_and_left_alone(path: Path, opener: type[LedgerReader]) -> None:
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(LedgerUnavailable, match="not a SQLite file") as refused:
        opener(path)
    assert refused.value.path == str(path)
    assert path.read_bytes() == b"not a database, " * 100
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerUnavailable, match="belongs to another program"):
        opener(path)


def test_a_damaged_file_is_refused_when_it_is_opened(path: Path) -> None:
    with Ledger(path) as ledger:
        for n in range(50):
            ledger.acquire(f"did:plc:a{n}", "g", "catan", authority_did=GM)
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * 4096] + os.urandom(len(whole) - 4 * 4096) + whole[-2 * 4096 :])
    with pytest.raises(LedgerUnavailable, match="damaged"):
        Ledger(path)
    path.write_bytes(whole)
    Ledger(path, lock_wait_s=0).close()  # the refused one has let go of the lock


@pytest.mark.parametrize("opener", [Ledger, LedgerReader])
def test_a_ledger_of_a_newer_skylease_is_refused(path: Path, opener: type[LedgerReader]) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as file:
        file.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('skylease.ledger', '0099_x')"
        )
    file.close()
    with pytest.raises(LedgerTooNew, match="0099_x"):
        opener(path)


def test_a_reader_does_not_migrate(path: Path) -> None:
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(LedgerUnavailable, match="it lacks 0001_leases"):
        LedgerReader(path)
    assert path.stat().st_size == 0


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="No such file or directory"):
        Ledger(tmp_path / "nowhere" / "ledger.db")


def test_a_full_disk_is_said_to_be_full_and_nothing_is_lost(ledger: Ledger) -> None:
    ledger._store.run(f"PRAGMA max_page_count = {ledger._store.rows('PRAGMA page_count')[0][0] + 8}")
    acquired = _fill(ledger)
    assert len(ledger.list()) == acquired > 0
    ledger.check_invariants()
    ledger._store.run("PRAGMA max_page_count = 1000000")
    assert ledger.expire("did:plc:a0::g", Cause.TTL) is True
    assert ledger.acquire(f"did:plc:a{acquired}", "g", "catan", authority_did=GM).is_new


def _fill(ledger: Ledger) -> int:
    """Acquire until the disk is full; give how many leases fit."""
    for n in range(10_000):
        before = ledger.digest()
        try:
            ledger.acquire(f"did:plc:a{n}", "g", "catan", authority_did=GM)
        except LedgerUnavailable as error:
            reason, after = error.reason, ledger.digest()
            break
    assert reason.startswith("the disk is full")
    assert after == before
    return n


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of its own")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.root
def test_a_really_full_disk_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with Ledger(small_disk / "ledger.db") as ledger:
        free = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize - 64 * 1024))
        acquired = _fill(ledger)
        assert len(ledger.list()) == acquired > 0
        ballast.unlink()
        assert ledger.acquire(f"did:plc:a{acquired}", "g", "catan", authority_did=GM).is_new
        ledger.check_invariants()


@pytest.mark.root
def test_a_disk_that_is_full_from_the_start_is_said_to_be(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 508 * 1024)
    with pytest.raises(LedgerUnavailable, match="full"):
        Ledger(small_disk / "ledger.db")
    (small_disk / "ballast").unlink()
    Ledger(small_disk / "ledger.db").close()
