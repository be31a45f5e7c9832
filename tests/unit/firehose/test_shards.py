"""Several verifying processes: the verdicts of one, to the letter, in the same order."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from firehose.drisl import encode
from firehose.errors import ShardDied
from firehose.frames import encode_account, encode_error, encode_info
from firehose.shards import VerifyShards, shard_of
from firehose.trace import read_trace
from firehose.verify import Judgement, Verdict, Verifier

DATA = Path(__file__).parents[2] / "data"
Documents = dict[str, list[dict[str, Any]]]
Resolve = Callable[[str, bool], Mapping[str, Any] | None]


def resolver(documents: Documents) -> Resolve:
    """Documents by DID; a refresh moves on to the next one."""
    positions: dict[str, int] = {}

    def resolve(did: str, is_refresh: bool) -> Mapping[str, Any] | None:
        known = documents.get(did, [])
        positions[did] = min(positions.get(did, 0) + is_refresh, max(len(known) - 1, 0))
        return known[positions[did]] if known else None

    return resolve


def one_process(frames: list[tuple[int, bytes]], resolve: Resolve) -> tuple[Verifier, list[Judgement]]:
    verifier, judgements = Verifier(), []
    for now_ms, frame in frames:
        judgement = verifier.receive(frame, now_ms)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, resolve(need.did, need.refresh))
            judgement = verifier.receive(frame, now_ms)
        judgements.append(judgement)
    return verifier, judgements


@pytest.fixture
def troubled(pds_frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The recorded stream with lost, repeated, late, broken and nobody's frames in it."""
    frames = []
    for number, (now_ms, frame) in enumerate(pds_frames):
        if number % 17 == 0:
            continue
        frames.append((now_ms, frame))
        if number % 13 == 0:
            frames.append((now_ms, frame))
        if number % 29 == 0:
            frames.append(pds_frames[number // 2])
        if number % 31 == 0:
            frames.append((now_ms, frame[:-7]))
        if number % 37 == 0:
            frames += [
                (now_ms, encode_info("OutdatedCursor")),
                (now_ms, encode({"op": 1, "t": "#new"}) + encode({"seq": 1 << 40})),
                (now_ms, encode_account(seq=1, did="nobody", time="", active=True)),
                (now_ms, encode_error("ConsumerTooSlow")),
                (now_ms, b"noise"),
            ]
    return frames


@pytest.mark.parametrize("count", [2])
def test_the_verdicts_are_those_of_one_process(
    troubled: list[tuple[int, bytes]], pds_documents: Documents, count: int
) -> None:
    verifier, expected = one_process(troubled, resolver(pds_documents))
    assert len({verdict for verdict, _ in verifier.counters}) >= 7
    with VerifyShards(count, resolver(pds_documents)) as shards:
        judged = list(shards.judge(troubled))
        assert [entry.judgement() for entry in judged] == expected
        assert [(entry.received_ms, entry.frame) for entry in judged] == troubled
        assert shards.counters == verifier.counters
        shards.rewind()
        once_more = list(shards.judge(troubled[:50]))
    assert [entry.verdict for entry in once_more] == [judgement.verdict for judgement in expected[:50]]


def test_accounts_are_spread_and_stay_where_they_are() -> None:
    dids = [f"did:plc:account{number:05}" for number in range(1000)]
    places = [shard_of(did, 4) for did in dids]
    assert all(200 < places.count(shard) < 300 for shard in range(4))
    assert places == [shard_of(did, 4) for did in dids]
    assert shard_of("\ud800", 4) in range(4)  # hostile text is somebody's as well


def test_a_process_that_dies_is_told_of(pds_documents: Documents) -> None:
    frames = [(entry.received_us // 1000, entry.frame) for entry in read_trace(DATA / "pds-trace.fht")]
    with VerifyShards(2, resolver(pds_documents)) as shards:
        assert next(iter(shards.judge(frames[:100]))).verdict is Verdict.ACCEPT
        for process in shards._processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(5)
        with pytest.raises(ShardDied):
            list(shards.judge(frames[100:]))


def test_no_process_is_no_answer() -> None:
    with pytest.raises(ValueError, match="0 processes"):
        VerifyShards(0, lambda did, is_refresh: None)
