"""The pool's book: every sandbox and slot of the node with its state, and the story of all changes.

SQLite (through sqlite-utils) in the node's state directory, one transaction per change. What has been
committed survives the end of this process at any moment; a power cut may take the last changes (no fsync for
each), which `repair` makes good at start: the tier and the snapshots are what is really there.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from sqlite_utils import Database

from sandboxes.errors import IllegalTransition, PoolUnavailable
from sandboxes.pool.entry import Entry
from sandboxes.pool.states import Cause, Kind, following
from sandboxes.spec import SandboxState

log = logging.getLogger(__name__)

BOOK_NAME: Final = "pool.db"
VERSION: Final = 1  # PRAGMA user_version
BUSY_MS: Final = 5_000
MAX_STORY: Final = 10_000  # transitions kept
PRUNE_EVERY: Final = 1_000
TOLD: Final = 6  # transitions that an error tells
Observer = Callable[[Entry, Cause, Entry, float], None]  # before, cause, after, ms in the state before


class Book:
    """See the module. One event loop uses it; every method is one transaction.

    Args:
        path: its file; made if there is none, begun anew if it is damaged (the old one stays beside it).
        clock: wall clock, epoch milliseconds.
        monotonic: seconds, for how long a state lasted.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._monotonic = monotonic
        self._observers: list[Observer] = []
        self._since: dict[str, float] = {}
        self._written = 0
        self._db = _open(path)
        self._entries = {row["name"]: _entry(row) for row in self._db["entries"].rows}

    def close(self) -> None:
        """Let the file go."""
        self._db.conn.close()

    def observe(self, observer: Observer) -> None:
        """Have this called after every change."""
        self._observers.append(observer)

    def get(self, name: str) -> Entry | None:
        """Return an entry; None: deleted, or never there."""
        return self._entries.get(name)

    def entries(self, kind: Kind | None = None) -> list[Entry]:
        """Return all entries, or those of a kind, by name."""
        return sorted(
            (entry for entry in self._entries.values() if kind in (None, entry.kind)),
            key=lambda entry: entry.name,
        )

    def move(self, name: str, cause: Cause, *, kind: Kind = Kind.SANDBOX, **changes: Any) -> Entry:
        """Change a state by its cause, and other fields with it; returns the entry as it is then.

        Raises:
            IllegalTransition: the state does not allow it; nothing has changed.
            PoolUnavailable: it cannot be written; nothing has changed.
        """
        return self.move_all([(name, cause, kind, changes)])[0]

    def move_all(self, moves: list[tuple[str, Cause, Kind, dict[str, Any]]]) -> list[Entry]:
        """Make several changes, all or none."""
        now = self._clock()
        planned = [self._plan(*move, now) for move in moves]
        with self._writing():
            for before, cause, after, lasted_ms in planned:
                self._write(before, cause, after, lasted_ms, now)
        for before, cause, after, lasted_ms in planned:
            if after.state is SandboxState.DELETED:
                self._entries.pop(after.name, None)
                self._since.pop(after.name, None)
            else:
                self._entries[after.name] = after
                if before.state is not after.state:
                    self._since[after.name] = self._monotonic()
            for observer in self._observers:
                observer(before, cause, after, lasted_ms)
        return [after for _, _, after, _ in planned]

    def note(self, name: str, **changes: Any) -> Entry:
        """Change fields of an entry that are not its state.

        Raises:
            PoolUnavailable: it cannot be written.
        """
        entry = replace(self._entries[name], **changes)
        with self._writing():
            self._db["entries"].upsert(_row(entry), pk="name")  # type: ignore[union-attr]
        self._entries[name] = entry
        return entry

    def story(self, name: str, limit: int = TOLD) -> list[dict[str, Any]]:
        """Return the last changes of a sandbox, the newest last."""
        rows = self._db["transitions"].rows_where("name = ?", [name], order_by="id desc", limit=limit)
        return list(rows)[::-1]

    def _plan(
        self, name: str, cause: Cause, kind: Kind, changes: dict[str, Any], now: int
    ) -> tuple[Entry, Cause, Entry, float]:
        before = self._entries.get(name) or Entry(
            name=name, kind=kind, state=SandboxState.DELETED, epoch=0, since_ms=now, used_ms=now
        )
        state = following(before.kind, before.state, cause)
        if state is None:
            told = tuple(f"{row['before']} {row['cause']} {row['after']}" for row in self.story(name))
            raise IllegalTransition(name, before.state, cause, told)
        since = self._since.get(name)
        lasted = now - before.since_ms if since is None else (self._monotonic() - since) * 1000
        changes.setdefault("is_dozing", False)
        moved_ms = before.since_ms if state is before.state else now
        return before, cause, replace(before, state=state, since_ms=moved_ms, **changes), max(0.0, lasted)

    def _write(self, before: Entry, cause: Cause, after: Entry, lasted_ms: float, now: int) -> None:
        run = self._db.conn.execute
        if after.state is SandboxState.DELETED:
            run("delete from entries where name = ?", (after.name,))
        else:
            row = _row(after)
            marks = ", ".join("?" * len(row))
            run(f"insert or replace into entries ({', '.join(row)}) values ({marks})", tuple(row.values()))
        run(
            "insert into transitions (at_ms, name, before, cause, after, lasted_ms) values (?,?,?,?,?,?)",
            (now, after.name, before.state, cause, after.state, round(lasted_ms, 3)),
        )
        self._written += 1
        if self._written % PRUNE_EVERY == 0:
            run("delete from transitions where id <= (select max(id) from transitions) - ?", (MAX_STORY,))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._db.conn:
                yield
        except sqlite3.Error as error:
            raise PoolUnavailable(str(self.path), str(error)) from error


