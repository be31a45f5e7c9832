"""The retained stretch of a stream, and who still has to be sent what of it. No sockets here.

A subscription holds a position, not a queue: a slow client costs a number, and the frames are kept once for
all.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from firehose.wanted import Wanted

MAX_WINDOW_FRAMES: Final = 200_000
MAX_WINDOW_BYTES: Final = 64 * 1024 * 1024
MAX_LAG_FRAMES: Final = (
    4096  # a client that was live and falls this far behind is too slow; indigo allows 16,384
)
_SLACK: Final = 1024  # forgotten entries before the lists are cut, so that trimming costs nothing per frame


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame and what filters look at; `collections` is empty for anything but a #commit."""

    seq: int
    frame: bytes
    did: str | None
    collections: tuple[str, ...] = ()
    verdict: str | None = None  # what the tap said of it; None: nobody judged it
    reason: str = ""


class Source(Protocol):
    """Frames in the order of their seq, as far back as they are kept."""

    @property
    def last_seq(self) -> int | None:
        """The newest seq, None before the first frame."""

    @property
    def missing_seq(self) -> int:
        """Nothing after this seq is missing; at or before it frames may have been dropped."""

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """At most `limit` frames with a higher seq, in order."""


class Window(Source, Protocol):
    """A `Source` that is added to."""

    def __len__(self) -> int:
        """How many frames are in memory."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the frames in memory."""

    def append(self, entry: Entry) -> None:
        """Add the newest frame. Raises: ValueError: its seq is not higher than the last."""


class FrameWindow:
    """A `Window` in memory, bounded by frames and by bytes: the oldest go first."""

    def __init__(
        self,
        *,
        missing_seq: int = 0,
        max_frames: int = MAX_WINDOW_FRAMES,
        max_bytes: int = MAX_WINDOW_BYTES,
    ) -> None:
        """Start empty; frames at or before `missing_seq` will never be here."""
        self._entries: list[Entry] = []
        self._seqs: list[int] = []
        self._start = 0
        self._bytes = 0
        self._missing_seq = missing_seq
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._entries) - self._start

    @property
    def size_bytes(self) -> int:
        """Bytes of all retained frames."""
        return self._bytes

    @property
    def last_seq(self) -> int | None:
        """The newest seq, None before the first frame."""
        return self._seqs[-1] if self._seqs else None

    @property
    def missing_seq(self) -> int:
        """Nothing after this seq is missing."""
        return self._missing_seq

    def append(self, entry: Entry) -> None:
        """Add the newest frame.

        Raises:
            ValueError: its seq is not higher than the last: the caller's order is broken.
        """
        if self._seqs and entry.seq <= self._seqs[-1]:
            raise ValueError(f"seq {entry.seq} after {self._seqs[-1]}")
        self._entries.append(entry)
        self._seqs.append(entry.seq)
        self._bytes += len(entry.frame)
        while len(self) > 1 and (len(self) > self._max_frames or self._bytes > self._max_bytes):
            self._bytes -= len(self._entries[self._start].frame)
            self._missing_seq = self._seqs[self._start]
            self._start += 1
        if self._start >= _SLACK:
            del self._entries[: self._start], self._seqs[: self._start]
            self._start = 0

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """At most `limit` retained frames with a higher seq, in order."""
        first = max(self._start, bisect_right(self._seqs, seq))
        return self._entries[first : first + limit]


class Pace(StrEnum):
    """How a subscription stands."""

    BACKFILLING = "backfilling"  # still reading what was there when it came: may take its time
    LIVE = "live"
    TOO_SLOW = "too-slow"


class Subscription:
    """One client's position in a `Source`."""

    def __init__(
        self, source: Source, wanted: Wanted, position: int, *, max_lag_frames: int = MAX_LAG_FRAMES
    ) -> None:
        """Begin after the seq `position`."""
        self._source = source
        self._wanted = wanted
        self._max_lag_frames = max_lag_frames
        self._changed = asyncio.Event()
        self._is_waiting = False
        self.position = position
        self.lag_frames = 0  # frames for this client published since it was live and not yet taken
        self.pace = Pace.BACKFILLING
        self.lost = asyncio.Event()  # set once it is too slow, also while it is stuck in a send
        self.notices: list[bytes] = []  # frames without a seq, to be sent before the next one

    @property
    def wanted(self) -> Wanted:
        """What the client asked for last."""
        return self._wanted

    def change(self, wanted: Wanted) -> None:
        """Let another filter hold for what was not sent yet."""
        self._catch_up()
        self._wanted = wanted
        self._wake()

    def offer(self, entry: Entry) -> None:
        """Note that `entry`, which this client wants, is now in the source."""
        if self._is_waiting:
            self.position = max(self.position, entry.seq - 1)  # nothing that it waited through was wanted
        if self.pace is Pace.LIVE:
            self.lag_frames += 1
            if self.lag_frames > self._max_lag_frames:
                self.pace = Pace.TOO_SLOW
                self.lost.set()
        self._wake()

    def notify(self, frame: bytes) -> None:
        """Queue a frame that has no seq (an #info) for this client."""
        self.notices.append(frame)
        self._catch_up()
        self._wake()

    def take(self, limit: int) -> list[Entry]:
        """The next wanted frames, at most `limit` looked at; empty when there is nothing to send now."""
        batch = self._source.after(self.position, limit)
        return [entry for entry in batch if self._wanted.matches(entry)] or self._skip(batch)

    def is_lost(self) -> bool:
        """Whether frames that this client has not had are no longer kept."""
        return self.pace is Pace.TOO_SLOW or self.position < self._source.missing_seq

    def sent(self, entry: Entry) -> None:
        """Note that the client has been sent `entry`."""
        self.position = entry.seq
        self.lag_frames = max(0, self.lag_frames - 1)

    async def wait(self) -> None:
        """Wait until there may be something to send."""
        last_seq = self._source.last_seq
        if last_seq is not None and self.position < last_seq:
            return
        if self.pace is Pace.BACKFILLING:
            self.pace = Pace.LIVE
        self.lag_frames = 0
        self._changed.clear()
        self._is_waiting = True
        try:
            await self._changed.wait()
        finally:
            self._catch_up()
            self._is_waiting = False

    def _skip(self, batch: Sequence[Entry]) -> list[Entry]:
        if batch:
            self.position = batch[-1].seq
        return []

    def _catch_up(self) -> None:
        """Whoever waits has had everything that it wants: nobody told it of the rest."""
        if self._is_waiting:
            self.position = max(self.position, self._source.last_seq or 0)

    def _wake(self) -> None:
        self._is_waiting = False
        self._changed.set()
