"""One segment of a compressed trace: blocks one after the other, and beside them an index by seq and time.

A block is one zstd frame with its length and a checksum, of whole records; the first one begins with the
magic of a trace. So `zstd -dc` of a segment, or of all of them in order without the later magics, is an
`.fht`. Blocks stand by themselves: one that is torn or damaged costs its own records and no others.

The index is a convenience: fixed-size entries, each with a checksum. Where it is missing, or does not fit
its segment, it is made again from the blocks.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, Self
from zlib import crc32

import zstandard

from firehose.errors import TraceInvalid
from firehose.frames import MAX_FRAME_BYTES, route
from firehose.trace import HEADER, MAGIC, MAX_NOTE_BYTES, ZSTD_MAGIC, TraceFrame, TraceRecord, read_records

BLOCK_BYTES: Final = (
    1 << 18
)  # of records; measured: 512 KiB compress 2 % better and take twice as long to read
MAX_BLOCK_BYTES: Final = BLOCK_BYTES + len(MAGIC) + 2 * HEADER.size + MAX_FRAME_BYTES + MAX_NOTE_BYTES
LEVEL: Final = 3
_HEAD_BYTES: Final = 18  # a zstd frame's header has no more
_CHUNK_BYTES: Final = 1 << 16
_ENTRY: Final = struct.Struct(">QIIQQQQ")
_CRC: Final = struct.Struct(">I")
ENTRY_BYTES: Final = _ENTRY.size + _CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Where a block is, and what is in it."""

    offset: int
    length: int  # compressed
    frames: int
    first_seq: int  # the lowest in it; 0: it has none
    max_seq: int  # the highest up to its end, over all blocks of the segment; 0: none yet
    first_us: int  # times of receipt
    last_us: int  # the latest up to its end, over all blocks of the segment

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.offset + self.length

    def packed(self) -> bytes:
        """As it stands in an index."""
        entry = _ENTRY.pack(
            self.offset, self.length, self.frames, self.first_seq, self.max_seq, self.first_us, self.last_us
        )
        return entry + _CRC.pack(crc32(entry))

    @classmethod
    def unpacked(cls, entry: bytes) -> Self | None:
        """What an index says, or None if it is damaged."""
        if len(entry) != ENTRY_BYTES or _CRC.unpack_from(entry, _ENTRY.size)[0] != crc32(
            entry[: _ENTRY.size]
        ):
            return None
        offset, length, frames, first_seq, max_seq, first_us, last_us = _ENTRY.unpack_from(entry)
        return cls(
            offset=offset,
            length=length,
            frames=frames,
            first_seq=first_seq,
            max_seq=max_seq,
            first_us=first_us,
            last_us=last_us,
        )


@dataclass(slots=True)
class Tally:
    """Counts the records of a block while they come, and carries on the highest seq and time."""

    frames: int = 0
    first_seq: int = 0
    max_seq: int = 0
    first_us: int = 0
    last_us: int = 0

    def frame(self, received_us: int, seq: int | None) -> None:
        """Count one frame."""
        if self.frames == 0:
            self.first_us = received_us
        self.frames += 1
        self.last_us = max(self.last_us, received_us)
        if seq is not None:
            self.first_seq = min(self.first_seq or seq, seq)
            self.max_seq = max(self.max_seq, seq)

    def block(self, offset: int, length: int) -> Block:
        """What was counted, as a block at this place."""
        return Block(
            offset=offset,
            length=length,
            frames=self.frames,
            first_seq=self.first_seq,
            max_seq=self.max_seq,
            first_us=self.first_us,
            last_us=self.last_us,
        )

    def next(self) -> "Tally":
        """For the block after this one."""
        return Tally(max_seq=self.max_seq, last_us=self.last_us)


def seq_of(frame: bytes) -> int | None:
    """The seq of a frame about an account; None for anything else, readable or not."""
    found = route(frame)
    return None if found is None else found[0]


