"""A trace in a directory: compressed segments that rotate, and a plain tail that no kill can tear.

    000000000001.fht.zst        blocks (`firehose.segment`), appended to until it is large or old enough
    000000000001.idx            where each block is, by seq and time; made again where it does not fit
    000000000002-000000131072.tail   what comes after byte 131,072 of segment 2, as a plain `.fht`

A frame is in the tail as soon as it is appended. A full tail is compressed into its segment, then the next
tail is begun, then the old one is deleted; so whatever moment a process dies at, the newest tail says where
its segment ends, and everything after that is in the tail.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from firehose.segment import (
    BLOCK_BYTES,
    Block,
    Tally,
    compressed,
    index_path,
    load_index,
    read_block,
    remove,
    save_index,
    seq_of,
)
from firehose.trace import (
    MAGIC,
    TraceFrame,
    TraceRecord,
    TraceWriter,
    frame_record,
    note_record,
    open_trace,
    write_all,
)
from firehose.trace_directory import listed, segment_path, state_path, tail_path

log = logging.getLogger(__name__)

SYNC_EVERY_S: Final = 5.0  # what a machine that loses power may lose; a killed process loses nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """When a segment is closed, and which are kept."""

    segment_bytes: int = 64 * 1024 * 1024  # compressed
    segment_s: float = 3600.0
    block_bytes: int = BLOCK_BYTES  # of records; the most that has to be read for one frame
    keep_bytes: int | None = None  # of all closed segments, compressed; None: all
    keep_s: float | None = None  # since the last frame of a segment came
    keep_segments: int | None = None  # closed ones


@dataclass(frozen=True, slots=True)
class Place:
    """A block in a directory."""

    segment: int
    block: Block


class SegmentWriter:
    """Appends to a trace in a directory; one at a time. A context manager."""

    def __init__(
        self,
        directory: Path,
        limits: TraceLimits | None = None,
        *,
        state: Callable[[], bytes] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open or create; what a killed writer left half done is finished or undone.

        Args:
            directory: of the trace.
            limits: sizes and retention.
            state: what is kept beside each new segment: what its reader has to know of what came before.
            monotonic: seconds, for how often the disk is synced.

        Raises: TraceInvalid: a segment is damaged. BlockingIOError: somebody else writes it. OSError: the
        disk refuses.
        """
        self.directory = directory
        self.limits = limits or TraceLimits()
        self._state = state
        self._monotonic = monotonic
        self._synced_s = monotonic()
        self.dropped_seq: int | None = None  # the highest seq in what was deleted, since it was opened
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    def _recover(self) -> None:
        numbers, tails = listed(self.directory)
        number, offset = max(tails, default=(numbers[-1] if numbers else 1, None))
        self.blocks: dict[int, list[Block]] = {}
        for known in numbers:
            segment = segment_path(self.directory, known)
            self.blocks[known] = load_index(segment, offset if known == number else None)
            if known == number:
                self._open_last(segment, offset)
            elif not index_path(segment).exists():
                save_index(segment, self.blocks[known])
        blocks = self.blocks.setdefault(number, [])
        self._number, self._offset = number, blocks[-1].end if blocks else 0
        if offset is not None and offset > self._offset:
            log.error(
                "blocks are missing", extra={"trace": str(self.directory), "bytes": offset - self._offset}
            )
            os.replace(tail_path(self.directory, number, offset), self._tail_path())
        self.places = [Place(known, block) for known in sorted(self.blocks) for block in self.blocks[known]]
        self._begin_tail()
        for tail in tails:
            if tail != (number, self._offset) and tail != (number, offset):
                tail_path(self.directory, *tail).unlink()

    def _open_last(self, segment: Path, offset: int | None) -> None:
        """Cut off what the tail has again, or what is torn; the index follows."""
        blocks = self.blocks[int(segment.name[:12])]
        if offset is not None:
            blocks[:] = [block for block in blocks if block.end <= offset]
        end = blocks[-1].end if blocks else 0
        if segment.stat().st_size > end:
            os.truncate(segment, end)
        save_index(segment, blocks)

    def _begin_tail(self) -> None:
        """Open the tail at the present place; what is in it already is counted."""
        tail = TraceWriter(self._tail_path())
        self._tail = tail
        self._parts: list[bytes] = []
        blocks = self.blocks[self._number]
        self._tally = Tally(max_seq=blocks[-1].max_seq, last_us=blocks[-1].last_us) if blocks else Tally()
        if tail.bytes_written > len(MAGIC):
            for record in open_trace(tail.path):
                if isinstance(record, TraceFrame):
                    self._tally.frame(record.received_us, seq_of(record.frame))
            self._parts.append(tail.path.read_bytes()[len(MAGIC) :])

    @property
    def size_bytes(self) -> int:
        """Of all segments and the tail."""
        sealed = sum(blocks[-1].end for blocks in self.blocks.values() if blocks)
        return sealed + self._tail.bytes_written

    @property
    def last_seq(self) -> int:
        """The highest seq; 0: there is none."""
        numbers = sorted(self.blocks)
        return max(
            [
                self._tally.max_seq,
                *(self.blocks[number][-1].max_seq for number in numbers if self.blocks[number]),
            ]
        )

    def append(
        self, received_us: int, frame: bytes, *, seq: int | None = None, note: dict[str, Any] | None = None
    ) -> None:
        """Add a frame, and a note before it; afterwards they survive the death of this process.

        Args:
            received_us: microseconds since 1970.
            frame: as received.
            seq: of the frame; None: it is looked up, if it has one.
            note: fields of a note that belongs to the frame.

        Raises: ValueError: the frame or note is out of bounds. OSError: the disk refuses; nothing was added.
        """
        record = frame_record(received_us, frame)
        if note is not None:
            record = note_record(received_us, note) + record
        self._add(record, received_us)
        self._tally.frame(received_us, seq_of(frame) if seq is None else seq)

    def note(self, received_us: int, fields: dict[str, Any]) -> None:
        """Add a note by itself. Raises: as `append`."""
        self._add(note_record(received_us, fields), received_us)

    def _add(self, record: bytes, received_us: int) -> None:
        waiting = self._tail.bytes_written - len(MAGIC)
        if waiting and waiting + len(record) > self.limits.block_bytes:
            self._seal()
        self._tail.add(record)
        self._tail.flush()
        self._parts.append(record)

    def flush(self, *, sync: bool = False) -> None:
        """Nothing: each frame is flushed as it comes; with `sync`, to the disk."""
        if sync:
            self._tail.flush(sync=True)

    def _seal(self) -> None:
        """Compress the tail into its segment, and begin the next one; as a whole, or not at all."""
        number, offset = self._number, self._offset
        raw = b"".join([MAGIC if offset == 0 else b"", *self._parts])
        data = compressed(raw)
        block = self._tally.block(offset, len(data))
        segment = segment_path(self.directory, number)
        self._put(segment, offset, data)
        self._put(index_path(segment), len(self.blocks[number]) * len(block.packed()), block.packed())
        is_last = self._is_full(block)
        place = (number + 1, 0) if is_last else (number, block.end)
        if is_last and self._state is not None:
            _write_whole(state_path(self.directory, place[0]), self._state())
        old, fresh = self._tail, _new_tail(tail_path(self.directory, *place))
        # From here on the new tail counts, for whoever opens the directory after a kill too.
        self.blocks[number].append(block)
        self.places.append(Place(number, block))
        self._number, self._offset = place
        self._tail, self._parts, self._tally = fresh, [], self._tally.next()
        self.blocks.setdefault(place[0], [])
        old.close()
        old.path.unlink()
        if is_last:
            self._retain(block.last_us)

    def _put(self, path: Path, size: int, data: bytes) -> None:
        """Append to a file of `size` bytes; what an undone try left after them is cut off."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
            write_all(fd, data, size)
            if self._monotonic() - self._synced_s >= SYNC_EVERY_S:
                os.fdatasync(fd)
                self._synced_s = self._monotonic()
        finally:
            os.close(fd)

    def _is_full(self, block: Block) -> bool:
        first_us = self.blocks[self._number][0].first_us if self.blocks[self._number] else block.first_us
        return (
            block.end >= self.limits.segment_bytes
            or block.last_us - first_us >= self.limits.segment_s * 1_000_000
        )

    def _retain(self, now_us: int) -> None:
        """Delete the oldest segments that no limit keeps."""
        while self._is_too_much(now_us):
            self.drop_oldest()

    def _is_too_much(self, now_us: int) -> bool:
        closed = [number for number in sorted(self.blocks) if number != self._number and self.blocks[number]]
        if not closed:
            return False
        limits, last_us = self.limits, self.blocks[closed[0]][-1].last_us
        size = sum(self.blocks[number][-1].end for number in closed)
        return (
            (limits.keep_bytes is not None and size > limits.keep_bytes)
            or (limits.keep_segments is not None and len(closed) > limits.keep_segments)
            or (limits.keep_s is not None and now_us - last_us > limits.keep_s * 1_000_000)
        )

    def drop_oldest(self) -> bool:
        """Delete the oldest closed segment, to make room; False: there is none."""
        number = min(self.blocks)
        if number == self._number:
            return False
        blocks = self.blocks.pop(number)
        del self.places[: len(blocks)]
        remove(segment_path(self.directory, number))
        if blocks and blocks[-1].max_seq:
            self.dropped_seq = max(self.dropped_seq or 0, blocks[-1].max_seq)
        log.info("segment dropped", extra={"trace": str(self.directory), "segment": number})
        return True

    # reading what this writer has written

    def read(self, place: Place) -> list[TraceRecord]:
        """The records of a block. Raises: TraceInvalid, OSError."""
        return read_block(segment_path(self.directory, place.segment), place.block)

    def tail_records(self) -> list[TraceRecord]:
        """The records that are in no block yet."""
        return list(open_trace(self._tail.path))

    def close(self) -> None:
        """Close; somebody else may go on. Closing twice does nothing."""
        if self._lock >= 0:
            try:
                self._tail.close()
            finally:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tail_path(self) -> Path:
        return tail_path(self.directory, self._number, self._offset)


def _new_tail(path: Path) -> TraceWriter:
    try:
        return TraceWriter(path)
    except OSError:
        path.unlink(missing_ok=True)  # the old one still counts
        raise


def _write_whole(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
