"""Where the states of shared sandboxes are stored, each with the fence that keeps late holders out.

A holder claims a key with its token, once, and only a larger one than all before; from then on nobody with
another token can write. So a holder that was stopped and goes on later is refused in the very transaction in
which it tries to persist.
"""

import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import RLock
from typing import Final

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from sandboxes.sharing.errors import GuardLost, StatesUnavailable
from sandboxes.sharing.guard import Reach

APPLICATION_ID: Final = 0x534B5953  # "SKYS" in the file's header: tells it from any other SQLite file
BUSY_TIMEOUT_MS: Final = 5_000
MIGRATIONS: Final = Migrations("skylease.sharing")


class StateStore(ABC):
    """One state and one fence per key. Synchronous and safe from several threads.

    What was written is durable when the call returns. Every method raises StatesUnavailable when the store
    cannot be reached or is full; then nothing has changed.
    """

    reach: Reach
    where: str  # a name of it for people, without secrets

    @abstractmethod
    def fence(self, key: str) -> int:
        """Return the token that claimed the key last; 0: none did."""

    @abstractmethod
    def claim(self, key: str, token: int) -> bytes | None:
        """Shut out every smaller token, and return what is stored; None: nothing.

        Raises:
            GuardLost: this token or a larger one has claimed it already.
        """

    @abstractmethod
    def save(self, key: str, token: int, state: bytes) -> None:
        """Store a state.

        Raises:
            GuardLost: the key was claimed by another token.
        """

    @abstractmethod
    def set_aside(self, key: str, token: int) -> None:
        """Put away a state that cannot be read, for people to look at; then there is none.

        Raises:
            GuardLost: the key was claimed by another token.
        """

    @abstractmethod
    def aside(self, key: str) -> bytes | None:
        """Return what was set aside last; None: nothing was."""

    @abstractmethod
    def keys(self) -> list[str]:
        """Return every key that has a state, sorted."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; may be repeated."""


def outrun(key: str, token: int, fence: int) -> GuardLost:
    """Return the error for a token that is not the newest."""
    if fence == token:
        return GuardLost(key, token, "this very token was used before: the guard does not reach all holders")
    if fence < token:
        return GuardLost(key, token, "it never claimed the stored state")
    return GuardLost(key, token, f"a newer holder (token {fence}) has taken over")


@MIGRATIONS(name="0001_states")
def _states(db: Database) -> None:
    db.execute(
        """
        CREATE TABLE states (
            key TEXT PRIMARY KEY,
            fence INTEGER NOT NULL CHECK (fence > 0),
            state BLOB,
            aside BLOB,
            changed_at INTEGER NOT NULL
        )
        """
    )


def _check_version(connection: sqlite3.Connection, where: str) -> None:
    ours = {step.name for step in MIGRATIONS.pending(Database(memory=True))}
    theirs = [step.name for step in MIGRATIONS.applied(Database(connection)) if step.name not in ours]
    if theirs:
        raise StatesUnavailable(where, f"a newer skylease wrote it ({', '.join(theirs)}): upgrade skylease")


class SqliteStates(StateStore):
    """States in a SQLite file of this node, for every process that opens it.

    Args:
        path: the file; made if it is not there, in a folder that is.
        clock: wall clock, epoch milliseconds.
    """

    reach = Reach.NODE

    def __init__(self, path: Path, *, clock: Callable[[], int] | None = None) -> None:
        self.where = f"the file {path}"
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._mutex = RLock()
        with self._named():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
            path.chmod(0o600)

    def fence(self, key: str) -> int:
        """See `StateStore`."""
        with self._mutex, self._named():
            row = self._connection.execute("SELECT fence FROM states WHERE key = ?", (key,)).fetchone()
            return 0 if row is None else int(row[0])

    def claim(self, key: str, token: int) -> bytes | None:
        """See `StateStore`."""
        with self._transaction():
            fence = self.fence(key)
            if fence >= token:
                raise outrun(key, token, fence)
            self._connection.execute(
                """
                INSERT INTO states (key, fence, changed_at) VALUES (?1, ?2, ?3)
                ON CONFLICT (key) DO UPDATE SET fence = ?2, changed_at = ?3
                """,
                (key, token, self._clock()),
            )
            return self._blob("state", key)

    def save(self, key: str, token: int, state: bytes) -> None:
        """See `StateStore`."""
        self._update(key, token, "state = ?4", state)

    def set_aside(self, key: str, token: int) -> None:
        """See `StateStore`."""
        self._update(key, token, "aside = coalesce(state, aside), state = NULL")

    def aside(self, key: str) -> bytes | None:
        """See `StateStore`."""
        with self._mutex, self._named():
            return self._blob("aside", key)

    def keys(self) -> list[str]:
        """See `StateStore`."""
        with self._mutex, self._named():
            found = self._connection.execute("SELECT key FROM states WHERE state IS NOT NULL ORDER BY key")
            return [str(row[0]) for row in found.fetchall()]

    def close(self) -> None:
        """See `StateStore`."""
        with self._mutex:
            self._connection.close()

    def _update(self, key: str, token: int, what: str, *values: bytes) -> None:
        with self._transaction():
            done = self._connection.execute(
                f"UPDATE states SET {what}, changed_at = ?3 WHERE key = ?1 AND fence = ?2",
                (key, token, self._clock(), *values),
            )
            if not done.rowcount:
                raise outrun(key, token, self.fence(key))

    def _blob(self, column: str, key: str) -> bytes | None:
        row = self._connection.execute(f"SELECT {column} FROM states WHERE key = ?", (key,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the block or nothing; other processes wait from its first line on, so none reads what is
        about to change.
        """
        with self._mutex, self._named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StatesUnavailable(self.where, str(error)) from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        # In one statement: another process may be making the file at this moment.
        asked = "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
        kind, tables = run(asked).fetchone()
        if kind != APPLICATION_ID and tables:
            raise StatesUnavailable(self.where, "this SQLite file belongs to another program")
        _check_version(self._connection, self.where)
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        with self._transaction():  # of several processes that make the file, one does
            run(f"PRAGMA application_id = {APPLICATION_ID}")
            MIGRATIONS.apply(Database(self._connection, recursive_triggers=False, execute_plugins=False))
