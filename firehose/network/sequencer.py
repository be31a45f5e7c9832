"""The order of everything that happens in the network: numbered events, stored with what caused them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from firehose.fanout import FanOut
from firehose.network.store import Store
from firehose.window import Entry, FrameWindow

MAX_EVENTS: Final = 200_000  # the rollback window; older events are deleted
MEMORY_BYTES: Final = (
    8 * 1024 * 1024
)  # the newest events, kept in memory as well: live clients never touch the disk
TRIM_EVERY: Final = 1024  # events between two deletions

MakeFrame = Callable[[int], bytes]  # seq -> frame


class Batch:
    """The events of one transaction, in order; nobody sees them before it is committed."""

    def __init__(self, store: Store, first_seq: int, now_ms: int) -> None:
        self._store = store
        self._next_seq = first_seq
        self._now_ms = now_ms
        self.entries: list[Entry] = []

    def add(self, did: str, make_frame: MakeFrame) -> Entry:
        """Number and store one event."""
        entry = Entry(self._next_seq, make_frame(self._next_seq), did)
        self._store.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?)", entry.seq, did, self._now_ms, entry.frame
        )
        self._next_seq += 1
        self.entries.append(entry)
        return entry


class Sequencer:
    """The `Source` of the network's stream, and the only way to add to it."""

    def __init__(self, store: Store, *, clock: Callable[[], int], max_events: int = MAX_EVENTS) -> None:
        """Continue where the store ends."""
        self._store = store
        self._clock = clock
        self._max_events = max_events
        last = store.row("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        first = store.row("SELECT min(seq) FROM events")
        self._last_seq: int = last[0] if last else 0
        self._missing_seq: int = first[0] - 1 if first and first[0] is not None else self._last_seq
        self._recent = FrameWindow(missing_seq=self._last_seq, max_bytes=MEMORY_BYTES)
        self.fanout = FanOut(self)

    @property
    def last_seq(self) -> int | None:
        """The newest seq; 0 before the first event, for the network knows that none is missing."""
        return self._last_seq

    @property
    def missing_seq(self) -> int:
        """Events at or before this seq have been deleted."""
        return self._missing_seq

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """At most `limit` events with a higher seq, from memory or, when older, from the store."""
        if seq >= self._recent.missing_seq:
            return self._recent.after(seq, limit)
        rows = self._store.rows(
            "SELECT seq, frame, did FROM events WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit
        )
        return [Entry(row[0], row[1], row[2]) for row in rows]

    @contextmanager
    def transaction(self) -> Iterator[Batch]:
        """One transaction of the store; its events are published once it is committed, and else vanish."""
        with self._store.transaction():
            batch = Batch(self._store, self._last_seq + 1, self._clock())
            yield batch
        for entry in batch.entries:
            self._last_seq = entry.seq
            self._recent.append(entry)
            self.fanout.publish(entry)
        if batch.entries and self._last_seq // TRIM_EVERY != (batch.entries[0].seq - 1) // TRIM_EVERY:
            self._trim()

    def _trim(self) -> None:
        missing_seq = self._last_seq - self._max_events
        if missing_seq > self._missing_seq:
            self._store.execute("DELETE FROM events WHERE seq <= ?", missing_seq)
            self._missing_seq = missing_seq
