"""467 frames of a real PDS, served again by us and followed through a tap behind a tap."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from firehose.frames import FrameType, peek
from firehose.identity import StaticDirectory
from firehose.serve import FrameServer
from firehose.subscribe import Subscriber
from firehose.tap import Tap
from firehose.trace import read_trace

DATA = Path(__file__).parents[2] / "data"


def documents() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads((DATA / "pds-trace.meta.json").read_text())["didDocs"]:
        found.setdefault(entry["doc"]["id"], []).append(entry["doc"])
    return found


async def test_every_commit_of_a_real_pds_comes_through_two_taps(tmp_path: Path) -> None:
    frames = [kept.frame for kept in read_trace(DATA / "pds-trace.fht")]
    received_ms = next(read_trace(DATA / "pds-trace.fht")).received_us // 1000 + 3_600_000
    settings: dict[str, Any] = {"cursor": 0, "clock": lambda: received_ms}
    async with (
        FrameServer() as pds,
        Tap(pds.url, StaticDirectory(documents()), tmp_path / "1", **settings) as first,
        Tap(first.url, StaticDirectory(documents()), tmp_path / "2", **settings) as second,
    ):
        runs = [asyncio.ensure_future(tap.run()) for tap in (first, second)]
        for frame in frames:
            seen = peek(frame)
            assert seen.seq is not None
            pds.publish(frame, seen.seq, seen.did)
        verdicts = {}
        async with Subscriber(second.url, cursor=0) as subscriber, asyncio.timeout(60):
            passed_on = []
            while subscriber.cursor != first.stats()["seq"] or first.stats()["seen"] < len(frames):
                frame = await subscriber.receive() or b""
                passed_on.append(frame)
        verdicts = first.stats()["verdicts"]
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    kinds = Counter(peek(frame).type for frame in passed_on)
    sent = Counter(peek(frame).type for frame in frames)
    assert kinds[FrameType.COMMIT] == sent[FrameType.COMMIT] == 377
    assert kinds == sent, verdicts
    assert first.stats()["rejected"] == second.stats()["rejected"] == 0
    assert passed_on == frames
