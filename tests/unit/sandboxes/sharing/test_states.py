"""Every store of states keeps late holders out."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from sandboxes import InvalidSpec
from sandboxes.sharing import GuardLost, SqliteStates, StateStore, StatesUnavailable
from sandboxes.sharing import states as module
from sandboxes.sharing.redis_states import RedisLatch, RedisStates


def test_what_was_saved_is_found_by_another(
    states: StateStore, make_states: Callable[[], StateStore]
) -> None:
    assert (states.fence("k"), states.keys()) == (0, [])
    assert states.claim("k", 3) is None
    assert states.keys() == []  # claimed, nothing stored
    states.save("k", 3, b"one\0\xff")
    again = make_states()
    assert (again.fence("k"), again.keys(), again.claim("k", 4)) == (3, ["k"], b"one\0\xff")
    again.close()


def test_a_late_holder_is_refused_when_it_persists(states: StateStore) -> None:
    states.claim("k", 3)
    states.save("k", 3, b"first")
    states.claim("k", 5)
    with pytest.raises(GuardLost, match=r"newer holder \(token 5"):
        states.save("k", 3, b"late")
    with pytest.raises(GuardLost, match=r"newer holder \(token 5"):
        states.set_aside("k", 3)
    assert states.claim("k", 6) == b"first"


def test_a_token_claims_once(states: StateStore) -> None:
    states.claim("k", 3)
    with pytest.raises(GuardLost, match="this very token was used before"):
        states.claim("k", 3)
    with pytest.raises(GuardLost, match="newer holder"):
        states.claim("k", 2)
    with pytest.raises(GuardLost, match="never claimed"):
        states.save("k", 4, b"x")
    with pytest.raises(GuardLost, match="never claimed"):
        states.save("other", 1, b"x")


def test_a_state_set_aside_is_kept_for_people(states: StateStore) -> None:
    states.claim("k", 1)
    states.set_aside("k", 1)  # nothing there: nothing is done
    assert states.aside("k") is None
    states.save("k", 1, b"garbage")
    states.set_aside("k", 1)
    assert (states.aside("k"), states.keys(), states.claim("k", 2)) == (b"garbage", [], None)
    states.save("k", 2, b"good")
    assert (states.aside("k"), states.claim("k", 3)) == (b"garbage", b"good")


def test_of_many_with_one_token_one_claims(make_states: Callable[[], StateStore]) -> None:
    stores = [make_states() for _ in range(8)]

    def claim(store: StateStore) -> bool:
        try:
            store.claim("k", 9)
            return True
        except GuardLost:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claim, stores)) == 1
    for store in stores:
        store.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    (tmp_path / "text.db").write_text("hello " * 1000)
    for name in ("other.db", "text.db"):
        with pytest.raises(StatesUnavailable, match=name):
            SqliteStates(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(StatesUnavailable):
        SqliteStates(tmp_path / "file" / "states.db")


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = Migrations("skylease.sharing")
    newer(name="0001_states")(module._states)
    newer(name="0002_colour")(lambda db: db.execute("ALTER TABLE states ADD COLUMN colour TEXT"))
    with monkeypatch.context() as ahead:
        ahead.setattr(module, "MIGRATIONS", newer)
        SqliteStates(tmp_path / "states.db").close()
    with pytest.raises(StatesUnavailable, match="0002_colour"):
        SqliteStates(tmp_path / "states.db")


def test_many_open_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for store in threads.map(lambda _: SqliteStates(tmp_path / "states.db"), range(8)):
            store.close()
    with Database(str(tmp_path / "states.db")) as db:
        assert db["states"].count == 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStates(tmp_path / "states.db")
    store.close()
    store.close()
    with pytest.raises(StatesUnavailable, match="closed"):
        store.fence("k")


@pytest.mark.parametrize(
    "url", ["http://x", "redis", "", "redis://host:port", "redis://:secret@host:99999999"]
)
def test_what_is_no_redis_is_refused_without_its_secret(url: str) -> None:
    for kind in (RedisLatch, RedisStates):
        with pytest.raises(InvalidSpec) as refused:
            kind(url)
        assert "secret" not in str(refused.value)
