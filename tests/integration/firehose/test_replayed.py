"""A live run and its replay: the same verdicts in the same order, in one process or several."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from actors.replay import JudgeSpec, Start, judge_trace, load_material
from firehose.frames import peek
from firehose.identity import StaticDirectory
from firehose.judging import Taken
from firehose.kept_window import KeptWindow
from firehose.segments import TraceLimits
from firehose.serve import FrameServer
from firehose.subscribe import Backoff
from firehose.tap import Tap, TapSpec
from firehose.trace import read_trace

DATA: Final = Path(__file__).parents[2] / "data"
Said = list[tuple[str, str]]


def documents() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for entry in json.loads((DATA / "pds-trace.meta.json").read_text())["didDocs"]:
        found.setdefault(entry["doc"]["id"], []).append(entry["doc"])
    return found


def troubled() -> list[bytes]:
    """The recorded stream with lost and forged frames: gaps, and signatures that fit nothing."""
    stream = []
    for number, recorded in enumerate(read_trace(DATA / "pds-trace.fht")):
        frame = recorded.frame
        if number % 41 == 7:
            continue
        if number % 37 == 20 and b"sig" in frame:
            at = frame.index(b"sig") + 10
            frame = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        stream.append(frame)
    return stream


class Watched(Tap):
    """A tap that tells what it decided."""

    said: Said

    async def _take(self, taken: Taken, window: KeptWindow) -> None:
        await super()._take(taken, window)
        assert taken.judgement.verdict is not None
        self.said.append((taken.judgement.verdict.value, taken.judgement.reason))


async def live(relay: FrameServer, root: Path, processes: int, stops: list[int]) -> Said:
    """Follow the relay, begun again after so many frames; returns every verdict."""
    spec = TapSpec(
        verify_processes=processes,
        resync_hold_s=0,
        backoff=Backoff(base=0.01, cap=0.05),
        record=TraceLimits(block_bytes=50_000, segment_bytes=100_000),
    )
    directory, said = StaticDirectory(documents()), Said()
    for stop in stops:
        tap = Watched(relay.url, directory, root / "tap", cursor=0, record=root / "raw", spec=spec)
        tap.said = said
        async with tap:
            run = asyncio.ensure_future(tap.run())
            async with asyncio.timeout(60):
                while len(said) < stop:
                    if run.done():
                        run.result()
                    await asyncio.sleep(0.002)
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run
    return said


@pytest.fixture
async def relay() -> AsyncIterator[FrameServer]:
    async with FrameServer() as server:
        for frame in troubled():
            server.publish(frame, peek(frame).seq, None)
        yield server


async def replayed(trace: Path, processes: int, start: Start | None = None) -> Said:
    spec = JudgeSpec(processes=processes, start=start or Start())
    return [
        (str(judged.judgement.verdict), judged.judgement.reason)
        async for judged in judge_trace(load_material(trace, None), spec)
    ]


async def test_a_replay_says_what_was_said_live(relay: FrameServer, tmp_path: Path) -> None:
    count = len(troubled())
    whole = await live(relay, tmp_path / "one", 1, [count])
    assert {verdict for verdict, _ in whole} == {"accept", "noop", "desync", "reject"}
    assert await live(relay, tmp_path / "two", 2, [count]) == whole
    for recording in ("one", "two"):
        for processes in (1, 2):
            assert await replayed(tmp_path / recording / "raw", processes) == whole, (recording, processes)


@pytest.mark.parametrize("processes", [1, 2])
async def test_restarts_are_replayed_too(relay: FrameServer, tmp_path: Path, processes: int) -> None:
    count = len(troubled())
    said = await live(relay, tmp_path, processes, [100, 230, count])
    again = await replayed(tmp_path / "raw", 1)
    assert again == await replayed(tmp_path / "raw", 2)
    assert again == said[: len(again)]
    assert len(again) == count


async def test_a_replay_can_begin_anywhere(relay: FrameServer, tmp_path: Path) -> None:
    await live(relay, tmp_path, 1, [len(troubled())])
    whole = await replayed(tmp_path / "raw", 1)
    later = await replayed(tmp_path / "raw", 2, Start(seq=300))
    assert len(later) == sum((peek(frame).seq or 0) >= 300 for frame in troubled())
    unchained = sum(here != there for here, there in zip(later, whole[-len(later) :], strict=True))
    assert unchained < 10  # what is first seen of an account in the middle may be judged otherwise
