"""Several hosts as one stream: each followed from its own cursor, each event once, in one numbering.

A reader per host does nothing but read: what has not been asked for yet waits here, within a bound, and a
host that runs ahead of it is left and asked again from where it was left, before it calls us too slow. A host
that cannot be followed any further does not end the stream while another one can.

The same event comes from each host. Copies that agree in every byte but their seq are dropped here; a copy
that differs goes on to the verifier, which ignores a rev that it has accepted already. So a host that alters
an event cannot keep out the true one.
"""

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from firehose.clock import now_ms
from firehose.cursor_file import CursorFile, Cursors, Numbering
from firehose.errors import FrameInvalid, SubscriptionError
from firehose.frames import peek
from firehose.renumber import renumber, without_seq
from firehose.subscribe import Subscriber, SubscriberState

log = logging.getLogger(__name__)

MAX_AHEAD_FRAMES: Final = (
    16_384  # as many as the relay of github.com/bluesky-social/indigo holds for a consumer
)
MAX_AHEAD_BYTES: Final = 64_000_000
MAX_DIGESTS: Final = (
    65_536  # of events handed out: a minute of the whole network; one host lags another by less
)
SAVE_INTERVAL_S: Final = 5.0
TURN_FRAMES: Final = 16  # handed out in a row before the readers and servers of this process get their turn
SEQ_STEP: Final = 2  # of our own numbers: in between is room for a commit that heals a gap

Subscribe = Callable[[str, int | None], Subscriber]


@dataclass(slots=True, kw_only=True)
class _Relay:
    url: str
    name: str  # its cursor is kept under it
    subscriber: Subscriber
    cursor: int | None  # everything of this host up to here is dealt with
    failure: SubscriptionError | None = None
    is_over: bool = False


