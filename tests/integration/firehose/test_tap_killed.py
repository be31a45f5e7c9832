"""A tap killed with SIGKILL two hundred times: no event is lost, none comes with another verdict."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from firehose.frames import peek
from firehose.listen import listening_socket
from firehose.serve import SUBSCRIBE_PATH, FrameServer
from firehose.trace import read_trace

ROOT: Final = Path(__file__).parents[3]
DATA: Final = ROOT / "tests/data"
KILLS: Final = 200
FRAMES: Final = 260  # of the recorded trace: small, so that one life sees a good part of it
# Everything is imported once; each tap is a fork of that, so that a life takes as long as its work.
ZYGOTE: Final = """
import asyncio, json, os, sys
from pathlib import Path
from firehose.identity import StaticDirectory
from firehose.segments import TraceLimits
from firehose.subscribe import Backoff
from firehose.tap import Tap, TapSpec

upstream, port, documents = sys.argv[1], int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
limits = TraceLimits(block_bytes=30_000, segment_bytes=60_000)  # much is sealed, and segments rotate
spec = TapSpec(max_window_bytes=100_000, window=limits, backoff=Backoff(base=0.01, cap=0.05), resync_hold_s=0)

async def main(state):
    directory = StaticDirectory(documents)
    tap = Tap(upstream, directory, Path(state), port=port, cursor=0, record=Path(state) / "raw", spec=spec)
    async with tap:
        await tap.run()

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(main(line.strip()))
        finally:
            os._exit(1)
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""

Event = tuple[str, str, str]  # verdict, reason, and all that was said


class Victims:
    """Taps, one at a time."""

    def __init__(self, zygote: Process) -> None:
        self._zygote = zygote
        self._pid = 0

    async def start(self, state: Path) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(f"{state}\n".encode())
        self._pid = int(await self._answer())

    async def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        assert await self._answer() == b"gone\n"

    async def _answer(self) -> bytes:
        assert self._zygote.stdout is not None
        async with asyncio.timeout(30):
            return await self._zygote.stdout.readline()


class Listener:
    """A client that comes back after every death, a few frames before where it was."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}{SUBSCRIBE_PATH}?format=json&cursor="
        self.heard: dict[int, Event] = {}
        self._task = asyncio.ensure_future(self._listen())

    @property
    def last_seq(self) -> int:
        return max(self.heard, default=0)

    async def until(self, is_true: Callable[[], bool], deadline_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not is_true():
                    self._check()
                    await asyncio.sleep(0.002)
                return True
        return False

    async def close(self) -> None:
        self._check()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _check(self) -> None:
        if self._task.done():
            self._task.result()

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(OSError, WebSocketException, EOFError):
                async with connect(f"{self._url}{max(0, self.last_seq - 5)}", close_timeout=0.1) as client:
                    async for message in client:
                        self._hear(str(message))
            await asyncio.sleep(0.005)

    def _hear(self, message: str) -> None:
        told = json.loads(message)
        assert "seq" in told, f"{message}: a frame is missing"
        event = (told.pop("verdict"), told.pop("reason"), json.dumps(told))
        seq = told["seq"]
        assert self.heard.setdefault(seq, event) == event, "another verdict than before"
        assert seq <= self.last_seq
        assert list(self.heard)[-1] == self.last_seq, f"{seq} came after {self.last_seq}"


def troubled() -> list[bytes]:
    """The recorded stream with lost, repeated and forged frames: every kind of verdict on the way."""
    frames = [recorded.frame for recorded in read_trace(DATA / "pds-trace.fht")][:FRAMES]
    stream = []
    for number, frame in enumerate(frames):
        if number in (60, 61, 130, 200):
            continue  # lost: what follows in that repository shows a gap
        if number % 37 == 20 and b"sig" in frame:
            at = frame.index(b"sig") + 10
            frame = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        stream.append(frame)
    return stream


@asynccontextmanager
async def zygote(upstream: str, port: int, documents: Path) -> AsyncIterator[Victims]:
    command = (sys.executable, "-c", ZYGOTE, upstream, str(port), str(documents))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        yield Victims(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 1)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def one_round(
    victims: Victims, url: str, state: Path, last_seq: int, torment: Callable[[Listener], Awaitable[bool]]
) -> dict[int, Event]:
    """From an empty window to the end of the stream, killed as `torment` likes; returns what was heard."""
    listener = Listener(url)
    await victims.start(state)
    try:
        while not await torment(listener):
            await victims.kill()
            await victims.start(state)
        assert await listener.until(lambda: listener.last_seq >= last_seq, 60), "it got stuck"
    finally:
        await victims.kill()
        await listener.close()
    return listener.heard


@pytest.mark.timeout(300)
async def test_two_hundred_kills(tmp_path: Path) -> None:
    seed = 20261122
    rng = random.Random(seed)
    documents: dict[str, list[Any]] = {}
    for entry in json.loads((DATA / "pds-trace.meta.json").read_text())["didDocs"]:
        documents.setdefault(entry["doc"]["id"], []).append(entry["doc"])
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    with listening_socket("127.0.0.1", 0) as taken:
        port: int = taken.getsockname()[1]
    url = f"ws://127.0.0.1:{port}"
    frames = troubled()
    kills = 0

    async def spare(listener: Listener) -> bool:
        return True

    async def torment(listener: Listener) -> bool:
        """Wait until it may be killed: at a random time, or a moment after it has got somewhere."""
        nonlocal kills
        if kills >= KILLS or listener.last_seq >= last_seq:
            return True
        if rng.random() < 0.4:
            goal = listener.last_seq + rng.randint(1, 30)
            await listener.until(lambda: listener.last_seq >= min(goal, last_seq), 5)
        await asyncio.sleep(rng.uniform(0, 0.03))
        kills += 1
        return False

    async with FrameServer() as relay, zygote(relay.url, port, tmp_path / "documents.json") as victims:
        for frame in frames:
            relay.publish(frame, peek(frame).seq, None)
        last_seq = relay.window.last_seq or 0
        truth = await one_round(victims, url, tmp_path / "truth", last_seq, spare)
        assert {verdict for verdict, _, _ in truth.values()} == {"accept", "noop", "desync"}
        rounds = 0
        while kills < KILLS:
            rounds += 1
            state = tmp_path / f"round-{rounds}"
            heard = await one_round(victims, url, state, last_seq, torment)
            assert heard == truth, f"seed {seed}, round {rounds}"
            window = read_trace(state / "window", tolerate_torn_tail=True)
            assert [peek(record.frame).seq for record in window] == list(truth), f"seed {seed}"
            raw = {record.frame for record in read_trace(state / "raw", tolerate_torn_tail=True)}
            assert raw == set(frames), f"seed {seed}, round {rounds}"
        assert rounds < KILLS, "it hardly lived"
