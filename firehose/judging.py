"""How a tap gets its verdicts: from a verifier, alone or with processes that prove ahead, in order.

Either way the frames come from one iterator and leave through another, and what a tap does with a frame is
done before the next one is judged.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from firehose.errors import ProverDied
from firehose.identity import Document
from firehose.provers import HELP_FRAMES, ROOM_BYTES, Provers, Proving
from firehose.verify import Judgement, ResolveDid, Verdict, Verifier

MAX_ROUNDS: Final = 4  # of needs for one frame; the verifier promises two
PASSED_ON: Final = frozenset({Verdict.ACCEPT, Verdict.NOOP})

Resolve = Callable[[ResolveDid], Awaitable[Document | None]]
Received = AsyncIterator[tuple[int, bytes]]  # when, in epoch milliseconds, and what


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A frame and what was said of it."""

    received_ms: int
    frame: bytes
    judgement: Judgement
    seq: int | None  # where the stream is with it


class Judging(Protocol):
    """What a tap takes its verdicts from; an async context manager."""

    @property
    def counters(self) -> Counter[tuple[Verdict, str]]:
        """How often each verdict was given, and why."""

    def judge(self, frames: Received) -> AsyncIterator[Taken]:
        """Every frame, in order. Raises: ProverDied: a process is gone."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OneProcess:
    """Judges here, one frame after the other."""

    def __init__(self, verifier: Verifier, resolve: Resolve) -> None:
        self._verifier = verifier
        self._resolve = resolve

    @property
    def counters(self) -> Counter[tuple[Verdict, str]]:
        """How often each verdict was given, and why."""
        return self._verifier.counters

    async def judge(self, frames: Received) -> AsyncIterator[Taken]:
        """Every frame, in order."""
        async for received_ms, frame in frames:
            judgement = await judge_one(self._verifier, frame, received_ms, self._resolve)
            seq = self._verifier.last_seq
            yield Taken(received_ms=received_ms, frame=frame, judgement=judgement, seq=seq)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


async def judge_one(
    verifier: Verifier, frame: bytes, received_ms: int, resolve: Resolve, proved: Proving | None = None
) -> Judgement:
    """Judge a frame, with everything that the verifier needs for it."""
    judgement = verifier.receive(frame, received_ms, proved)
    for _ in range(MAX_ROUNDS):
        if not judgement.needs:
            break
        for need in judgement.needs:
            verifier.learn(need.did, await resolve(need))
        judgement = verifier.receive(frame, received_ms, proved)
    return judgement


class SeveralProcesses:
    """Judges here what processes beside this one have proved ahead."""

    def __init__(self, count: int, verifier: Verifier, resolve: Resolve) -> None:
        """Prepare `count` processes, this one included."""
        self._verifier = verifier
        self._resolve = resolve
        self._provers = Provers(count, verifier.key_of)
        self._waiting: deque[tuple[int, Proving]] = deque()  # when it came, and what is known of it
        self._waiting_bytes = 0
        self._changed = asyncio.Event()  # something may be done
        self._has_room = asyncio.Event()
        self._trouble: ProverDied | None = None

    @property
    def counters(self) -> Counter[tuple[Verdict, str]]:
        """How often each verdict was given, and why."""
        return self._verifier.counters

    async def __aenter__(self) -> Self:
        """Start them."""
        self._provers.__enter__()
        loop = asyncio.get_running_loop()
        for connection in self._provers.sockets:
            loop.add_reader(connection, self._heard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_listening()
        await asyncio.to_thread(self._provers.__exit__, None, None, None)

    async def judge(self, frames: Received) -> AsyncIterator[Taken]:
        """Every frame, in order."""
        feeding = asyncio.ensure_future(self._feed(frames))
        feeding.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                here = 0  # frames in a row that nobody else proved
                while self._waiting and here < HELP_FRAMES:
                    proving = self._waiting[0][1]
                    if not proving.is_done:
                        if not self._provers.take(proving):
                            break
                        here += 1
                    yield await self._judge_next()
                if self._trouble is not None:
                    raise self._trouble
                if feeding.done() and not self._waiting:
                    feeding.result()
                    return
                if here or (self._waiting and self._provers.help()):
                    await asyncio.sleep(0)  # others want their turn as well
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _judge_next(self) -> Taken:
        received_ms, proving = self._waiting.popleft()
        proved = proving if proving.is_done else None  # taken, to be judged as it is
        self._waiting_bytes -= len(proving.frame)
        self._has_room.set()
        judgement = await judge_one(self._verifier, proving.frame, received_ms, self._resolve, proved)
        seq = self._verifier.last_seq
        return Taken(received_ms=received_ms, frame=proving.frame, judgement=judgement, seq=seq)

    async def _feed(self, frames: Received) -> None:
        async for received_ms, frame in frames:
            while len(self._waiting) >= self._provers.room or self._waiting_bytes >= ROOM_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                self._waiting.append((received_ms, self._provers.put(frame)))
                self._waiting_bytes += len(frame)
            except ProverDied as error:
                self._fail(error)
            self._changed.set()

    def _heard(self) -> None:
        """A process has said something."""
        try:
            self._provers.listen()
        except ProverDied as error:
            self._fail(error)
        self._changed.set()

    def _fail(self, error: ProverDied) -> None:
        self._trouble = error
        self._stop_listening()

    def _stop_listening(self) -> None:
        for connection in self._provers.sockets:
            asyncio.get_running_loop().remove_reader(connection)
