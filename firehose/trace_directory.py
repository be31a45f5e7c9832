"""Where the parts of a trace in a directory are, and how they are read; `firehose.segments` writes them."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from firehose.errors import TraceInvalid
from firehose.segment import Block, load_index, read_block
from firehose.trace import TraceRecord, open_trace, read_records

_SEGMENT: Final = re.compile(r"^(\d{12})\.fht\.zst$")
_TAIL: Final = re.compile(r"^(\d{12})-(\d{12,})\.tail$")


def segment_path(directory: Path, number: int) -> Path:
    """Where a segment is."""
    return directory / f"{number:012}.fht.zst"


def state_path(directory: Path, number: int) -> Path:
    """What belongs to the beginning of a segment."""
    return directory / f"{number:012}.state"


def tail_path(directory: Path, number: int, offset: int) -> Path:
    return directory / f"{number:012}-{offset:012}.tail"


def listed(directory: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """The numbers of the segments, and the tails as segment and offset; both in order."""
    numbers, tails = [], []
    for name in os.listdir(directory):
        if match := _SEGMENT.match(name):
            numbers.append(int(match[1]))
        elif match := _TAIL.match(name):
            tails.append((int(match[1]), int(match[2])))
    return sorted(numbers), sorted(tails)


def is_trace_directory(directory: Path) -> bool:
    """Whether there is a trace in a directory."""
    return directory.is_dir() and any(listed(directory))


def read_segments(
    directory: Path,
    *,
    tolerate_torn_tail: bool = False,
    after_seq: int | None = None,
    from_us: int | None = None,
) -> Iterator[TraceRecord]:
    """The records of the trace in a directory, in order, while it may be growing.

    Args:
        directory: of the trace.
        tolerate_torn_tail: end quietly where the last block or record is torn.
        after_seq: begin with the block in which the first higher seq is: some frames before that come too.
        from_us: begin with the block in which the first frame of that time or later is (same).

    Raises: TraceInvalid: it is damaged, or there is none. OSError: it cannot be read.
    """
    for records, _ in read_blocks(
        directory, tolerate_torn_tail=tolerate_torn_tail, after_seq=after_seq, from_us=from_us
    ):
        yield from records


def read_blocks(
    directory: Path,
    *,
    tolerate_torn_tail: bool = False,
    after_seq: int | None = None,
    from_us: int | None = None,
) -> Iterator[tuple[Sequence[TraceRecord], tuple[Path, Block] | None]]:
    """The same block by block, each with where it is; None for what is in no block yet."""
    number, offset = -1, 0  # what was read
    while True:
        numbers, tails = listed(directory)
        if not numbers and not tails:
            raise TraceInvalid(str(directory), 0, "not a trace: there are no segments in it")
        end = tails[-1] if tails else (numbers[-1], None)
        for known in numbers:
            if known < number or known > end[0]:
                continue
            if number >= 0 and known > number + 1:
                raise TraceInvalid(str(directory), 0, f"segment {number + 1} is missing")
            if known > number:
                number, offset = known, 0
            limit = end[1] if known == end[0] else None
            segment = segment_path(directory, known)
            for block in _blocks_of(directory, known, offset, limit, tolerate_torn_tail):
                if not _is_before(block, after_seq, from_us):
                    yield read_block(segment, block), (segment, block)
                offset = block.end
        if not tails:
            return
        try:
            # Read before it is known to be the last: if it is gone by now, it is in its segment.
            tail = tail_path(directory, *tails[-1])
            yield list(open_trace(tail, tolerate_torn_tail=tolerate_torn_tail)), None
        except FileNotFoundError:
            continue
        return


def _is_before(block: Block, after_seq: int | None, from_us: int | None) -> bool:
    if after_seq is not None and block.max_seq <= after_seq:
        return True
    return from_us is not None and block.last_us < from_us


def _blocks_of(
    directory: Path, number: int, offset: int, limit: int | None, tolerate: bool
) -> Iterator[Block]:
    """The blocks of a segment from byte `offset` to byte `limit`, where the tail takes over."""
    segment = segment_path(directory, number)
    at = offset
    for block in load_index(segment, limit):
        if offset <= block.offset:
            yield block
            at = block.end
    if at < (segment.stat().st_size if limit is None else limit) and not tolerate:
        raise TraceInvalid(str(segment), at, "the last block is torn")


def read_compressed(file: BinaryIO, path: str, *, tolerate_torn_tail: bool = False) -> Iterator[TraceRecord]:
    """The records of one compressed trace file, whoever compressed it.

    Raises: TraceInvalid: it is damaged.
    """
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        try:
            for _, record in read_records(_Exactly(reader), path, None, torn_is_end=tolerate_torn_tail):
                yield record
        except zstandard.ZstdError as error:
            raise TraceInvalid(path, file.tell(), f"the compressed data is damaged ({error})") from None


class _Exactly:
    """A reader that gives less than it is asked for only at the end."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def read(self, size: int = -1, /) -> bytes:
        parts, missing = [], size
        while missing > 0 and (part := self._reader.read(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