def read_states(path: Path) -> list[Entry]:
    """Return what the book in this file says, beside whoever writes it; nothing if there is none.

    Raises:
        PoolUnavailable: it cannot be read.
    """
    if not path.is_file():
        return []
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1000)
        try:
            return [_entry(row) for row in Database(connection)["entries"].rows]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise PoolUnavailable(str(path), str(error)) from error


def _open(path: Path) -> Database:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked, full, forbidden: the file is not to blame
            raise PoolUnavailable(str(path), str(error)) from error
        damaged = path.with_suffix(".damaged")
        path.replace(damaged)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        log.error("the pool's book was damaged and is begun anew", extra={"kept": str(damaged)})
        return _prepared(path)


def _prepared(path: Path) -> Database:
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000)
    try:
        for pragma in ("journal_mode = wal", "synchronous = normal"):
            connection.execute(f"pragma {pragma}")
        db = Database(connection)
        version = connection.execute("pragma user_version").fetchone()[0]
        if version > VERSION:
            raise PoolUnavailable(str(path), f"it was written by a newer skylease (format {version})")
        db["entries"].create(  # type: ignore[union-attr]
            {
                **dict.fromkeys(("name", "kind", "state", "directory", "made_of"), str),
                **dict.fromkeys(("epoch", "since_ms", "used_ms"), int),
                **dict.fromkeys(("is_local", "is_prewarmed", "is_dozing"), int),
            },
            pk="name",
            if_not_exists=True,
        )
        columns = {"id": int, "at_ms": int, "name": str, "before": str, "cause": str, "after": str}
        db["transitions"].create({**columns, "lasted_ms": float}, pk="id", if_not_exists=True)  # type: ignore[union-attr]
        db["transitions"].create_index(["name"], if_not_exists=True)  # type: ignore[union-attr]
        connection.execute(f"pragma user_version = {VERSION}")
        connection.commit()
        return db
    except BaseException:
        connection.close()
        raise


def _row(entry: Entry) -> dict[str, Any]:
    row = asdict(entry)
    row["directory"] = None if entry.directory is None else str(entry.directory)
    return row


def _entry(row: dict[str, Any]) -> Entry:
    flags = {name: bool(row[name]) for name in ("is_local", "is_prewarmed", "is_dozing")}
    kind, state = Kind(row["kind"]), SandboxState(row["state"])
    directory = None if row["directory"] is None else Path(row["directory"])
    return Entry(**row | flags | {"kind": kind, "state": state, "directory": directory})
