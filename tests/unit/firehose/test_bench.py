"""What `skylease bench firehose` says of a few recorded frames; how long they took is not tested."""

import shutil
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import firehose as bench
from firehose.trace import TraceWriter, read_trace

FRAMES = 60


def test_two_processes_are_held_against_what_the_machine_gives_two(data: Path, tmp_path: Path) -> None:
    """The benchmark itself compares what each case took as true: all of them judge the same stream."""
    trace = tmp_path / "short.fht"
    with TraceWriter(trace) as writer:
        for recorded in islice(read_trace(data / "pds-trace.fht"), FRAMES):
            writer.append(recorded.received_us, recorded.frame)
    shutil.copy(data / "pds-trace.did_docs.json", tmp_path / "short.did_docs.json")
    answer = bench.bench_firehose(1, trace)
    assert answer["frames"] == FRAMES
    ours = {case: times["p50"] for case, times in answer["ours"].items()}
    assert ours.keys() >= {"verify_warm", "verify_chained", "one_process", "two_processes", "two_apart"}
    assert (answer["peers"].keys(), answer["absent"]) == ({"decode_only", "atproto_sdk"}, {})
    assert answer["two_to_one"] == round(ours["one_process"] / ours["two_processes"], 2)
    assert answer["machine_two_to_one"] == round(ours["one_process"] / ours["two_apart"], 2)


def test_a_process_that_is_gone_is_no_measurement(tmp_path: Path) -> None:
    with bench._other(tmp_path / "missing.fht") as other:
        assert other.wait(60) != 0
        with pytest.raises(RuntimeError, match="no answer"):
            bench._apart(lambda: 1, other)
