"""Tap: one upstream, verified once, served on to many.

Upstream frames go into the verifier; what it accepts is appended to the window file and then served, with the
upstream's seq. The window file is the only state.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from firehose.clock import now_ms
from firehose.errors import DirectoryUnavailable, FirehoseError, WindowUnavailable
from firehose.frames import CommitEvent, Frame, FrameType, IdentityEvent, parse_frame, peek
from firehose.healer import HOLD_S as RESYNC_HOLD_S
from firehose.healer import Healer, OnRecords
from firehose.identity import DidResolver, Document
from firehose.resync_shell import RepoFetcher
from firehose.serve import FrameServer
from firehose.subscribe import Backoff, Subscriber
from firehose.trace import TraceWriter
from firehose.verify import Judgement, Policy, ResolveDid, Verdict, Verifier
from firehose.window import MAX_LAG_FRAMES, MAX_WINDOW_BYTES, Entry, FrameWindow
from firehose.window_file import WindowFile

log = logging.getLogger(__name__)

PASSED_ON: Final = frozenset({Verdict.ACCEPT, Verdict.NOOP})
MAX_ROUNDS: Final = 4  # of needs for one frame; the verifier promises two
HOLD_S: Final = 30.0  # how long the stream waits for a directory that is away, before a commit goes unjudged
HOLD_PAUSE_S: Final = 0.25


class Tap:
    """`async with Tap(…) as tap: await tap.run()`; clients connect to `tap.url`, another tap too."""

    def __init__(
        self,
        upstream_url: str,
        directory: DidResolver,
        state_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cursor: int | None = None,
        clock: Callable[[], int] = now_ms,
        record: Path | None = None,
        dids: Iterable[str] = (),
        collections: Iterable[str] = (),
        max_window_bytes: int = MAX_WINDOW_BYTES,
        max_lag_frames: int = MAX_LAG_FRAMES,
        idle_timeout_s: float | None = None,
        give_up_after_s: float | None = None,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        hold_s: float = HOLD_S,
        policy: Policy = Policy.STRICT,
        resync: bool = True,
        resync_hold_s: float = RESYNC_HOLD_S,
        on_records: OnRecords | None = None,
    ) -> None:
        """Prepare; nothing is opened before the context is entered.

        Args:
            upstream_url: of a PDS, a relay or another tap.
            directory: resolves DIDs for the verifier; its owner closes it.
            state_dir: holds the window; one tap at a time.
            host: address to serve on.
            port: 0 takes any free one; see `port` afterwards.
            cursor: where to begin when the window is empty: 0 for all that upstream keeps, None for now.
            clock: epoch milliseconds: the time of receipt, and the verifier's clock.
            record: a trace file for every frame as received, accepted or not.
            dids: ask upstream for these accounts only; it must be a tap.
            collections: ask upstream for these collections only; it must be a tap.
            max_window_bytes: of frames that are kept; the file holds at most twice as much.
            max_lag_frames: a live client further behind is dropped.
            idle_timeout_s: reconnect when upstream says nothing for so long.
            give_up_after_s: `run` raises when there is no upstream for so long; None: try for ever.
            backoff: pauses between attempts upstream.
            rng: draws their jitter.
            hold_s: seconds to wait for a did:plc directory that does not answer.
            policy: how much a commit must prove; if upstream is asked for some collections only, commits are
                left out of the stream, and STRICT means FILTERED.
            resync: read a repository whole when events of it were missed; without, they stay missed.
            resync_hold_s: seconds that the stream waits for that, at most.
            on_records: gets the records that were missed.
        """
        collections = tuple(collections)
        self._directory = directory
        self._state_dir = state_dir
        self._cursor = cursor
        self._clock = clock
        self._record_path = record
        self._max_window_bytes = max_window_bytes
        self._hold_s = hold_s
        self._new_subscriber = partial(
            Subscriber,
            upstream_url,
            dids=tuple(dids),
            collections=collections,
            idle_timeout_s=idle_timeout_s,
            backoff=backoff,
            rng=rng,
            give_up_after_s=give_up_after_s,
        )
        self._new_server = partial(FrameServer, host, port, max_lag_frames=max_lag_frames, health=self.stats)
        self._upstream_url = upstream_url
        if policy is Policy.STRICT and (collections or not resync):
            policy = Policy.FILTERED
        self._verifier = Verifier(policy=policy)
        self._healer = Healer(
            self._verifier,
            RepoFetcher(upstream_url, directory),
            clock=clock,
            rng=rng or random.Random(),
            hold_s=resync_hold_s,
            on_records=on_records,
        )
        self._seen: Counter[str] = Counter()
        self._closing = AsyncExitStack()
        self._file: WindowFile | None = None
        self._server: FrameServer | None = None
        self._subscriber: Subscriber | None = None
        self._record: TraceWriter | None = None

    async def __aenter__(self) -> Self:
        """Read the window and serve it; upstream is connected by `run`.

        Raises:
            WindowUnavailable: the window is damaged, not writable, or another tap's.
            PortInUse: somebody else has the port.
            ListenFailed: the address cannot be taken.
        """
        async with AsyncExitStack() as stack:
            self._file = WindowFile(self._state_dir, begins_late=self._cursor != 0)
            stack.callback(self._file.close)
            window = self._load(self._file)
            if self._record_path is not None:
                self._record = stack.enter_context(TraceWriter(self._record_path))
            last_seq = window.last_seq
            self._subscriber = self._new_subscriber(cursor=self._cursor if last_seq is None else last_seq)
            stack.push_async_callback(self._subscriber.close)
            await stack.enter_async_context(self._healer)
            self._server = await stack.enter_async_context(self._new_server(window))
            self._closing = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._closing.aclose()

    @property
    def url(self) -> str:
        """ws://host:port, for a subscriber or another tap."""
        return self._opened_server().url

    @property
    def port(self) -> int:
        """The port that was taken."""
        return self._opened_server().port

    async def run(self) -> None:
        """Follow upstream until cancelled.

        Raises:
            SubscriptionError: upstream cannot be followed any further; its subclasses say why.
            WindowUnavailable: the disk refuses; what was accepted before is safe.
        """
        if self._subscriber is None or self._file is None:
            raise RuntimeError("enter the tap's context first")
        async for frame in self._subscriber.frames():
            await self._take(frame, self._file)
            if self._file.size_bytes > 2 * self._max_window_bytes:
                await self._compact(self._file)

    def stats(self) -> dict[str, Any]:
        """What went through: seen = verified + rejected + ignored + the other verdicts."""
        verdicts: dict[str, dict[str, int]] = {}
        for (verdict, reason), count in self._verifier.counters.items():
            verdicts.setdefault(verdict.value, {})[reason] = count
        totals = {verdict: sum(reasons.values()) for verdict, reasons in verdicts.items()}
        subscriber = self._subscriber
        return {
            "seen": self._seen["seen"],
            "verified": sum(totals.get(verdict, 0) for verdict in PASSED_ON),
            "rejected": totals.get(Verdict.REJECT, 0),
            "rejected_by_reason": verdicts.get(Verdict.REJECT, {}),
            "verdicts": verdicts,
            "restored": self._seen["restored"],
            "held": self._seen["held"],
            "resync": self._healer.stats(),
            **({} if self._server is None else self._server.stats()),
            "upstream": {
                "url": self._upstream_url,
                "state": None if subscriber is None else subscriber.state.value,
                "cursor": None if subscriber is None else subscriber.cursor,
                "counters": {} if subscriber is None else dict(subscriber.counters),
            },
        }

    # one frame

    async def _take(self, frame: bytes, file: WindowFile) -> None:
        self._seen["seen"] += 1
        received_ms = self._clock()
        if self._record is not None:
            self._record_frame(self._record, received_ms, frame)
        judgement = await self._judge(frame, received_ms)
        server = self._opened_server()
        if judgement.verdict is Verdict.INFO:
            server.notify(frame)
        if judgement.verdict is Verdict.DESYNC:
            log.info("gap", extra={"did": getattr(judgement.event, "did", None), "reason": judgement.reason})
            for healed in await self._healer.heal(judgement, frame, received_ms, server.window.last_seq):
                self._pass_on(healed, parse_frame(healed), received_ms, file)
            return
        if judgement.verdict not in PASSED_ON:
            log.debug("not passed on", extra={"verdict": judgement.verdict, "reason": judgement.reason})
            return
        self._healer.follow(judgement.event)
        if isinstance(judgement.event, IdentityEvent):
            self._directory.purge(judgement.event.did)
        self._pass_on(frame, judgement.event, received_ms, file)

    def _pass_on(self, frame: bytes, event: Frame | None, received_ms: int, file: WindowFile) -> None:
        entry = _entry(frame, event)
        # On disk first: a client must never have seen what we would not know of after a crash.
        file.append(received_ms * 1000, frame)
        self._opened_server().publish(entry.frame, entry.seq, entry.did, entry.collections)

    async def _judge(self, frame: bytes, received_ms: int) -> Judgement:
        judgement = self._verifier.receive(frame, received_ms)
        for _ in range(MAX_ROUNDS):
            if not judgement.needs:
                break
            for need in judgement.needs:
                self._verifier.learn(need.did, await self._resolve(need))
            judgement = self._verifier.receive(frame, received_ms)
        return judgement

    async def _resolve(self, need: ResolveDid) -> Document | None:
        """The document; None: there is none, or nobody could say for as long as the stream may wait."""
        if need.refresh:
            self._directory.refresh(need.did)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_s
        while True:
            try:
                return await self._directory.resolve(need.did)
            except DirectoryUnavailable as error:
                # One directory serves every did:plc: without it nothing can be judged, so the stream waits. A
                # did:web host speaks for one account only, and must not hold up the others.
                if not need.did.startswith("did:plc:") or loop.time() >= deadline:
                    log.warning("DID not resolved", extra={"did": need.did, "reason": error.reason})
                    return None
                self._seen["held"] += 1
                await asyncio.sleep(HOLD_PAUSE_S)

    def _record_frame(self, record: TraceWriter, received_ms: int, frame: bytes) -> None:
        try:
            record.append(received_ms * 1000, frame)
            record.flush()
        except OSError as error:
            raise WindowUnavailable(str(record.path), error.strerror or str(error)) from error

    # the window

    async def _compact(self, file: WindowFile) -> None:
        """Drop old frames from the file, in a thread so that clients are served meanwhile."""
        work = asyncio.ensure_future(
            asyncio.to_thread(file.compact, self._opened_server().window.missing_seq)
        )
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    def _load(self, file: WindowFile) -> FrameWindow:
        """The window as the file holds it; the verifier takes up what it proved before."""
        window = FrameWindow(max_bytes=self._max_window_bytes)
        for entry in self._entries(file):
            if len(window) == 0 and self._seen["marked"]:
                window = FrameWindow(missing_seq=entry.seq - 1, max_bytes=self._max_window_bytes)
            window.append(entry)
            self._seen["restored"] += 1
        return window

    def _entries(self, file: WindowFile) -> Iterator[Entry]:
        for record in file.frames():
            try:
                if peek(record.frame).type is FrameType.INFO:
                    self._seen["marked"] += 1
                    continue
                self._verifier.trust(record.frame)
                event = parse_frame(record.frame)
                self._healer.follow(event)
            except FirehoseError as error:
                raise WindowUnavailable(str(file.path), f"a frame in it is damaged: {error}") from error
            yield _entry(record.frame, event)

    def _opened_server(self) -> FrameServer:
        if self._server is None:
            raise RuntimeError("enter the tap's context first")
        return self._server


def _entry(frame: bytes, event: Frame | None) -> Entry:
    """What the filters look at."""
    seq, did = getattr(event, "seq", 0), getattr(event, "did", None)
    if not isinstance(event, CommitEvent):
        return Entry(seq, frame, did)
    return Entry(seq, frame, did, tuple(dict.fromkeys(op.path.partition("/")[0] for op in event.ops)))
