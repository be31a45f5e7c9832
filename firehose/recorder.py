"""A tap's own trace of everything that it receives; when the disk is full, of what was lost."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from firehose.frames import encode_info
from firehose.notes import GAP
from firehose.segment import seq_of
from firehose.segments import SegmentWriter, TraceLimits
from firehose.trace import MAGIC, TraceWriter

log = logging.getLogger(__name__)

KEEP_ALL: Final = TraceLimits()  # a trace grows until its owner says otherwise


@dataclass(slots=True)
class Lost:
    """Frames that came and are not in the trace."""

    count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    reason: str = ""

    def frame(self, seq: int | None, reason: str) -> None:
        """Count one."""
        self.count += 1
        self.reason = reason
        if seq is not None:
            self.first_seq = seq if self.first_seq is None else self.first_seq
            self.last_seq = seq

    def told(self) -> dict[str, Any]:
        """As a note's fields, and for people."""
        return {
            "count": self.count,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "reason": self.reason,
        }


class Recorder:
    """Appends frames and notes; a disk that refuses never stops the stream. A context manager.

    What could not be written is counted, and the next frame that can be has a note before it that says so:
    a gap, with its first and last seq. A plain `.fht` holds frames and nothing else, so that anybody can read
    it: there a gap is an #info frame, and other notes are left out.
    """

    def __init__(self, path: Path, limits: TraceLimits = KEEP_ALL) -> None:
        """Open or create: an `.fht` file, or by any other name a directory of segments.

        Raises: TraceInvalid: what is there is no trace. OSError: it cannot be written.
        """
        self.path = path
        self._writer: TraceWriter | SegmentWriter
        if path.suffix == ".fht" and not path.is_dir():
            self._writer = TraceWriter(path)
        else:
            self._writer = SegmentWriter(path, limits)
        self.is_new = (
            self._writer.bytes_written <= len(MAGIC)
            if isinstance(self._writer, TraceWriter)
            else (not self._writer.places and not self._writer.tail_records())
        )
        self.lost = Lost()  # altogether
        self._gap = Lost()  # since the last frame that could be written
        self._notes: list[dict[str, Any]] = []  # that wait for the disk

    def frame(self, received_us: int, frame: bytes) -> None:
        """Record a frame, or that it was lost."""
        seq = seq_of(frame)
        # In one write with the frame: marks of a gap must not take the room that is left.
        gap = {"kind": "gap", **self._gap.told()} if self._gap.count else None
        try:
            self._catch_up(received_us)
            if isinstance(self._writer, TraceWriter):
                if gap is not None:
                    self._writer.append(received_us, encode_info(GAP, json.dumps(gap)))
                self._writer.append(received_us, frame)
                self._writer.flush()
            else:
                self._writer.append(received_us, frame, seq=seq, note=gap)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if self._gap.count == 0:
                log.error("frames are not recorded", extra={"trace": str(self.path), "reason": reason})
            self._gap.frame(seq, reason)
            self.lost.frame(seq, reason)
            return
        if gap is not None:
            log.warning("recording again", extra={"trace": str(self.path), **gap})
            self._gap = Lost()

    def note(self, received_us: int, kind: str, **fields: Any) -> None:
        """Record something of our own; it waits while the disk refuses."""
        if isinstance(self._writer, TraceWriter):
            return
        self._notes.append({"kind": kind, **fields})
        try:
            self._catch_up(received_us)
        except OSError:
            log.debug("a note waits for the disk", extra={"trace": str(self.path)})

    def stats(self) -> dict[str, Any]:
        """Where it records, and what it could not."""
        told: dict[str, Any] = {"path": str(self.path)}
        return told | {"lost": self.lost.told()} if self.lost.count else told

    def close(self) -> None:
        """Say of a gap at the end, if the disk takes it by now, and close."""
        try:
            self._catch_up(0)
            if self._gap.count:
                self._write(0, {"kind": "gap", **self._gap.told()})
        except OSError as error:
            log.error("the trace ends in a gap", extra={"trace": str(self.path), "reason": str(error)})
        finally:
            self._writer.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _catch_up(self, received_us: int) -> None:
        """Write the notes that wait. Raises: OSError: the disk still refuses."""
        while self._notes:
            self._write(received_us, self._notes[0])
            self._notes.pop(0)

    def _write(self, received_us: int, fields: dict[str, Any]) -> None:
        if isinstance(self._writer, TraceWriter):
            self._writer.append(received_us, encode_info(GAP, json.dumps(fields)))
            self._writer.flush()
        else:
            self._writer.note(received_us, fields)
