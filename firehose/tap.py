"""Tap: one upstream, verified once, served on to many.

Upstream frames go into the verifier; what it accepts is appended to the window file and then served, with the
upstream's seq. The window file is the only state.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from firehose.clock import now_ms
from firehose.errors import DirectoryUnavailable, FirehoseError, WindowUnavailable
from firehose.frames import Frame, FrameType, IdentityEvent, parse_frame, peek
from firehose.healer import HOLD_S as RESYNC_HOLD_S
from firehose.healer import Healer, OnRecords
from firehose.identity import DidResolver, Document
from firehose.resync_shell import RepoFetcher
from firehose.serve import FrameServer, entry_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSpec:
    """How a tap follows and serves, where the defaults do not fit."""

    dids: tuple[str, ...] = ()  # ask upstream for these accounts only; it must be a tap
    collections: tuple[str, ...] = ()  # likewise
    max_window_bytes: int = MAX_WINDOW_BYTES  # of frames that are kept; the file holds at most twice as much
    max_lag_frames: int = MAX_LAG_FRAMES  # a live client further behind is dropped
    idle_timeout_s: float | None = None  # reconnect when upstream says nothing for so long
    give_up_after_s: float | None = None  # `run` raises when there is no upstream for so long; None: never
    hold_s: float = HOLD_S
    backoff: Backoff = field(default_factory=Backoff)  # pauses between attempts upstream
    rng: random.Random = field(default_factory=random.Random)  # draws their jitter
    policy: Policy = Policy.STRICT  # how much a commit must prove
    resync: bool = True  # read a repository whole when events of it were missed; else they stay missed
    resync_hold_s: float = RESYNC_HOLD_S  # the stream waits for one archive at most so long
    on_records: OnRecords | None = None  # gets the records that were missed

    @property
    def stream_policy(self) -> Policy:
        """The policy, as far as this stream allows it: a filter leaves commits out and breaks chains."""
        is_broken = self.policy is Policy.STRICT and (self.collections or not self.resync)
        return Policy.FILTERED if is_broken else self.policy


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
        spec: TapSpec | None = None,
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
            spec: everything else.
        """
        self._upstream_url = upstream_url
        self._directory = directory
        self._state_dir = state_dir
        self._address = (host, port)
        self._cursor = cursor
        self._clock = clock
        self._record_path = record
        self._spec = spec or TapSpec()
        self._verifier = Verifier(policy=self._spec.stream_policy)
        self._healer = Healer(
            self._verifier,
            RepoFetcher(upstream_url, directory),
            clock=clock,
            rng=self._spec.rng,
            hold_s=self._spec.resync_hold_s,
            on_records=self._spec.on_records,
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
            self._subscriber = self._new_subscriber(
                self._cursor if window.last_seq is None else window.last_seq
            )
            stack.push_async_callback(self._subscriber.close)
            await stack.enter_async_context(self._healer)
            server = FrameServer(
                *self._address, window, max_lag_frames=self._spec.max_lag_frames, health=self.stats
            )
            self._server = await stack.enter_async_context(server)
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
        """Follow upstream until cancelled; once for each time the context is entered.

        Raises:
            SubscriptionError: upstream cannot be followed any further; its subclasses say why.
            WindowUnavailable: the disk refuses; what was accepted before is safe.
        """
        if self._subscriber is None or self._file is None:
            raise RuntimeError("enter the tap's context first")
        async for frame in self._subscriber.frames():
            await self._take(frame, self._file)
            if self._file.size_bytes > 2 * self._spec.max_window_bytes:
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

    def _new_subscriber(self, cursor: int | None) -> Subscriber:
        spec = self._spec
        return Subscriber(
            self._upstream_url,
            cursor=cursor,
            dids=spec.dids,
            collections=spec.collections,
            idle_timeout_s=spec.idle_timeout_s,
            backoff=spec.backoff,
            rng=spec.rng,
            give_up_after_s=spec.give_up_after_s,
        )

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
        assert judgement.event is not None, "a verdict that passes a frame on names its event"
        self._healer.follow(judgement.event)
        if isinstance(judgement.event, IdentityEvent):
            self._directory.purge(judgement.event.did)
        self._pass_on(frame, judgement.event, received_ms, file)

    def _pass_on(self, frame: bytes, event: Frame, received_ms: int, file: WindowFile) -> None:
        # On disk first: a client must never have seen what we would not know of after a crash.
        file.append(received_ms * 1000, frame)
        self._opened_server().append(entry_of(frame, event))

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
        deadline = loop.time() + self._spec.hold_s
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
        window = FrameWindow(max_bytes=self._spec.max_window_bytes)
        for entry in self._entries(file):
            if len(window) == 0 and self._seen["marked"]:
                window = FrameWindow(missing_seq=entry.seq - 1, max_bytes=self._spec.max_window_bytes)
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
            yield entry_of(record.frame, event)

    def _opened_server(self) -> FrameServer:
        if self._server is None:
            raise RuntimeError("enter the tap's context first")
        return self._server
