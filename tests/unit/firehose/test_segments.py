"""Segments: what was appended is read after any death of the writer, and the oldest go first."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firehose.errors import TraceInvalid
from firehose.frames import encode_identity
from firehose.segment import index_path, load_index
from firehose.segments import SegmentWriter, TraceLimits
from firehose.trace import TraceFrame, TraceNote, open_trace, read_trace
from firehose.trace_directory import read_segments, segment_path

SMALL = TraceLimits(segment_bytes=3000, block_bytes=1000)


def identity(seq: int) -> bytes:
    noise = hashlib.sha256(str(seq).encode()).hexdigest()  # so that it does not compress to nothing
    return encode_identity(seq=seq, did=f"did:plc:{seq:024}", time="2026-01-01T00:00:00Z", handle=noise)


def write(directory: Path, first: int, last: int, limits: TraceLimits = SMALL) -> None:
    with SegmentWriter(directory, limits) as writer:
        for seq in range(first, last + 1):
            writer.append(seq * 1000, identity(seq))


def seqs(directory: Path, **where: Any) -> list[int]:
    return [
        record.received_us // 1000
        for record in read_segments(directory, **where)
        if isinstance(record, TraceFrame)
    ]


def copy_of(directory: Path, name: str) -> Path:
    copy = directory.with_name(name)
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(directory, copy))


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for first in (1, 101, 150):  # opened again: appended to
        write(trace, first, {1: 100, 101: 149, 150: 300}[first])
    frames = list(read_trace(trace))
    assert [frame.frame for frame in frames] == [identity(seq) for seq in range(1, 301)]
    assert [frame.received_us for frame in frames] == [seq * 1000 for seq in range(1, 301)]
    assert len(list(trace.glob("*.fht.zst"))) > 3
    assert len(list(trace.glob("*.tail"))) == 1


def test_a_segment_is_a_trace_for_everybody(tmp_path: Path, data: Path) -> None:
    recorded = list(read_trace(data / "pds-trace.fht"))
    with SegmentWriter(tmp_path / "trace", TraceLimits(block_bytes=100_000)) as writer:
        for frame in recorded:
            writer.append(frame.received_us, frame.frame)
    segment = segment_path(tmp_path / "trace", 1)
    sealed = list(read_trace(segment))
    assert 300 < len(sealed) < 467
    assert sealed == recorded[: len(sealed)]
    assert list(read_trace(tmp_path / "trace")) == recorded
    assert segment.stat().st_size < 0.8 * sum(len(frame.frame) + 12 for frame in sealed)
    if shutil.which("zstd"):
        plain = tmp_path / "plain.fht"
        subprocess.run(["zstd", "-qdc", str(segment)], stdout=plain.open("wb"), check=True)
        assert list(read_trace(plain)) == sealed


def test_it_can_be_entered_by_seq_and_by_time(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write(trace, 1, 300)
    for at in (0, 1, 77, 150, 299, 300, 500):
        found = seqs(trace, after_seq=at)
        assert [seq for seq in found if seq > at] == list(range(at + 1, 301))
        assert len(found) - (300 - min(at, 300)) < 40  # no more than a block and the tail too many
        found = seqs(trace, from_us=at * 1000)
        assert [seq for seq in found if seq >= at] == list(range(max(at, 1), 301))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.unlink(), id="missing"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-5]), id="torn"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[60:]), id="begins-late"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * len(path.read_bytes())), id="noise"),
    ],
)
def test_an_index_that_does_not_fit_is_made_again(tmp_path: Path, damage: object) -> None:
    trace = tmp_path / "trace"
    write(trace, 1, 300)
    segments = sorted(trace.glob("*.fht.zst"))
    before = [load_index(segment) for segment in segments]
    for segment in segments:
        damage(index_path(segment))  # type: ignore[operator]
    assert [load_index(segment) for segment in segments] == before
    assert seqs(trace) == list(range(1, 301))
    write(trace, 301, 320)
    assert seqs(trace, after_seq=290)[-30:] == list(range(291, 321))


def test_every_moment_of_a_seal_can_be_the_last(tmp_path: Path) -> None:
    """What a kill leaves at each step of compressing a tail, as the steps are in `SegmentWriter._seal`."""
    trace = tmp_path / "trace"
    limits = TraceLimits(segment_bytes=100_000, block_bytes=1000)
    count = 1
    write(trace, 1, 1, limits)
    while not (sealed := list(trace.glob("*.fht.zst"))):
        before = copy_of(trace, "before")
        count += 1
        write(trace, count, count, limits)
    segment, index = sealed[0], index_path(sealed[0])
    fresh = next(trace.glob("*.tail"))
    block = segment.read_bytes()

    def left(name: str, **files: bytes) -> Path:
        copy = copy_of(before, name)
        for file, content in files.items():
            (copy / {"segment": segment, "index": index, "tail": fresh}[file].name).write_bytes(content)
        return copy

    for cut in (0, 1, 4, 17, 30, len(block) - 1, len(block)):
        check_recovers(left("segment", segment=block[:cut]), count - 1, limits)
    check_recovers(left("index", segment=block, index=index.read_bytes()[:20]), count - 1, limits)
    both = left("both", segment=block, index=index.read_bytes(), tail=b"FHT1\n")
    check_recovers(both, count - 1, limits)
    check_recovers(left("begun", segment=block, index=index.read_bytes(), tail=b"FH"), count - 1, limits)


def check_recovers(trace: Path, count: int, limits: TraceLimits) -> None:
    write(trace, count + 1, count + 40, limits)
    assert seqs(trace) == list(range(1, count + 41))
    assert len(list(trace.glob("*.tail"))) == 1


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 4000), kept=st.integers(1, 120))
def test_a_torn_end_costs_what_was_torn(
    tmp_path_factory: pytest.TempPathFactory, cut: int, kept: int
) -> None:
    """The machine lost power: the newest file is shorter than what was written to it."""
    trace = tmp_path_factory.mktemp("torn") / "trace"
    write(trace, 1, kept)
    newest = next(trace.glob("*.tail"))
    content = newest.read_bytes()
    newest.write_bytes(content[: max(0, len(content) - cut)])
    left = [
        record.received_us // 1000
        for record in read_segments(trace, tolerate_torn_tail=True)
        if isinstance(record, TraceFrame)
    ]
    assert left == list(range(1, len(left) + 1))
    write(trace, 1000, 1000)
    assert seqs(trace) == [*left, 1000]


def test_a_block_that_did_not_reach_the_disk_is_missed_and_the_rest_kept(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write(trace, 1, 300)
    tail = next(trace.glob("*.tail"))
    segment = segment_path(trace, int(tail.name[:12]))
    if not segment.exists():
        segment = segment_path(trace, int(tail.name[:12]) - 1)
    segment.write_bytes(segment.read_bytes()[:-20])
    with pytest.raises(TraceInvalid, match="torn"):
        seqs(trace)
    write(trace, 301, 301)
    left = seqs(trace)
    assert left[-1] == 301
    assert set(left) < set(range(1, 302))


def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write(trace, 1, 300)
    segment = segment_path(trace, 2)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(TraceInvalid, match=r"000000000002\.fht\.zst"):
        seqs(trace)
    segment.unlink()
    with pytest.raises(TraceInvalid, match="segment 2 is missing"):
        seqs(trace)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TraceInvalid, match="not a trace: there are no segments"):
        list(read_trace(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(TraceLimits(segment_bytes=1000, block_bytes=500, keep_bytes=4000), id="bytes"),
        pytest.param(TraceLimits(segment_bytes=1000, block_bytes=500, keep_segments=3), id="count"),
        pytest.param(TraceLimits(segment_bytes=1000, block_bytes=500, keep_s=0.2), id="age"),
        pytest.param(TraceLimits(segment_s=0.05, block_bytes=500, keep_segments=3), id="age-of-a-segment"),
    ],
)
def test_the_oldest_segments_go_first(tmp_path: Path, limits: TraceLimits) -> None:
    trace = tmp_path / "trace"
    with SegmentWriter(trace, limits) as writer:
        for seq in range(1, 1001):
            writer.append(seq * 1000, identity(seq))
        assert writer.dropped_seq is not None
        first = writer.dropped_seq + 1
        closed = [blocks for number, blocks in sorted(writer.blocks.items()) if blocks][:-1]
        assert writer.size_bytes == sum(path.stat().st_size for path in trace.iterdir() if has_frames(path))
    assert seqs(trace) == list(range(first, 1001))
    assert 700 < first < 1000
    if limits.keep_segments is not None:
        assert len(closed) <= limits.keep_segments
    for stray in trace.glob("*.idx"):
        assert segment_path(trace, int(stray.name[:12])).exists()


def has_frames(path: Path) -> bool:
    return path.suffix in (".zst", ".tail")


def test_notes_and_states_stand_where_they_belong(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    counted = [0]
    with SegmentWriter(trace, SMALL, state=lambda: str(counted[0]).encode()) as writer:
        for seq in range(1, 101):
            writer.append(seq, identity(seq), note={"about": seq} if seq % 10 == 0 else None)
            counted[0] = seq
        writer.note(1, {"kind": "end"})
    records = list(open_trace(trace))
    notes = [(number, record) for number, record in enumerate(records) if isinstance(record, TraceNote)]
    assert notes[-1][1].fields == {"kind": "end"}
    for number, note in notes[:-1]:
        after = records[number + 1]
        assert isinstance(after, TraceFrame)
        assert after.received_us == note.fields["about"]
    states = sorted(trace.glob("*.state"))
    assert states
    for state in states:  # what was known before the segment's first frame
        first = next(read_trace(segment_path(trace, int(state.name[:12]))), None)
        if first is not None:
            assert int(state.read_text()) == first.received_us - 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path / "trace"), pytest.raises(BlockingIOError):
        SegmentWriter(tmp_path / "trace")
    with SegmentWriter(tmp_path / "trace"):
        pass


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    import zstandard

    trace = tmp_path / "trace"
    write(trace, 1, 300)
    bomb = zstandard.ZstdCompressor(level=19).compress(b"\0" * 50_000_000)
    segment_path(trace, 2).write_bytes(bomb)
    with pytest.raises(TraceInvalid, match="claims 50000000 bytes"):
        seqs(trace)
    whole = tmp_path / "whole.fht.zst"
    whole.write_bytes(bomb)
    with pytest.raises(TraceInvalid, match="not a trace"):
        list(read_trace(whole))
    whole.write_bytes(zstandard.ZstdCompressor().compress(b"FHT1\n" + b"\0" * 50_000_000))
    with pytest.raises(TraceInvalid, match="claims 0 bytes"):
        list(read_trace(whole))
