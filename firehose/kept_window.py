"""A tap's window: what it passed on, on disk as far back as it is kept, the newest of it in memory as well.

On disk it is a trace in segments (`firehose.segments`), and a tap's only state: one that is killed at any
moment goes on from it. Beside each segment stands what was known of the accounts when it began, so that a
start reads no more than what goes into memory.
"""

import errno
import logging
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from firehose.errors import FirehoseError, TraceInvalid, WindowUnavailable
from firehose.frames import FrameType, parse_frame, peek
from firehose.segments import SegmentWriter, TraceLimits
from firehose.serve import entry_of
from firehose.trace import TraceFrame, TraceNote, TraceRecord, read_trace
from firehose.trace_directory import state_path
from firehose.window import MAX_WINDOW_BYTES, Entry, FrameWindow

log = logging.getLogger(__name__)

WINDOW: Final = "window"
OLD_WINDOW: Final = "window.fht"  # of skylease before 0.2: one plain file
SEGMENT_BYTES: Final = 16 * 1024 * 1024
KEEP_BYTES: Final = 1024 * 1024 * 1024
LIMITS: Final = TraceLimits(segment_bytes=SEGMENT_BYTES, keep_bytes=KEEP_BYTES)
CACHED_BLOCKS: Final = 8  # clients that read far back read the same ones, more or less
ACCEPTED: Final = ("accept", "ok")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A frame of the window, and the verdict that it was passed on with."""

    received_us: int
    frame: bytes
    verdict: str
    reason: str


class KeptWindow:
    """The `firehose.window.Window` of a tap; one tap at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        begins_late: bool,
        memory_bytes: int = MAX_WINDOW_BYTES,
        limits: TraceLimits = LIMITS,
        state: Callable[[], bytes] | None = None,
    ) -> None:
        """Open or create directory/window.

        Args:
            directory: the tap's state; created if it is not there.
            begins_late: a new window begins in the middle of its stream, so frames before it are missing.
            memory_bytes: of frames that are kept in memory.
            limits: of what is kept on disk.
            state: what a later start needs to know besides the frames from here on.

        Raises:
            WindowUnavailable: another tap has it, it is damaged, or the disk refuses.
        """
        self.path = directory / WINDOW
        self._state = state
        self._memory_bytes = memory_bytes
        self._blocks: OrderedDict[tuple[int, int], list[Entry]] = OrderedDict()
        try:
            self._writer = SegmentWriter(self.path, limits, state=state)
        except BlockingIOError:
            raise WindowUnavailable(
                str(self.path), "another tap has it; give each its own directory"
            ) from None
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(self.path), f"{error}; move it away to start afresh") from error
        try:
            self._take_over(directory / OLD_WINDOW)
            first = next(self._records(0), None)
            if first is None and begins_late:
                self._writer.note(0, {"kind": "late"})
            self._is_late = begins_late if first is None else self._begins_late(first)
            self._missing_seq = self._first_seq() - 1 if self._is_late and self._first_seq() else 0
        except BaseException:
            self._writer.close()
            raise
        self._memory = FrameWindow(missing_seq=self._missing_seq, max_bytes=memory_bytes)

    def close(self) -> None:
        """Close; another tap may take over."""
        self._writer.close()

    # what an earlier run left

    def saved_state(self) -> bytes | None:
        """What was known before the first frame of `restored`; None: nothing."""
        number = self._start_segment()
        try:
            return state_path(self.path, number).read_bytes()
        except OSError:
            return None

    def restored(self) -> Iterator[Kept]:
        """The frames that go into memory, oldest first; `restore` each of them.

        Raises: WindowUnavailable: the window is damaged.
        """
        mark = ACCEPTED
        for record in self._records(self._start_segment()):
            if isinstance(record, TraceNote):
                mark = _mark(record) or mark
                continue
            yield Kept(received_us=record.received_us, frame=record.frame, verdict=mark[0], reason=mark[1])
            mark = ACCEPTED

    def restore(self, entry: Entry) -> None:
        """Take a frame of `restored` into memory."""
        if len(self._memory) == 0 and self._start_segment() != min(self._writer.blocks):
            self._memory = FrameWindow(missing_seq=entry.seq - 1, max_bytes=self._memory_bytes)
        self._memory.append(entry)

    # what comes

    def write(self, received_us: int, entry: Entry) -> None:
        """Put a frame on disk; afterwards it survives the death of this process.

        Raises:
            WindowUnavailable: the disk refuses, most likely because it is full.
        """
        note = None
        if entry.verdict is not None and (entry.verdict, entry.reason) != ACCEPTED:
            note = {"kind": "mark", "verdict": entry.verdict, "reason": entry.reason}
        while True:
            try:
                self._writer.append(received_us, entry.frame, seq=entry.seq, note=note)
                break
            except OSError as error:
                # Old frames give way to new ones before the stream stops.
                if error.errno not in _FULL or not self._writer.drop_oldest():
                    raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        if self._is_late and self.last_seq is None:
            self._missing_seq = entry.seq - 1

    def append(self, entry: Entry) -> None:
        """Take a frame that was written into memory.

        Raises:
            ValueError: its seq is not higher than the last.
        """
        if len(self._memory) == 0 and self._missing_seq:
            self._memory = FrameWindow(missing_seq=self._missing_seq, max_bytes=self._memory_bytes)
        self._memory.append(entry)

    # the source that is served

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def size_bytes(self) -> int:
        """Bytes of the frames in memory."""
        return self._memory.size_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of all that is kept."""
        return self._writer.size_bytes

    @property
    def last_seq(self) -> int | None:
        """The newest seq, None before the first frame."""
        return self._memory.last_seq

    @property
    def missing_seq(self) -> int:
        """Nothing after this seq is missing, on disk."""
        return max(self._missing_seq, self._writer.dropped_seq or 0)

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """At most `limit` frames with a higher seq, from memory or, when older, from disk.

        Raises: WindowUnavailable: what is on disk cannot be read.
        """
        if seq >= self._memory.missing_seq:
            return self._memory.after(seq, limit)
        places = self._writer.places
        number = bisect_right(places, seq, key=lambda place: place.block.max_seq)
        if number == len(places):
            return self._tail_after(seq, limit)
        place = places[number]
        key = (place.segment, place.block.offset)
        entries = self._blocks.get(key)
        if entries is None:
            entries = self._blocks[key] = self._entries(lambda: self._writer.read(place))
            if len(self._blocks) > CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        first = bisect_right(entries, seq, key=lambda entry: entry.seq)
        return entries[first : first + limit]

    def _tail_after(self, seq: int, limit: int) -> Sequence[Entry]:
        entries = self._entries(self._writer.tail_records)
        first = bisect_right(entries, seq, key=lambda entry: entry.seq)
        return entries[first : first + limit] or self._memory.after(seq, limit)

    def _entries(self, read: Callable[[], list[TraceRecord]]) -> list[Entry]:
        entries, mark = [], ACCEPTED
        try:
            for record in read():
                if isinstance(record, TraceNote):
                    mark = _mark(record) or mark
                    continue
                entries.append(entry_of(record.frame, parse_frame(record.frame), *mark))
                mark = ACCEPTED
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(self.path), str(error)) from error
        return entries

    # the beginning

    def _start_segment(self) -> int:
        """Where memory begins: the segments from there on hold as much, and what came before is known."""
        size, numbers = 0, sorted(self._writer.blocks)
        for number in reversed(numbers):
            blocks = self._writer.blocks[number]
            size += blocks[-1].end if blocks else 0
            if size >= self._memory_bytes and state_path(self.path, number).exists():
                return number
        return numbers[0]

    def _records(self, start: int) -> Iterator[TraceRecord]:
        try:
            for place in list(self._writer.places):
                if place.segment >= start:
                    yield from self._writer.read(place)
            yield from self._writer.tail_records()
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(self.path), f"{error}; move it away to start afresh") from error

    def _begins_late(self, first: TraceRecord) -> bool:
        is_said = isinstance(first, TraceNote) and first.fields.get("kind") == "late"
        return is_said or min(self._writer.blocks) > 1

    def _first_seq(self) -> int:
        for record in self._records(0):
            if isinstance(record, TraceFrame):
                return peek(record.frame).seq or 0
        return 0

    def _take_over(self, old: Path) -> None:
        """Read the one file that an earlier version kept, and delete it; a kill on the way loses nothing."""
        if not old.exists():
            return
        log.info("taking over the window of an earlier version", extra={"path": str(old)})
        try:
            have = self._writer.last_seq
            for record in read_trace(old, tolerate_torn_tail=True):
                seen = peek(record.frame)
                if seen.type is FrameType.INFO and have == 0:
                    self._writer.note(0, {"kind": "late"})
                elif seen.seq is not None and seen.seq > have:
                    self._writer.append(record.received_us, record.frame, seq=seen.seq)
            self._writer.flush(sync=True)
            os.unlink(old)
        except (OSError, TraceInvalid) as error:
            raise WindowUnavailable(str(old), f"{error}; move it away to start afresh") from error


def _mark(note: TraceNote) -> tuple[str, str] | None:
    fields: dict[str, Any] = note.fields
    if fields.get("kind") != "mark":
        return None
    return str(fields.get("verdict")), str(fields.get("reason"))
