"""A recorded trace as a source: every stretch of it, whatever it is recorded in."""

from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from firehose.frames import encode_identity, encode_info, peek
from firehose.segments import SegmentWriter, TraceLimits
from firehose.trace import TraceWriter, read_trace
from firehose.trace_window import TraceWindow
from firehose.window import Entry

DID = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"


def identity(seq: int) -> bytes:
    return encode_identity(seq=seq, did=DID, time="t", handle="h" * 200)


def recorded(path: Path, frames: list[bytes]) -> Path:
    """In one of three ways, by the name."""
    if path.suffix == "":
        with SegmentWriter(path, TraceLimits(block_bytes=2000, segment_bytes=500)) as segments:
            for frame in frames:
                segments.append(1, frame)
        return path
    with TraceWriter(path.with_suffix(".fht")) as writer:
        for frame in frames:
            writer.append(1, frame)
    if path.suffix == ".zst":
        path.write_bytes(zstandard.compress(path.with_suffix(".fht").read_bytes()))
    return path


def seqs(window: TraceWindow, after: int, limit: int = 64) -> list[int]:
    found: list[int] = []
    while batch := window.after(found[-1] if found else after, limit):
        found += [entry.seq for entry in batch]
    return found


@pytest.mark.parametrize("name", ["trace.fht", "trace.zst", "trace"])
def test_every_stretch_can_be_served(tmp_path: Path, name: str) -> None:
    window = TraceWindow(recorded(tmp_path / name, [identity(seq) for seq in range(101, 2101, 2)]))
    assert (len(window), window.first_seq, window.last_seq, window.missing_seq) == (1000, 101, 2099, 100)
    for after in (0, 100, 101, 102, 777, 2098, 2099, 5000):
        assert seqs(window, after) == [seq for seq in range(101, 2101, 2) if seq > after]
    assert [entry.frame for entry in window.after(150, 2)] == [identity(151), identity(153)]
    with pytest.raises(ValueError, match="not added to"):
        window.append(Entry(9999, b"x", None))


@settings(max_examples=25, deadline=None)
@given(order=st.lists(st.integers(1, 30), min_size=1, max_size=80), chunk=st.sampled_from([300, 5000]))
def test_a_seq_is_served_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], chunk: int
) -> None:
    frames = [identity(seq) for seq in order]
    frames[1:1] = [encode_info("OutdatedCursor"), b"noise"]
    folder = tmp_path_factory.mktemp("order")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("firehose.trace_window.CHUNK_BYTES", chunk)
        windows = [TraceWindow(recorded(folder / name, frames)) for name in ("trace.fht", "trace")]
        expected: list[int] = []
        for seq in order:
            if not expected or seq > expected[-1]:
                expected.append(seq)
        for window in windows:
            assert seqs(window, 0, 3) == expected
            assert window.skipped == len(frames) - len(expected)


def test_the_recorded_trace(data: Path) -> None:
    window = TraceWindow(data / "pds-trace.fht")
    frames = [frame.frame for frame in read_trace(data / "pds-trace.fht")]
    served = [entry.frame for entry in window.after(0, 1000)]
    assert served == frames[: len(served)]
    assert seqs(window, 0) == [peek(frame).seq for frame in frames]
    assert window.size_bytes > 0
