"""Recorded firehoses: raw frames and when they came, in a file that a crash can only cut short.

The format `.fht`: five bytes `FHT1\\n`, then for each frame its time of receipt (u64, microseconds since
1970), its length (u32), both big-endian, and its bytes exactly as they came off the socket. Append-only, no
index. A process that is killed leaves at most a torn last record, which the next writer cuts off.

The same, compressed and in segments with an index, is `firehose.segments`; `read_trace` reads both. There, a
length with its highest bit set begins a note instead of a frame: the recorder's own words, as JSON (documents
that the verifier was given, frames that were lost while the disk was full, …; `firehose.notes`).
"""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

from firehose.errors import TraceInvalid
from firehose.frames import MAX_FRAME_BYTES, route

MAGIC: Final = b"FHT1\n"
HEADER: Final = struct.Struct(">QI")
BUFFER_BYTES: Final = 1 << 18
NOTE_BIT: Final = 1 << 31  # of a record's length
MAX_NOTE_BYTES: Final = 1 << 20  # a DID document is read up to 256 KiB
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFrame:
    """One recorded frame."""

    received_us: int  # microseconds since 1970
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNote:
    """What the recorder says itself, between two frames."""

    received_us: int
    fields: dict[str, Any]


TraceRecord = TraceFrame | TraceNote


class Reads(Protocol):
    """What records are read from: a file, or what a decompressor makes of one."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, less only at the end."""


def frame_record(received_us: int, frame: bytes) -> bytes:
    """A frame as it stands in a trace.

    Raises: ValueError: the frame is empty or over the limit.
    """
    if not 0 < len(frame) <= MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(frame)} bytes has no place in a trace")
    return HEADER.pack(received_us, len(frame)) + frame


def note_record(received_us: int, fields: dict[str, Any]) -> bytes:
    """A note as it stands in a trace. Raises: ValueError: it is over the limit."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MAX_NOTE_BYTES:
        raise ValueError(f"a note of {len(text)} bytes has no place in a trace")
    return HEADER.pack(received_us, len(text) | NOTE_BIT) + text


class TraceWriter:
    """Appends frames to a trace; a context manager that flushes at its end.

    Only what `flush` has written survives the death of the process, and only `flush(sync=True)` that of the
    machine. A `flush` that fails leaves the file as it was, and drops what it should have written.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the trace at `path`; a torn last record in it is cut off.

        Raises: TraceInvalid: the file is no trace, or is damaged before its end. OSError: it cannot be
        written.
        """
        self.path = path
        self.torn_bytes = 0  # how much was cut off when it was opened
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._flushed = self._repair(self._fd)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def bytes_written(self) -> int:
        """The length of the file, with what waits to be flushed."""
        return self._flushed + self._waiting_bytes

    def _repair(self, fd: int) -> int:
        """Cut a torn end off and begin an empty file; returns the length."""
        with open(fd, "rb", buffering=BUFFER_BYTES, closefd=False) as file:
            size, end = os.fstat(fd).st_size, 0
            for after, _ in read_records(file, str(self.path), size, torn_is_end=True):
                end = after
        if end == 0:  # empty, or torn within its first five bytes, or with no whole record yet
            end = len(MAGIC) if size >= len(MAGIC) else 0
        if end < size:
            self.torn_bytes = size - end
            os.ftruncate(fd, end)
        if end == 0:
            write_all(fd, MAGIC, 0)
            end = len(MAGIC)
        return end

    def append(self, received_us: int, frame: bytes) -> int:
        """Add a frame; `received_us` is in microseconds since 1970.

        Returns: the byte at which its record begins. Raises: ValueError: the frame is empty or over the
        limit.
        """
        return self.add(frame_record(received_us, frame))

    def add(self, record: bytes) -> int:
        """Add what `frame_record` or `note_record` made; returns the byte at which it begins."""
        start = self.bytes_written
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        if self._waiting_bytes >= BUFFER_BYTES:
            self.flush()
        return start

    def flush(self, *, sync: bool = False) -> None:
        """Hand everything to the operating system; with `sync`, to the disk. Raises: OSError: it refuses."""
        fd = self._opened()
        waiting, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        if waiting:
            write_all(fd, waiting, self._flushed)
            self._flushed += len(waiting)
        if sync:
            os.fsync(fd)

    def close(self) -> None:
        """Flush and close; closing twice does nothing."""
        if self._fd is not None:
            try:
                self.flush()
            finally:
                os.close(self._fd)
                self._fd = None

    def _opened(self) -> int:
        if self._fd is None:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_all(fd: int, data: bytes, size: int) -> None:
    """Append `data` to a file of `size` bytes, whole or not at all. Raises: OSError: the disk refuses."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, size)  # half a record must not stand before the next one
        raise


