"""The book: durable, atomic, begun anew when damaged, refused when it cannot be written."""

import sqlite3
from pathlib import Path

import pytest

from sandboxes import IllegalTransition, PoolUnavailable, SandboxState
from sandboxes.pool.book import Book, read_states
from sandboxes.pool.states import Cause, Kind

PATH = Path("/tmp/of-a-sandbox")


def test_what_was_written_is_there_after_the_end(tmp_path: Path) -> None:
    book = Book(tmp_path / "pool.db", clock=lambda: 1000)
    book.move("a", Cause.ORDERED, epoch=7)
    book.move("a", Cause.READY, directory=PATH, used_ms=900)
    entry = book.note("a", is_prewarmed=True)
    again = Book(tmp_path / "pool.db")  # the first one is not closed: it was killed
    assert again.entries() == [entry]
    assert (entry.epoch, entry.directory, entry.is_prewarmed) == (7, PATH, True)


def test_several_changes_are_made_or_none(tmp_path: Path) -> None:
    book = Book(tmp_path / "pool.db")
    book.move("slot-0", Cause.ORDERED, kind=Kind.SLOT)
    with pytest.raises(IllegalTransition):
        book.move_all(
            [("a", Cause.ORDERED, Kind.SANDBOX, {}), ("slot-0", Cause.CLAIMED, Kind.SLOT, {})]
        )  # it is warming still
    assert [entry.name for entry in book.entries()] == ["slot-0"]
    assert book.story("a") == []


def test_how_long_a_state_lasted_is_measured_on_the_monotonic_clock(tmp_path: Path) -> None:
    wall, seconds = [10_000], [5.0]
    book = Book(tmp_path / "pool.db", clock=lambda: wall[0], monotonic=lambda: seconds[0])
    book.move("a", Cause.ORDERED)
    wall[0], seconds[0] = 2_000, 5.25  # somebody has set the clock back
    book.move("a", Cause.READY)
    assert book.story("a")[-1]["lasted_ms"] == 250
    assert book.story("a")[-1]["at_ms"] == 2_000


def test_a_damaged_book_is_kept_aside_and_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "pool.db").write_bytes(b"this is no database" * 100)
    book = Book(tmp_path / "pool.db")
    book.move("a", Cause.ORDERED)
    assert (tmp_path / "pool.damaged").read_bytes().startswith(b"this is no")
    with pytest.raises(PoolUnavailable, match=r"pool\.damaged"):
        read_states(tmp_path / "pool.damaged")


def test_a_book_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "pool.db")
    connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(PoolUnavailable, match="newer"):
        Book(tmp_path / "pool.db")


def test_a_book_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path / "pool.db")
    book.move("a", Cause.ORDERED)
    book._db.conn.execute("pragma query_only = on")
    with pytest.raises(PoolUnavailable, match=r"pool\.db"):
        book.move("a", Cause.READY)
    assert [entry.state for entry in book.entries()] == [SandboxState.WARMING]


def test_the_story_is_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.pool.book.MAX_STORY", 20)
    monkeypatch.setattr("sandboxes.pool.book.PRUNE_EVERY", 5)
    book = Book(tmp_path / "pool.db")
    for _ in range(30):
        book.move("a", Cause.ORDERED)
        book.move("a", Cause.DESTROYED)
    rows = book._db.execute("select count(*) from transitions").fetchone()[0]
    assert 20 <= rows <= 25
