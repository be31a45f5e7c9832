"""The ledger's file: one SQLite connection, its pragmas, its transactions, its failures by one name."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from threading import RLock
from typing import Final

from sqlite_utils import Database

from leases.errors import LedgerTooNew, LedgerUnavailable
from leases.lock import WriterLock
from leases.migrations import MIGRATIONS, unknown_steps

APPLICATION_ID: Final = 0x534B594C  # "SKYL" in the file's header: tells a ledger from any other SQLite file
BUSY_TIMEOUT_MS: Final = 5_000
Value = str | int | float | None
Tracer = Callable[[str], None]  # gets every statement just before it runs


class Access(StrEnum):
    """What a connection may do."""

    WRITE = "write"  # takes the writer's lock, creates and migrates
    READ = "read"  # beside a writer, at any time
    BESIDE = "beside"  # likewise, and writes what is not the writer's: guards


class Store:
    """A connection that several threads may share; every call is one critical section.

    `run` outside `atomic` commits by itself. Every sqlite3 failure of the file (full, damaged, locked,
    closed) arrives as LedgerUnavailable; a broken constraint stays an IntegrityError: that is a bug of ours.
    """

    def __init__(
        self, path: Path, access: Access, *, lock_wait_s: float = 0.0, tracer: Tracer | None = None
    ) -> None:
        self.path = path
        self._writes = access is not Access.READ
        self._mutex = RLock()
        self._lock: WriterLock | None = None
        if access is not Access.WRITE and not path.is_file():
            raise LedgerUnavailable(str(path), "there is no such file")
        if access is Access.WRITE:
            self._lock = WriterLock(path, wait_s=lock_wait_s)
        try:
            self._connection = self._connect(access, tracer)
        except BaseException:
            self._release()
            raise
        self._db = Database(self._connection, recursive_triggers=False, execute_plugins=False)
        try:
            self._prepare(access)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """All of the block or nothing; a block inside a block is a savepoint."""
        with self._mutex:
            try:
                with self._db.atomic() if self._connection.in_transaction else self._transaction():
                    yield
            except sqlite3.Error as error:
                raise self._named(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # With the write lock from the start: what is read stays true, and another writer is waited for. Begun
        # as a reader, SQLite refuses at once to write after another has.
        self._connection.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def run(self, sql: str, *values: Value) -> int:
        """Carry out one statement and give the number of rows it touched."""
        with self._mutex:
            try:
                return self._connection.execute(sql, values).rowcount
            except sqlite3.Error as error:
                raise self._named(error) from error

    def insert(self, sql: str, *values: Value) -> int:
        """Carry out one INSERT and give the new row's rowid."""
        with self._mutex:
            try:
                return self._connection.execute(sql, values).lastrowid or 0
            except sqlite3.Error as error:
                raise self._named(error) from error

    def rows(self, sql: str, *values: Value) -> list[sqlite3.Row]:
        """Give every row of a query."""
        with self._mutex:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._named(error) from error

    def row(self, sql: str, *values: Value) -> sqlite3.Row | None:
        """Give the first row of a query, or None."""
        found = self.rows(sql, *values)
        return found[0] if found else None

    def close(self) -> None:
        """Close the file and let the next writer in; twice is as good as once."""
        with self._mutex:
            try:
                self._connection.close()
            finally:
                self._release()

    def _connect(self, access: Access, tracer: Tracer | None) -> sqlite3.Connection:
        mode = {Access.WRITE: "rwc", Access.READ: "ro", Access.BESIDE: "rw"}[access]
        try:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,  # transactions are begun by atomic(), never implicitly
                check_same_thread=False,  # the mutex serialises
            )
        except sqlite3.Error as error:
            raise self._named(error) from error
        connection.row_factory = sqlite3.Row
        connection.set_trace_callback(tracer)
        return connection

    def _prepare(self, access: Access) -> None:
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self._check_kind()
            if access is Access.WRITE:
                self._connection.execute("PRAGMA journal_mode = WAL")
            if self._writes:
                self._connection.execute(
                    "PRAGMA synchronous = FULL"
                )  # a lease that was given out survives a power cut
                self._connection.execute("PRAGMA foreign_keys = ON")
            if access is not Access.BESIDE:  # its writer has, and a large file takes long
                self._check_health()
            self._check_schema(access)
        except sqlite3.Error as error:
            raise self._named(error) from error

    def _check_kind(self) -> None:
        # In one statement: its writer may be making the file at this moment.
        asked = "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
        kind, tables = self._connection.execute(asked).fetchone()
        if kind != APPLICATION_ID and tables:
            raise LedgerUnavailable(str(self.path), "this SQLite file belongs to another program")

    def _check_health(self) -> None:
        verdict = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise LedgerUnavailable(str(self.path), f"the file is damaged ({verdict}): restore a copy")

    def _check_schema(self, access: Access) -> None:
        unknown = unknown_steps(self._db)
        if unknown:
            raise LedgerTooNew(str(self.path), unknown)
        lacking = [step.name for step in MIGRATIONS.pending(self._db)]
        if access is not Access.WRITE and lacking:
            raise LedgerUnavailable(
                str(self.path),
                f"it lacks {', '.join(lacking)}: start the supervisor once, it upgrades the file",
            )
        if lacking:
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            MIGRATIONS.apply(self._db)

    def _named(self, error: sqlite3.Error) -> Exception:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return LedgerUnavailable(str(self.path), "it was closed")
        if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
            primary = (
                getattr(error, "sqlite_errorcode", 0) & 0xFF
            )  # extended codes carry the primary in the low byte
            return LedgerUnavailable(str(self.path), _REASONS.get(primary, str(error)))
        return error

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


_REASONS: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: make room, nothing that was written is lost",
    sqlite3.SQLITE_NOTADB: "this is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a copy",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that its folder exists and is writable",
    sqlite3.SQLITE_READONLY: "it is open for reading only",
    sqlite3.SQLITE_BUSY: f"another program has held it for {BUSY_TIMEOUT_MS} ms",
}