class Relays:
    """A `FrameSource` of one or more hosts."""

    def __init__(
        self,
        urls: Sequence[str],
        last_seq: int | None,
        subscribe: Subscribe,
        file: CursorFile,
        *,
        begin: int | None = None,
        name: str | None = None,
        clock: Callable[[], int] = now_ms,
        max_ahead_frames: int = MAX_AHEAD_FRAMES,
    ) -> None:
        """Find out where each host was left; nothing is opened before the first frame is asked for.

        Args:
            urls: of the hosts. One alone keeps its own numbers, until it is replaced by another.
            last_seq: the highest that was handed out and kept, None if there is none.
            subscribe: gives the subscriber of a URL from a cursor.
            file: keeps the cursors.
            begin: where to begin at a host that was never followed: 0 for all it keeps, None for now.
            name: under which the cursor of a single host is kept, if its URL changes and its numbers do not.
            clock: epoch milliseconds; our own numbers begin at its microseconds, above an earlier life's.
            max_ahead_frames: how many frames may wait here.

        Raises: WindowUnavailable: the cursors cannot be read. HttpAddressInvalid: a URL is none.
        """
        if not urls or len(set(urls)) != len(urls):
            raise ValueError("one or more different URLs")
        self._file = file
        self._saved = file.load()
        names = urls if name is None or len(urls) > 1 else (name,)
        was_other = bool(self._saved.by_url) and names[0] not in self._saved.by_url
        if len(urls) > 1 or was_other:
            is_upstreams = self._saved.numbering is Numbering.UPSTREAM
            if is_upstreams and len(self._saved.by_url) == 1 and last_seq is not None:
                url, seq = next(iter(self._saved.by_url.items()))
                self._saved.by_url[url] = max(
                    seq, last_seq
                )  # the window says it newer, and in that host's numbers
            self._saved.numbering = Numbering.OWN
        self._relays = [
            _Relay(url=url, name=name, subscriber=subscribe(url, cursor), cursor=cursor)
            for url, name in zip(urls, names, strict=True)
            for cursor in (self._start(name, last_seq, begin),)
        ]
        self._last_seq = max(last_seq or 0, self._saved.last_seq or 0) or clock() * 1000
        self._done_seq = last_seq
        self._max_ahead_frames = max_ahead_frames
        self._ahead: deque[tuple[_Relay, bytes]] = deque()
        self._ahead_bytes = 0
        self._pending: deque[tuple[int, _Relay, int]] = deque()  # our seq, and the host's that ends with it
        self._digests: OrderedDict[bytes, _Relay] = OrderedDict()
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []
        self._saved_at_s: float | None = None
        self._is_closed = False
        self.counters: Counter[str] = Counter()

    @property
    def numbering(self) -> Numbering:
        """Whose numbers the frames have."""
        return self._saved.numbering

    async def frames(self) -> AsyncIterator[bytes]:
        """Every frame from here on, until we are closed.

        Raises: SubscriptionError: no host can be followed any further; it is the last one's reason.
        """
        if not self._readers:
            self._readers = [asyncio.ensure_future(self._read(relay)) for relay in self._relays]
        turn = 0
        while not self._is_closed:
            while self._ahead:
                frame = self._next()
                if frame is not None:
                    yield frame
                turn += 1
                if turn % TURN_FRAMES == 0:
                    await asyncio.sleep(0)
            self._check_hosts()
            self._arrived.clear()
            await self._arrived.wait()

    def done(self, seq: int) -> None:
        """Everything up to `seq` is dealt with: the hosts need not send it again.

        Raises: WindowUnavailable: the disk refuses.
        """
        self._done_seq = seq
        while self._pending and self._pending[0][0] <= seq:
            _, relay, upstream_seq = self._pending.popleft()
            relay.cursor = upstream_seq
        now_s = asyncio.get_running_loop().time()
        if self._saved_at_s is None or now_s - self._saved_at_s >= SAVE_INTERVAL_S:
            self._saved_at_s = now_s
            self._save()

    def stats(self) -> dict[str, Any]:
        """How we stand with the hosts together, and with each if they are several."""
        each = [relay.subscriber.stats() | {"saved": relay.cursor} for relay in self._relays]
        counters: Counter[str] = Counter(self.counters)
        for told in each:
            counters.update(told["counters"])
        states = [relay.subscriber.state for relay in self._relays]
        is_one = self.numbering is Numbering.UPSTREAM
        return {
            "url": ", ".join(relay.url for relay in self._relays),
            "state": (SubscriberState.LIVE if SubscriberState.LIVE in states else states[0]).value,
            "cursor": each[0]["cursor"] if is_one else self._done_seq,
            "counters": dict(counters),
            "numbering": self.numbering.value,
            "ahead": len(self._ahead),
            **({} if is_one else {"relays": each}),
        }

    async def close(self) -> None:
        """Leave every host and save the cursors; `frames` ends."""
        self._is_closed = True
        self._arrived.set()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for relay in self._relays:
            await relay.subscriber.close()
        if self._saved_at_s is not None:
            self._save()

    # one host

    def _start(self, name: str, last_seq: int | None, begin: int | None) -> int | None:
        """The cursor to begin with at a host."""
        saved = self._saved.by_url.get(name)
        if self.numbering is Numbering.UPSTREAM and last_seq is not None:
            return max(last_seq, saved or 0)
        return begin if saved is None else saved

    async def _read(self, relay: _Relay) -> None:
        """Read ahead, until there is no room: then leave, and come back to the same place."""
        try:
            while (frame := await relay.subscriber.receive()) is not None:
                self._ahead.append((relay, frame))
                self._ahead_bytes += len(frame)
                self._arrived.set()
                if self._is_ahead(self._max_ahead_frames, MAX_AHEAD_BYTES):
                    await relay.subscriber.pause()
                    while self._is_ahead(self._max_ahead_frames // 2, MAX_AHEAD_BYTES // 2):
                        self._room.clear()
                        await self._room.wait()
        except SubscriptionError as error:
            relay.failure = error
            log.error("host given up", extra={"url": relay.url, "reason": str(error)})
        finally:
            relay.is_over = True
            self._arrived.set()

    def _is_ahead(self, frames: int, size_bytes: int) -> bool:
        return len(self._ahead) >= frames or self._ahead_bytes >= size_bytes

    def _check_hosts(self) -> None:
        """Raises: SubscriptionError: there is nobody left to follow."""
        failures = [relay.failure for relay in self._relays if relay.is_over]
        if len(failures) == len(self._relays) and not self._is_closed:
            failure = next((failure for failure in reversed(failures) if failure is not None), None)
            if failure is not None:
                raise failure
            self._is_closed = True

    # one frame

    def _next(self) -> bytes | None:
        """The next frame as it is handed out; None: another host's copy of it was."""
        relay, frame = self._ahead.popleft()
        self._ahead_bytes -= len(frame)
        self._room.set()
        seq = peek(frame).seq
        if seq is None:
            return frame
        if self.numbering is Numbering.UPSTREAM:
            self._pending.append((seq, relay, seq))
            return frame
        try:
            if self._is_copy(relay, frame):
                self._pending.append((self._last_seq, relay, seq))
                self.counters["copies"] += 1
                return None
            frame = renumber(frame, self._last_seq + SEQ_STEP)
        except FrameInvalid:
            return frame  # the verifier says what is wrong with it
        self._last_seq += SEQ_STEP
        self._pending.append((self._last_seq, relay, seq))
        return frame

    def _is_copy(self, relay: _Relay, frame: bytes) -> bool:
        """Whether another host has said the same; one that repeats itself is left to the verifier."""
        digest = hashlib.sha256(without_seq(frame)).digest()[:16]
        first = self._digests.setdefault(digest, relay)
        if len(self._digests) > MAX_DIGESTS:
            self._digests.popitem(last=False)
        return first is not relay

    def _save(self) -> None:
        known = self._saved.by_url | {
            relay.name: relay.cursor for relay in self._relays if relay.cursor is not None
        }
        own_seq = self._last_seq if self.numbering is Numbering.OWN else None
        self._file.save(Cursors(numbering=self.numbering, last_seq=own_seq, by_url=known))
