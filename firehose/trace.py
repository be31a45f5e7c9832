"""Recorded firehoses: raw frames and when they came, in a file that a crash can only cut short.

The format `.fht`: five bytes `FHT1\\n`, then for each frame its time of receipt (u64, microseconds since
1970), its length (u32), both big-endian, and its bytes exactly as they came off the socket. Append-only, no
index. A process that is killed leaves at most a torn last record, which the next writer cuts off.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from firehose.errors import TraceInvalid
from firehose.frames import MAX_FRAME_BYTES

MAGIC: Final = b"FHT1\n"
HEADER: Final = struct.Struct(">QI")
BUFFER_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFrame:
    """One recorded frame."""

    received_us: int  # microseconds since 1970
    frame: bytes


class TraceWriter:
    """Appends frames to a trace; a context manager that flushes at its end.

    Only what `flush` has written survives the death of the process, and only `flush(sync=True)` that of the
    machine.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the trace at `path`; a torn last record in it is cut off.

        Raises: TraceInvalid: the file is no trace, or is damaged before its end. OSError: it cannot be
        written.
        """
        self.path = path
        self.torn_bytes = 0  # how much was cut off when it was opened
        self.bytes_written = 0  # the length of the file, with what waits to be flushed
        self._file = self._open(path)

    def _open(self, path: Path) -> BinaryIO:
        file = path.open("ab+", buffering=BUFFER_BYTES)
        try:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            end = 0
            for _ in _records(file, str(path), size, torn_is_end=True):
                end = file.tell()
            if end == 0:  # empty, or torn within its first five bytes, or with no whole record yet
                end = len(MAGIC) if size >= len(MAGIC) else 0
            if end < size:
                self.torn_bytes = size - end
                file.truncate(end)
            file.seek(0, os.SEEK_END)
            if end == 0:
                file.write(MAGIC)
                file.flush()
                end = len(MAGIC)
        except BaseException:
            file.close()
            raise
        self.bytes_written = end
        return file

    def append(self, received_us: int, frame: bytes) -> int:
        """Add a frame; `received_us` is in microseconds since 1970.

        Returns: the byte at which its record begins. Raises: ValueError: the frame is empty or over the
        limit.
        """
        if not 0 < len(frame) <= MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(frame)} bytes has no place in a trace")
        start = self.bytes_written
        self._file.write(HEADER.pack(received_us, len(frame)) + frame)
        self.bytes_written = start + HEADER.size + len(frame)
        return start

    def flush(self, *, sync: bool = False) -> None:
        """Hand everything to the operating system; with `sync`, to the disk."""
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_trace(path: Path, *, tolerate_torn_tail: bool = False) -> Iterator[TraceFrame]:
    """The frames of the trace at `path`, in order.

    Args:
        path: the file; it may still be growing.
        tolerate_torn_tail: end quietly before a torn last record, as a killed recorder leaves it.

    Raises: TraceInvalid: where the file is damaged; every frame before that has been given. OSError: it
    cannot be read.
    """
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        yield from _records(file, str(path), size, torn_is_end=tolerate_torn_tail)


def _records(file: BinaryIO, path: str, size: int, *, torn_is_end: bool) -> Iterator[TraceFrame]:
    """Each record up to `size` bytes; after each, the file stands at the next one's first byte."""
    magic = file.read(min(len(MAGIC), size))
    if magic != MAGIC:
        if MAGIC.startswith(magic) and torn_is_end:
            return
        raise TraceInvalid(path, 0, "not a trace: it does not begin with FHT1")
    at = len(MAGIC)
    while at < size:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or at + HEADER.size > size:
            if torn_is_end:
                return
            raise TraceInvalid(path, at, "the last record is torn")
        received_us, length = HEADER.unpack(header)
        if not 0 < length <= MAX_FRAME_BYTES:
            raise TraceInvalid(path, at, f"a record that claims {length} bytes")
        frame = file.read(length)
        if len(frame) < length or at + HEADER.size + length > size:
            if torn_is_end:
                return
            raise TraceInvalid(path, at, "the last record is torn")
        at += HEADER.size + length
        yield TraceFrame(received_us=received_us, frame=frame)
