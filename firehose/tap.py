"""Tap: one upstream, verified once, served on to many.

Upstream frames go into the verifier; what it accepts is written to the window and then served, with the
upstream's seq. The window on disk is the only state.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from firehose.account_states import pack_accounts, unpack_accounts
from firehose.clock import now_ms
from firehose.cursor_file import CursorFile
from firehose.errors import DirectoryUnavailable, FirehoseError, WindowUnavailable
from firehose.frames import CommitEvent, Frame, IdentityEvent, SyncEvent, parse_frame
from firehose.healer import HOLD_S as RESYNC_HOLD_S
from firehose.healer import Healer, OnRecords
from firehose.identity import DidResolver, Document
from firehose.judging import PASSED_ON, Judging, OneProcess, SeveralProcesses, Taken
from firehose.kept_window import LIMITS, KeptWindow
from firehose.notes import account_note
from firehose.recorder import KEEP_ALL, Recorder
from firehose.relays import Relays
from firehose.resync_journal import ResyncJournal
from firehose.resync_shell import RepoFetcher
from firehose.segments import TraceLimits
from firehose.serve import FrameServer, entry_of
from firehose.source import FrameSource
from firehose.subscribe import Backoff, Subscriber
from firehose.verify import Judgement, Policy, ResolveDid, Verdict, Verifier
from firehose.window import MAX_LAG_FRAMES, MAX_WINDOW_BYTES

log = logging.getLogger(__name__)

HOLD_S: Final = 30.0  # how long the stream waits for a directory that is away, before a commit goes unjudged
HOLD_PAUSE_S: Final = 0.25
CURSORS: Final = "cursors.json"
RESYNCS: Final = "resyncs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSpec:
    """How a tap follows and serves, where the defaults do not fit."""

    dids: tuple[str, ...] = ()  # ask upstream for these accounts only; it must be a tap
    collections: tuple[str, ...] = ()  # likewise
    upstream_name: str | None = None  # a single upstream's cursor is kept under it; None: under its URL
    max_window_bytes: int = MAX_WINDOW_BYTES  # of frames that are kept in memory
    window: TraceLimits = LIMITS  # what is kept on disk
    record: TraceLimits = KEEP_ALL  # of a trace in a directory
    max_lag_frames: int = MAX_LAG_FRAMES  # a live client further behind is dropped
    idle_timeout_s: float | None = None  # reconnect when upstream says nothing for so long
    give_up_after_s: float | None = None  # `run` raises when there is no upstream for so long; None: never
    hold_s: float = HOLD_S
    backoff: Backoff = field(default_factory=Backoff)  # pauses between attempts upstream
    rng: random.Random = field(default_factory=random.Random)  # draws their jitter
    verify_processes: int = 1  # 1: in the tap's own; the verdicts are the same
    policy: Policy = Policy.STRICT  # how much a commit must prove
    pds_host: str | None = None  # upstream is this PDS, host[:port]: it may speak for its own accounts only
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
        upstream_url: str | Sequence[str],
        directory: DidResolver,
        state_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cursor: int | None = None,
        clock: Callable[[], int] = now_ms,
        record: Path | None = None,
        spec: TapSpec | None = None,
        source: Callable[[int | None], FrameSource] | None = None,
    ) -> None:
        """Prepare; nothing is opened before the context is entered.

        Args:
            upstream_url: of a PDS, a relay or another tap. Of several, each event comes from the first that
                has it, and the tap gives it a seq of its own.
            directory: resolves DIDs for the verifier; its owner closes it.
            state_dir: holds the window; one tap at a time.
            host: address to serve on.
            port: 0 takes any free one; see `port` afterwards.
            cursor: where to begin when the window is empty: 0 for all that upstream keeps, None for now.
            clock: epoch milliseconds: the time of receipt, and the verifier's clock.
            record: a trace of every frame as received, accepted or not: an `.fht` file, else a directory of
                compressed segments.
            spec: everything else.
            source: opens what is followed, after the seq of the last frame in the window or `cursor`; default
                `Relays` of `upstream_url`, which repositories are read from in any case.
        """
        self._upstream_urls = (upstream_url,) if isinstance(upstream_url, str) else tuple(upstream_url)
        self._directory = directory
        self._state_dir = state_dir
        self._address = (host, port)
        self._cursor = cursor
        self._clock = clock
        self._record_path = record
        self._spec = spec or TapSpec()
        self._verifier = Verifier(policy=self._spec.stream_policy, host=self._spec.pds_host)
        self._healer = Healer(
            self._verifier,
            RepoFetcher(self._upstream_urls, directory),
            clock=clock,
            rng=self._spec.rng,
            hold_s=self._spec.resync_hold_s,
            on_records=self._spec.on_records,
            journal=ResyncJournal(state_dir / RESYNCS),
        )
        self._judging: Judging = OneProcess(self._verifier, self._resolve)
        self._seen: Counter[str] = Counter()
        self._closing = AsyncExitStack()
        self._window: KeptWindow | None = None
        self._server: FrameServer | None = None
        self._open_source = source or self._follow
        self._source: FrameSource | None = None
        self._record: Recorder | None = None

    async def __aenter__(self) -> Self:
        """Read the window and serve it; upstream is connected by `run`.

        Raises:
            WindowUnavailable: the window or the trace is damaged, not writable, or another tap's.
            PortInUse: somebody else has the port.
            ListenFailed: the address cannot be taken.
        """
        async with AsyncExitStack() as stack:
            window = self._open_window()
            stack.callback(window.close)
            self._restore(window)
            self._window = window
            if self._record_path is not None:
                self._record = stack.enter_context(self._open_record(self._record_path))
            if self._spec.verify_processes > 1:
                self._judging = SeveralProcesses(self._spec.verify_processes, self._verifier, self._resolve)
            await stack.enter_async_context(self._judging)
            self._source = self._open_source(self._cursor if window.last_seq is None else window.last_seq)
            stack.push_async_callback(self._source.close)
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
        if self._source is None or self._window is None:
            raise RuntimeError("enter the tap's context first")
        async for taken in self._judging.judge(self._received(self._source)):
            await self._take(taken, self._window)
            if taken.seq is not None:
                self._source.done(taken.seq)

    def stats(self) -> dict[str, Any]:
        """What went through: seen = verified + rejected + ignored + the other verdicts."""
        verdicts: dict[str, dict[str, int]] = {}
        for (verdict, reason), count in self._judging.counters.items():
            verdicts.setdefault(verdict.value, {})[reason] = count
        totals = {verdict: sum(reasons.values()) for verdict, reasons in verdicts.items()}
        return {
            "seen": self._seen["seen"],
            "verified": sum(totals.get(verdict, 0) for verdict in PASSED_ON),
            "rejected": totals.get(Verdict.REJECT, 0),
            "rejected_by_reason": verdicts.get(Verdict.REJECT, {}),
            "verdicts": verdicts,
            "restored": self._seen["restored"],
            "held": self._seen["held"],
            "resync": self._healer.stats(),
            **({} if self._record is None else {"record": self._record.stats()}),
            **({} if self._window is None else {"disk_bytes": self._window.disk_bytes}),
            **({} if self._server is None else self._server.stats()),
            "upstream": {"url": ", ".join(self._upstream_urls)}
            if self._source is None
            else self._source.stats(),
        }

    def _follow(self, last_seq: int | None) -> Relays:
        file = CursorFile(self._state_dir / CURSORS)
        return Relays(
            self._upstream_urls,
            last_seq,
            self._subscribe,
            file,
            begin=self._cursor,
            name=self._spec.upstream_name,
            clock=self._clock,
        )

    def _subscribe(self, url: str, cursor: int | None) -> Subscriber:
        spec = self._spec
        return Subscriber(
            url,
            cursor=cursor,
            dids=spec.dids,
            collections=spec.collections,
            idle_timeout_s=spec.idle_timeout_s,
            backoff=spec.backoff,
            rng=spec.rng,
            give_up_after_s=spec.give_up_after_s,
        )

    # one frame

    async def _received(self, source: FrameSource) -> AsyncIterator[tuple[int, bytes]]:
        async for frame in source.frames():
            self._seen["seen"] += 1
            received_ms = self._clock()
            if self._record is not None:
                self._record.frame(received_ms * 1000, frame)
            yield received_ms, frame

    async def _take(self, taken: Taken, window: KeptWindow) -> None:
        frame, received_ms, judgement = taken.frame, taken.received_ms, taken.judgement
        if judgement.verdict is Verdict.INFO:
            self._opened_server().notify(frame)
        if judgement.verdict is Verdict.DESYNC:
            log.info("gap", extra={"did": getattr(judgement.event, "did", None), "reason": judgement.reason})
            for healed in await self._healer.heal(judgement, frame, received_ms, window.last_seq):
                self._pass_on(healed, parse_frame(healed), received_ms, judgement, window)
            self._note_adoption(taken)
            return
        if judgement.verdict not in PASSED_ON:
            log.debug("not passed on", extra={"verdict": judgement.verdict, "reason": judgement.reason})
            return
        assert judgement.event is not None, "a verdict that passes a frame on names its event"
        self._healer.follow(judgement.event)
        if isinstance(judgement.event, IdentityEvent):
            self._directory.purge(judgement.event.did)
        self._pass_on(frame, judgement.event, received_ms, judgement, window)

    def _pass_on(
        self, frame: bytes, event: Frame, received_ms: int, judgement: Judgement, window: KeptWindow
    ) -> None:
        assert judgement.verdict is not None
        entry = entry_of(frame, event, judgement.verdict.value, judgement.reason)
        # On disk first: a client must never have seen what we would not know of after a crash.
        window.write(received_ms * 1000, entry)
        self._opened_server().append(entry)

    async def _resolve(self, need: ResolveDid) -> Document | None:
        document = await self._ask(need)
        if self._record is not None:
            self._record.note(self._clock() * 1000, "document", did=need.did, document=document)
        return document

    async def _ask(self, need: ResolveDid) -> Document | None:
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

    # the window

    def _open_window(self) -> KeptWindow:
        return KeptWindow(
            self._state_dir,
            begins_late=self._cursor != 0,
            memory_bytes=self._spec.max_window_bytes,
            limits=self._spec.window,
            state=lambda: pack_accounts(self._verifier.accounts()),
        )

    def _open_record(self, path: Path) -> Recorder:
        try:
            record = Recorder(path, self._spec.record)
        except (OSError, FirehoseError) as error:
            raise WindowUnavailable(str(path), str(error)) from error
        now_us = self._clock() * 1000
        if record.is_new:
            for did, state in self._verifier.accounts():
                record.note(now_us, "account", **account_note(did, state))
        record.note(now_us, "start", after_seq=self._verifier.last_seq)
        return record

    def _note_adoption(self, taken: Taken) -> None:
        """Where the stream goes on after a gap, for whoever replays it and cannot read repositories."""
        event = taken.judgement.event
        if self._record is None or not isinstance(event, CommitEvent | SyncEvent):
            return
        repo = self._verifier.account(event.did).repo
        if repo is not None:
            told = {"did": event.did, "rev": repo.rev, "data": str(repo.data)}
            self._record.note(taken.received_ms * 1000, "adopt", after_seq=event.seq, **told)

    def _restore(self, window: KeptWindow) -> None:
        """Take up what an earlier run passed on; the verifier trusts what it proved before."""
        for did, known in unpack_accounts(window.saved_state() or b"") or ():
            self._verifier.restore(
                did,
                rev=None if known.repo is None else known.repo.rev,
                data=None if known.repo is None else known.repo.data,
                active=known.active,
                status=known.status,
                seq=known.seq,
            )
        for kept in window.restored():
            try:
                event = self._verifier.trust(kept.frame)
                self._healer.follow(event)
            except FirehoseError as error:
                raise WindowUnavailable(str(window.path), f"a frame in it is damaged: {error}") from error
            window.restore(entry_of(kept.frame, event, kept.verdict, kept.reason))
            self._seen["restored"] += 1

    def _opened_server(self) -> FrameServer:
        if self._server is None:
            raise RuntimeError("enter the tap's context first")
        return self._server
