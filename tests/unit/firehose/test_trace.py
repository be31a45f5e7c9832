"""Traces: what was appended is read, and a torn tail costs the torn record only."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.errors import TraceInvalid
from firehose.trace import MAGIC, TraceFrame, TraceWriter, read_trace

FRAMES = [(1_000_000, b"first"), (1_000_001, b"x" * 300), (2_000_000, b"\0")]


def written(path: Path, frames: list[tuple[int, bytes]]) -> bytes:
    with TraceWriter(path) as writer:
        for received_us, frame in frames:
            writer.append(received_us, frame)
    return path.read_bytes()


def read(path: Path, *, tolerate: bool = False) -> list[tuple[int, bytes]]:
    return [(entry.received_us, entry.frame) for entry in read_trace(path, tolerate_torn_tail=tolerate)]


@given(
    frames=st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.binary(min_size=1, max_size=40)), max_size=12)
)
def test_what_was_appended_is_read(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "a.fht"
    written(path, frames[:5])
    assert written(path, frames[5:]).startswith(MAGIC)  # opened again: appended to
    assert read(path) == frames


def test_every_cut_loses_the_torn_record_and_nothing_else(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.fht", FRAMES)
    ends = [5, 5 + 12 + 5, 5 + 12 + 5 + 12 + 300, len(whole)]
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut.fht"
        path.write_bytes(whole[:cut])
        kept = [frame for frame, end in zip(FRAMES, ends[1:], strict=True) if end <= cut]
        if cut in ends:
            assert read(path) == kept
        else:
            with pytest.raises(TraceInvalid) as caught:
                read(path)
            assert caught.value.offset == max([end for end in ends if end <= cut], default=0)
        assert read(path, tolerate=True) == kept
        with TraceWriter(path) as writer:
            assert writer.torn_bytes == cut - max([end for end in ends if end <= cut], default=0)
            writer.append(9, b"after")
        assert read(path) == [*kept, (9, b"after")]


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        pytest.param(b"FHT2\n", 0, id="another-format"),
        pytest.param(b"not a trace at all", 0, id="another-file"),
        pytest.param(MAGIC + struct.pack(">QI", 1, 0) + b"x", 5, id="length-zero"),
        pytest.param(MAGIC + struct.pack(">QI", 1, 5_000_001) + b"x" * 99, 5, id="length-a-lie"),
        pytest.param(
            MAGIC + struct.pack(">QI", 1, 1) + b"x" + struct.pack(">QI", 1, 1 << 31) + b"y" * 50,
            18,
            id="later",
        ),
    ],
)
def test_damage_that_no_crash_leaves_is_an_error_for_everybody(
    tmp_path: Path, content: bytes, offset: int
) -> None:
    path = tmp_path / "bad.fht"
    path.write_bytes(content)
    for tolerate in (False, True):
        with pytest.raises(TraceInvalid) as caught:
            read(path, tolerate=tolerate)
        assert caught.value.offset == offset
    with pytest.raises(TraceInvalid):
        TraceWriter(path)
    assert path.read_bytes() == content  # never repaired by guessing


def test_what_is_flushed_is_there_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "live.fht"
    with TraceWriter(path) as writer:
        writer.append(1, b"one")
        writer.flush()
        assert read(path) == [(1, b"one")]
        assert writer.append(2, b"two") == 5 + 12 + 3
        writer.flush(sync=True)
        assert read(path) == [(1, b"one"), (2, b"two")]
        assert writer.bytes_written == path.stat().st_size


@pytest.mark.parametrize("frame", [b"", bytes(5_000_001)])
def test_a_frame_out_of_bounds_is_not_written(tmp_path: Path, frame: bytes) -> None:
    with TraceWriter(tmp_path / "a.fht") as writer, pytest.raises(ValueError, match="no place"):
        writer.append(1, frame)
    assert read(tmp_path / "a.fht") == []


def test_the_recorded_trace_is_written_back_byte_for_byte(data: Path, tmp_path: Path) -> None:
    frames = list(read_trace(data / "pds-trace.fht"))
    assert len(frames) == 467
    assert isinstance(frames[0], TraceFrame)
    again = written(tmp_path / "again.fht", [(entry.received_us, entry.frame) for entry in frames])
    assert again == (data / "pds-trace.fht").read_bytes()


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.fht")
