"""The embedded network's SQLite: schema, migrations, and one transaction at a time."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from firehose.errors import StoreUnavailable

# One entry per schema version; an entry is never changed, only followed by another.
# Tables with long rows keep their rowid: rows go to the end of the file instead of into the middle of a
# tree, which saves a fifth of what a commit writes.
MIGRATIONS: Final = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE accounts (
        did TEXT PRIMARY KEY, handle TEXT NOT NULL UNIQUE, email TEXT, password_hash TEXT NOT NULL,
        signing_key BLOB NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL,
        head BLOB, rev TEXT
    ) WITHOUT ROWID;
    CREATE TABLE refresh_tokens (jti TEXT PRIMARY KEY, did TEXT NOT NULL, expires_at INTEGER NOT NULL)
    WITHOUT ROWID;
    CREATE TABLE plc_operations (
        did TEXT NOT NULL, position INTEGER NOT NULL, operation BLOB NOT NULL, created_at INTEGER NOT NULL,
        PRIMARY KEY (did, position)
    ) WITHOUT ROWID;
    CREATE TABLE blocks (
        did TEXT NOT NULL, cid BLOB NOT NULL, rev TEXT NOT NULL, block BLOB NOT NULL, PRIMARY KEY (did, cid)
    );
    CREATE TABLE records (
        did TEXT NOT NULL, collection TEXT NOT NULL, rkey TEXT NOT NULL, cid BLOB NOT NULL,
        PRIMARY KEY (did, collection, rkey)
    ) WITHOUT ROWID;
    CREATE TABLE blobs (
        did TEXT NOT NULL, cid TEXT NOT NULL, mime_type TEXT NOT NULL, created_at INTEGER NOT NULL,
        content BLOB NOT NULL, PRIMARY KEY (did, cid)
    );
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, did TEXT NOT NULL, created_at INTEGER NOT NULL,
        frame BLOB NOT NULL
    );
    """,
)


class Store:
    """The open database. One process owns it: a second one is refused, not let in to number events twice."""

    def __init__(self, path: Path) -> None:
        """Open or create, and migrate.

        Raises:
            StoreUnavailable: not a database of ours, not writable, in use by another process, or of a newer
                version.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(str(path), str(error)) from error
        try:
            with self._typed_errors():
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode = WAL")
                # A power cut may lose the last commits, whole: never half of one. A killed process loses
                # nothing.
                self._db.execute("PRAGMA synchronous = NORMAL")
                # A checkpoint takes some write 5 to 20 ms: at every 16 MB, not 4, it stays out of the p99.
                self._db.execute("PRAGMA wal_autocheckpoint = 4000")
                self._migrate()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close; the next process may open it."""
        with self._typed_errors():
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; never nested.

        Raises:
            StoreUnavailable: the disk or the file failed; nothing was written.
        """
        with self._typed_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._commit()

    def execute(self, statement: str, *values: Any) -> int:
        """Run one statement; how many rows it changed."""
        with self._typed_errors():
            return self._db.execute(statement, values).rowcount

    def execute_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Run one statement for each row."""
        with self._typed_errors():
            self._db.executemany(statement, rows)

    def row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        with self._typed_errors():
            found: tuple[Any, ...] | None = self._db.execute(statement, values).fetchone()
            return found

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._typed_errors():
            return self._db.execute(statement, values).fetchall()

    def meta(self, name: str) -> bytes | None:
        """A value of the network itself: its secrets and its address."""
        found = self.row("SELECT value FROM meta WHERE name = ?", name)
        return bytes(found[0]) if found else None

    def set_meta(self, name: str, value: bytes) -> None:
        """Write a value of the network itself."""
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StoreUnavailable(
                str(self._path), f"its schema {version} is newer than this program's {len(MIGRATIONS)}"
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            reason = "another process has it open" if "locked" in str(error) else str(error)
            raise StoreUnavailable(str(self._path), reason) from error
        except sqlite3.IntegrityError:
            raise  # the caller's rule, not the disk's failure
        except sqlite3.Error as error:
            raise StoreUnavailable(str(self._path), str(error)) from error