def read_trace(
    path: Path,
    *,
    tolerate_torn_tail: bool = False,
    after_seq: int | None = None,
    from_us: int | None = None,
) -> Iterator[TraceFrame]:
    """The frames of the trace at `path`, in order: an `.fht` file, a compressed one, or a directory of them.

    Args:
        path: the file or directory; it may still be growing.
        tolerate_torn_tail: end quietly before a torn last record, as a killed recorder leaves it.
        after_seq: begin with the first frame that has a higher seq.
        from_us: begin with the first frame of that time of receipt or later, in microseconds since 1970.

    Raises: TraceInvalid: where the file is damaged; every frame before that has been given. OSError: it
    cannot be read.
    """
    for record in open_trace(
        path, tolerate_torn_tail=tolerate_torn_tail, after_seq=after_seq, from_us=from_us
    ):
        if isinstance(record, TraceFrame):
            yield record


def open_trace(
    path: Path,
    *,
    tolerate_torn_tail: bool = False,
    after_seq: int | None = None,
    from_us: int | None = None,
) -> Iterator[TraceRecord]:
    """Frames and notes of the trace at `path`. Args and errors: as `read_trace`."""
    records = _all_records(path, tolerate_torn_tail, after_seq, from_us)
    if after_seq is not None or from_us is not None:
        for record in records:
            if isinstance(record, TraceFrame) and _is_start(record, after_seq, from_us):
                yield record
                break
    yield from records


def _is_start(record: TraceFrame, after_seq: int | None, from_us: int | None) -> bool:
    if from_us is not None and record.received_us < from_us:
        return False
    if after_seq is None:
        return True
    found = route(record.frame)
    return found is not None and found[0] > after_seq


def _all_records(
    path: Path, tolerate_torn_tail: bool, after_seq: int | None, from_us: int | None
) -> Iterator[TraceRecord]:
    """Frames and notes; where there is an index, not much more than what was asked for."""
    if path.is_dir():
        # Here, because zstandard is not for everybody who reads a plain file.
        from firehose.trace_directory import read_segments

        yield from read_segments(
            path, tolerate_torn_tail=tolerate_torn_tail, after_seq=after_seq, from_us=from_us
        )
        return
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        is_compressed = file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
        file.seek(0)
        if is_compressed:
            from firehose.trace_directory import read_compressed

            yield from read_compressed(file, str(path), tolerate_torn_tail=tolerate_torn_tail)
            return
        size = os.fstat(file.fileno()).st_size
        for _, record in read_records(file, str(path), size, torn_is_end=tolerate_torn_tail):
            yield record


def read_records(
    file: Reads | BinaryIO, path: str, size: int | None, *, torn_is_end: bool, has_magic: bool = True
) -> Iterator[tuple[int, TraceRecord]]:
    """Each record with the byte after it, up to `size` bytes or the end.

    Raises: TraceInvalid: it is damaged; torn at its end too, unless that `torn_is_end`.
    """
    at = 0
    limit = size if size is not None else 1 << 62
    if has_magic:
        magic = file.read(min(len(MAGIC), limit))
        if magic != MAGIC:
            if MAGIC.startswith(magic) and torn_is_end:
                return
            raise TraceInvalid(path, 0, "not a trace: it does not begin with FHT1")
        at = len(MAGIC)
    while at < limit:
        header = file.read(HEADER.size)
        if size is None and not header:
            return
        if len(header) == HEADER.size and at + HEADER.size <= limit:
            received_us, length = HEADER.unpack(header)
            is_note, length = bool(length & NOTE_BIT), length & ~NOTE_BIT
            if not 0 < length <= (MAX_NOTE_BYTES if is_note else MAX_FRAME_BYTES):
                raise TraceInvalid(path, at, f"a record that claims {length} bytes")
            content = file.read(length)
            end = at + HEADER.size + length
            if len(content) == length and end <= limit:
                yield end, _record(path, at, received_us, content, is_note=is_note)
                at = end
                continue
        if torn_is_end:
            return
        raise TraceInvalid(path, at, "the last record is torn")


def _record(path: str, at: int, received_us: int, content: bytes, *, is_note: bool) -> TraceRecord:
    if not is_note:
        return TraceFrame(received_us=received_us, frame=content)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise TraceInvalid(path, at, "a note that is no JSON object")
    return TraceNote(received_us=received_us, fields=fields)
