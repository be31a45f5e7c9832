"""A recorded trace as it is served again: any stretch of it is read when a client asks for it."""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from firehose.errors import FrameInvalid
from firehose.frames import parse_frame, peek
from firehose.segment import Block, read_block
from firehose.serve import entry_of
from firehose.trace import MAGIC, ZSTD_MAGIC, TraceFrame, TraceRecord, open_trace, read_records
from firehose.trace_directory import read_blocks
from firehose.window import Entry

CHUNK_BYTES: Final = 1 << 18  # of a plain trace: what is read at once
CACHED_CHUNKS: Final = 16


@dataclass(frozen=True, slots=True)
class _Chunk:
    after_seq: int  # what is not higher was served before, or is repeated
    max_seq: int
    read: Callable[[], Sequence[TraceRecord]]


class TraceWindow:
    """A `firehose.window.Window` over a trace, which nothing is added to.

    Frames that cannot be read or have no seq are left out, and so is a seq that comes again.
    """

    def __init__(self, path: Path, on_progress: Callable[[int], None] = lambda frames: None) -> None:
        """Look through a trace once.

        Args:
            path: an `.fht` file or a directory of segments.
            on_progress: told now and then how many frames were seen.

        Raises: TraceInvalid: it is damaged. OSError: it cannot be read.
        """
        self._chunks: list[_Chunk] = []
        self._cache: OrderedDict[int, list[Entry]] = OrderedDict()
        self._frames = self.skipped = 0
        self._first_seq = self._last_seq = 0
        for records, read in _chunks_of(path):
            self._note(records, read)
            on_progress(self._frames)

    def _note(self, records: Sequence[TraceRecord], read: Callable[[], Sequence[TraceRecord]]) -> None:
        after_seq = self._last_seq
        for record in records:
            if not isinstance(record, TraceFrame):
                continue
            seq, _ = _seen(record.frame)
            if seq is None or seq <= self._last_seq:
                self.skipped += 1
                continue
            self._frames += 1
            self._last_seq = seq
            self._first_seq = self._first_seq or seq
        if self._last_seq > after_seq:
            self._chunks.append(_Chunk(after_seq, self._last_seq, read))

    def __len__(self) -> int:
        return self._frames

    @property
    def size_bytes(self) -> int:
        """Bytes of the frames in memory."""
        return sum(len(entry.frame) for entries in self._cache.values() for entry in entries)

    @property
    def first_seq(self) -> int | None:
        """The oldest seq, None if there is no frame."""
        return self._first_seq or None

    @property
    def last_seq(self) -> int | None:
        """The newest seq, None if there is no frame."""
        return self._last_seq or None

    @property
    def missing_seq(self) -> int:
        """What came before the trace is not here; seq 1 is the first of any stream."""
        return max(0, self._first_seq - 1)

    def append(self, entry: Entry) -> None:
        """Refuse. Raises: ValueError: always."""
        raise ValueError(f"seq {entry.seq}: a recorded trace is not added to")

    def after(self, seq: int, limit: int) -> Sequence[Entry]:
        """At most `limit` frames with a higher seq, in order. Raises: TraceInvalid, OSError: as at first."""
        number = bisect_right(self._chunks, seq, key=lambda chunk: chunk.max_seq)
        if number == len(self._chunks):
            return []
        entries = self._cache.get(number)
        if entries is None:
            entries = self._cache[number] = list(_entries(self._chunks[number]))
            if len(self._cache) > CACHED_CHUNKS:
                self._cache.popitem(last=False)
        first = bisect_right(entries, seq, key=lambda entry: entry.seq)
        return entries[first : first + limit]


def _entries(chunk: _Chunk) -> Iterator[Entry]:
    last_seq = chunk.after_seq
    for record in chunk.read():
        if not isinstance(record, TraceFrame):
            continue
        seq, did = _seen(record.frame)
        if seq is None or seq <= last_seq:
            continue
        last_seq = seq
        try:
            yield entry_of(record.frame, parse_frame(record.frame))
        except FrameInvalid:  # its seq could be read; what is in it is for a verifier to refuse
            yield Entry(seq, record.frame, did)


def _seen(frame: bytes) -> tuple[int | None, str | None]:
    try:
        seen = peek(frame)
    except FrameInvalid:
        return None, None
    return seen.seq, seen.did


Read = Callable[[], Sequence[TraceRecord]]


def _chunks_of(path: Path) -> Iterator[tuple[Sequence[TraceRecord], Read]]:
    if path.is_dir():
        for records, place in read_blocks(path):
            held = list(records)
            yield held, _reader_of_block(*place) if place is not None else _reader_of_memory(held)
        return
    with path.open("rb") as file:
        is_compressed = file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
    if is_compressed:
        whole = list(open_trace(path))  # nobody says where its parts begin
        yield whole, _reader_of_memory(whole)
        return
    with path.open("rb") as file:
        size, start, chunk = os.fstat(file.fileno()).st_size, len(MAGIC), []
        for end, record in read_records(file, str(path), size, torn_is_end=False):
            chunk.append(record)
            if end - start >= CHUNK_BYTES or end == size:
                yield chunk, _reader_of_bytes(path, start, end)
                start, chunk = end, []


def _reader_of_block(segment: Path, block: Block) -> Read:
    return lambda: read_block(segment, block)


def _reader_of_memory(records: Sequence[TraceRecord]) -> Read:
    return lambda: records


def _reader_of_bytes(path: Path, start: int, end: int) -> Read:
    def read() -> Sequence[TraceRecord]:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(end - start)
        records = read_records(BytesIO(content), str(path), end - start, torn_is_end=False, has_magic=False)
        return [record for _, record in records]

    return read
