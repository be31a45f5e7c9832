"""A disk that is full: the stream goes on, and what was lost is recorded and shown."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from firehose.frames import encode_identity, parse_frame
from firehose.notes import load_notes
from firehose.recorder import Recorder
from firehose.segments import SegmentWriter, TraceLimits
from firehose.trace import TraceFrame, open_trace, read_trace

KINDS = pytest.mark.parametrize("name", ["raw.fht", "raw"])


def identity(seq: int) -> bytes:
    return encode_identity(seq=seq, did=f"did:plc:{seq:024}", time="t", handle=os.urandom(60).hex())


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk is to whoever writes: the operating system refuses, in the middle of a record."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@KINDS
def test_a_gap_is_recorded_and_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frames = [identity(seq) for seq in range(1, 61)]
    with Recorder(path) as record:
        for seq in range(1, 21):
            record.frame(seq, frames[seq - 1])
        assert "lost" not in record.stats()
        size = next(path.glob("*.tail")).stat().st_size if path.is_dir() else path.stat().st_size
        with no_file_longer_than(size + 100):  # room for a part of the next frame
            for seq in range(21, 41):
                record.frame(seq, frames[seq - 1])
            record.note(40, "document", did="did:plc:x", document=None)
            told = record.stats()["lost"]
        assert (told["count"], told["first_seq"], told["last_seq"]) == (20, 21, 40)
        assert told["reason"] == "File too large"
        for seq in range(41, 61):
            record.frame(seq, frames[seq - 1])
    kept = [frame.frame for frame in read_trace(path)]
    assert [raw for raw in kept if b"TraceGap" not in raw] == frames[:20] + frames[40:]
    notes = load_notes(path)
    assert notes.lost == 20
    assert [(gap["first_seq"], gap["last_seq"]) for gap in notes.gaps] == [(21, 40)]
    for raw in kept:
        parse_frame(raw)  # also the marker, for those who know nothing of it


def test_a_disk_that_is_full_while_a_block_is_sealed_loses_nothing_before(tmp_path: Path) -> None:
    limits = TraceLimits(block_bytes=4000, segment_bytes=20_000)
    with Recorder(tmp_path / "raw", limits) as record:
        for seq in range(1, 400):
            if seq == 100:
                blocked = no_file_longer_than(4500)  # the tail fits, its segment does not grow any more
                blocked.__enter__()
            if seq == 200:
                blocked.__exit__(None, None, None)
            record.frame(seq, identity(seq))
        lost = record.lost
    assert lost.count > 50
    seqs = [frame.received_us for frame in read_trace(tmp_path / "raw")]
    assert len(seqs) == 399 - lost.count
    assert lost.first_seq is not None
    assert set(range(1, 400)) - set(seqs) == set(range(lost.first_seq, (lost.last_seq or 0) + 1))
    assert load_notes(tmp_path / "raw").lost == lost.count


def test_a_trace_that_ends_in_a_gap_says_so_when_it_is_closed(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "raw")
    with no_file_longer_than(0):
        record.frame(1, identity(1))
    record.close()
    assert load_notes(tmp_path / "raw").gaps[0]["count"] == 1
    assert list(read_trace(tmp_path / "raw")) == []


@KINDS
async def test_nothing_waits_for_a_disk_that_is_full_at_the_start(tmp_path: Path, name: str) -> None:
    with no_file_longer_than(2), pytest.raises(OSError, match="File too large"):
        Recorder(tmp_path / name)
    await asyncio.sleep(0)
    with Recorder(tmp_path / name) as record:
        record.frame(1, identity(1))
    assert len(list(read_trace(tmp_path / name))) == 1


def test_the_segments_of_a_window_make_room_for_themselves(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path / "w", TraceLimits(block_bytes=2000, segment_bytes=3000)) as writer:
        for seq in range(1, 200):
            writer.append(seq, identity(seq), seq=seq)
        dropped = 0
        while writer.drop_oldest():
            dropped += 1
        assert dropped >= 3
        writer.append(200, identity(200), seq=200)
    kept = [record.received_us for record in open_trace(tmp_path / "w") if isinstance(record, TraceFrame)]
    assert kept == list(range((writer.dropped_seq or 0) + 1, 201))
