"""Schema steps: numbered, each with its record in one transaction."""

from pathlib import Path

import pytest
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from leases import Ledger, LedgerReader, LedgerTooNew, LedgerUnavailable, migrations, store

ALICE, GM = "did:plc:alice", "did:plc:gm"


def add_column(db: Database) -> None:
    db.execute("ALTER TABLE leases ADD COLUMN colour TEXT")


def add_column_and_fail(db: Database) -> None:
    add_column(db)
    db.execute("UPDATE leases SET environment_type = 'gone'")
    raise RuntimeError("the step failed")


@pytest.fixture
def played(path: Path) -> Path:
    with Ledger(path) as ledger:
        ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM)
    return path


def next_version(monkeypatch: pytest.MonkeyPatch, second: object) -> None:
    """Let the code be one schema step ahead of the files that there are."""
    steps = Migrations("skylease.ledger")
    for step in migrations.MIGRATIONS.pending(Database(memory=True)):
        steps(name=step.name)(step.fn)
    assert callable(second)
    steps(name="9999_colour")(lambda db: second(db))
    monkeypatch.setattr(store, "MIGRATIONS", steps)
    monkeypatch.setattr(migrations, "MIGRATIONS", steps)


def columns(path: Path) -> set[str]:
    with LedgerReader(path) as reader:
        return {row["name"] for row in reader._store.rows("PRAGMA table_info(leases)")}


def test_a_step_that_fails_changes_nothing(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as ahead:
        next_version(ahead, add_column_and_fail)
        with pytest.raises(RuntimeError, match="the step failed"):
            Ledger(played)
    assert "colour" not in columns(played)
    with Ledger(played, lock_wait_s=0) as ledger:
        assert ledger.list()[0].environment_type == "catan"


def test_a_step_keeps_what_was_there_and_the_old_code_then_refuses(
    played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        next_version(ahead, add_column)
        with pytest.raises(LedgerUnavailable, match="it lacks 9999_colour"):
            LedgerReader(played)
        Ledger(played).close()
        assert "colour" in columns(played)
        Ledger(played).close()  # once is enough
    for opener in (Ledger, LedgerReader):
        with pytest.raises(LedgerTooNew, match="9999_colour"):
            opener(played)


def test_steps_are_numbered_without_a_gap() -> None:
    names = [step.name for step in migrations.MIGRATIONS.pending(Database(memory=True))]
    assert [name[:5] for name in names] == [f"{number:04}_" for number in range(1, len(names) + 1)]


def test_the_second_step_adds_up_what_there_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Migrations("skylease.ledger")
    old(name="0001_leases")(migrations._leases)
    november = 1_761_955_200_000
    file = Database(path)
    old.apply(file)
    file.execute(f"PRAGMA application_id = {store.APPLICATION_ID}")
    lease = (
        "INSERT INTO leases VALUES (?, ?, 'g', 'catan', 'did:plc:gm', 'process', NULL, 0, 0, 9, NULL, 9, 9,"
        " '[]', ?, 1, 'box', NULL, NULL, ?, ?)"
    )
    for agent, status, ended in (("a", "active", None), ("b", "destroyed", 5), ("c", "destroyed", 5)):
        file.execute(lease, [f"{agent}::g", agent, status, ended, ended and "ttl"])
    for agent, start, end in (("b", november - 3, november + 5), ("b", november + 7, november + 8)):
        file.execute(
            "INSERT INTO usage VALUES (?, 1, ?, 'process', ?, ?)", [f"{agent}::g", agent, start, end]
        )
    file.conn.commit()
    file.close()
    with Ledger(path) as ledger:
        assert [ledger.awake_ms("b", month) for month in ("2025-10", "2025-11")] == [3, 6]
        assert ledger.counts() == {"active": 1, "sleeping": 0, "expired": 0, "destroyed": 2}
