"""A tap's window on disk: the accepted frames, as a trace, and nothing else.

Everything a tap knows follows from this file, so a tap that is killed at any moment goes on from it: a torn
last record is cut off, and the upstream is asked again from the last whole one.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from firehose.errors import FirehoseError, WindowUnavailable
from firehose.frames import FrameType, encode_info, peek
from firehose.trace import TraceFrame, TraceWriter, read_trace

WINDOW: Final = "window.fht"
LOCK: Final = "window.lock"
# The first record of a window that does not begin where its stream begins.
MARK: Final = encode_info("OutdatedCursor", "frames before this one are not kept")


class WindowFile:
    """The open file; one tap at a time."""

    def __init__(self, directory: Path, *, begins_late: bool) -> None:
        """Open or create directory/window.fht; a torn last record is cut off.

        Args:
            directory: the tap's state; created if it is not there.
            begins_late: a new window begins in the middle of its stream, so frames before it are missing.

        Raises:
            WindowUnavailable: another tap has it, it is damaged before its end, or the disk refuses.
        """
        self.path = directory / WINDOW
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        try:
            self._take_lock()
            self._writer = self._open(self.path)
            if begins_late and next(self.frames(), None) is None:
                self.append(0, MARK)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return self._writer.bytes_written

    def close(self) -> None:
        """Close; another tap may take over."""
        try:
            self._writer.close()
        finally:
            os.close(self._lock)

    def frames(self) -> Iterator[TraceFrame]:
        """Every frame in the file, in order; the mark of a late beginning comes first.

        Raises:
            WindowUnavailable: the file is damaged.
        """
        try:
            yield from read_trace(self.path, tolerate_torn_tail=True)
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(self.path), str(error)) from error

    def append(self, received_us: int, frame: bytes) -> None:
        """Add a frame; afterwards it survives the death of this process.

        Raises:
            WindowUnavailable: the disk refuses, most likely because it is full.
        """
        try:
            self._writer.append(received_us, frame)
            self._writer.flush()
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error

    def compact(self, after_seq: int) -> None:
        """Drop the frames up to `after_seq`: the new file takes the old one's place in one step.

        Raises:
            WindowUnavailable: the disk refuses; the old file stays.
        """
        fresh = self.path.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)
            with TraceWriter(fresh) as writer:
                writer.append(0, MARK)
                for record in self.frames():
                    seen = peek(record.frame)
                    if seen.type is not FrameType.INFO and seen.seq is not None and seen.seq > after_seq:
                        writer.append(record.received_us, record.frame)
                writer.flush(sync=True)
            self._writer.close()
            os.replace(fresh, self.path)
        except OSError as error:
            raise WindowUnavailable(str(self.path), error.strerror or str(error)) from error
        self._writer = self._open(self.path)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WindowUnavailable(
                str(self.path), "another tap has it; give each its own directory"
            ) from None

    def _open(self, path: Path) -> TraceWriter:
        try:
            return TraceWriter(path)
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(path), f"{error}; move it away to start afresh") from error