def compressed(records: bytes) -> bytes:
    """One block."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(records)


def read_block(path: Path, block: Block) -> list[TraceRecord]:
    """The records of one block. Raises: TraceInvalid: it is damaged. OSError: it cannot be read."""
    with path.open("rb") as file:
        file.seek(block.offset)
        data = file.read(block.length)
    found = _open_block(BytesIO(data), 0, str(path), block.offset)
    if found is None or found[1] != block.length:
        raise TraceInvalid(str(path), block.offset, "the block is not what the index says")
    return list(records_of(found[0], str(path), block.offset))


def records_of(raw: bytes, path: str, offset: int) -> Iterator[TraceRecord]:
    """The records in a decompressed block."""
    file = BytesIO(raw)
    try:
        for _, record in read_records(file, path, len(raw), torn_is_end=False, has_magic=offset == 0):
            yield record
    except TraceInvalid as error:
        raise TraceInvalid(path, offset, f"{error.reason} (in the block)") from None


def load_index(segment: Path, limit: int | None = None) -> list[Block]:
    """The blocks of a segment by its index, or by a look at all of them where that does not fit.

    Args:
        segment: the file; its index is beside it.
        limit: the byte at which it ends; None: at its own end.

    Returns: the whole blocks; a torn end is not among them. Raises: TraceInvalid: a block before the end is
    damaged. OSError: the segment cannot be read.
    """
    blocks = _stated(segment, limit)
    if blocks is None:
        blocks = [block for block in scan(segment) if limit is None or block.end <= limit]
    return blocks


def save_index(segment: Path, blocks: list[Block]) -> None:
    """Write the index of a segment anew."""
    path = index_path(segment)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(b"".join(block.packed() for block in blocks))
    fresh.replace(path)


def index_path(segment: Path) -> Path:
    """Where the index of a segment is."""
    return segment.with_name(segment.name.partition(".")[0] + ".idx")


def _stated(segment: Path, limit: int | None) -> list[Block] | None:
    """What the index says, if it fits the segment from its first byte to its last."""
    try:
        entries = index_path(segment).read_bytes()
    except OSError:
        return None
    blocks: list[Block] = []
    end = 0
    with segment.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None:
            if limit > size:
                return None
            size = limit
        for at in range(0, len(entries), ENTRY_BYTES):
            block = Block.unpacked(entries[at : at + ENTRY_BYTES])
            if block is not None and block.offset >= size:
                break
            if block is None or block.offset != end or block.end > size:
                return None
            if os.pread(file.fileno(), len(ZSTD_MAGIC), block.offset) != ZSTD_MAGIC:
                return None
            blocks.append(block)
            end = block.end
    return blocks if end == size else None


def scan(segment: Path) -> list[Block]:
    """The whole blocks of a segment, read one by one. Raises: as `load_index`."""
    blocks: list[Block] = []
    tally = Tally()
    with segment.open("rb") as file:
        at = 0
        while (found := _open_block(file, at, str(segment), at)) is not None:
            raw, length = found
            for record in records_of(raw, str(segment), at):
                if isinstance(record, TraceFrame):
                    tally.frame(record.received_us, seq_of(record.frame))
            blocks.append(tally.block(at, length))
            tally = tally.next()
            at += length
    return blocks


def _open_block(file: BinaryIO, at: int, path: str, offset: int) -> tuple[bytes, int] | None:
    """The records of the block at byte `at`, and its length; None: there is none, or it is torn."""
    file.seek(at)
    head = file.read(_HEAD_BYTES)
    if not head:
        return None
    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        if ZSTD_MAGIC.startswith(head[: len(ZSTD_MAGIC)]) or (
            len(head) < _HEAD_BYTES and head[:4] == ZSTD_MAGIC
        ):
            return None
        raise TraceInvalid(path, offset, "no block begins here") from None
    if not 0 < size <= MAX_BLOCK_BYTES:
        raise TraceInvalid(path, offset, f"a block that claims {size} bytes")
    file.seek(at)
    decompress = zstandard.ZstdDecompressor().decompressobj()
    parts, taken = [], 0
    try:
        while not decompress.eof:
            chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                return None
            taken += len(chunk)
            parts.append(decompress.decompress(chunk))
    except zstandard.ZstdError as error:
        raise TraceInvalid(path, offset, f"the block is damaged ({error})") from None
    return b"".join(parts), taken - len(decompress.unused_data)


def remove(segment: Path) -> None:
    """Delete a segment with what belongs to it; the frames first, so that nothing else outlives them."""
    for path in (segment, index_path(segment), segment.with_name(segment.name.partition(".")[0] + ".state")):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
