"""Subscriber: follow one event stream through everything that happens to connections.

Light on purpose: agents import this.
"""

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from firehose.errors import (
    CursorInFuture,
    FrameInvalid,
    HttpAddressInvalid,
    SubscriptionRefused,
    UpstreamUnreachable,
)
from firehose.frames import ErrorFrame, FramePeek, FrameType, parse_frame, peek

log = logging.getLogger(__name__)

SUBSCRIBE_PATH: Final = "/xrpc/com.atproto.sync.subscribeRepos"
USER_AGENT: Final = "skylease/0.1 (+https://pypi.org/project/skylease)"
MAX_FRAME_BYTES: Final = 5_000_000  # atproto.com/specs/event-stream, "5 MBytes"; indigo reads as much
MAX_URL_CHARS: Final = 8_000  # servers cut a request line at 8 KiB
MAX_QUARANTINED: Final = 64  # digests of frames that cost us a connection once
OPEN_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 300.0
PERMANENT_STATUSES: Final = frozenset({405, 426, 501})  # no stream here, today or tomorrow


class SubscriberState(StrEnum):
    """How a subscriber stands with its upstream."""

    IDLE = "idle"  # nobody has asked for a frame yet
    CONNECTING = "connecting"
    LIVE = "live"  # connected; catching up or at the tip
    WAITING = "waiting"  # for the next attempt
    STOPPED = "stopped"  # closed, or the stream cannot be followed any further


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds."""

    base: float = 0.25
    cap: float = 60.0
    floor: float = 0.02  # even the luckiest draw leaves the host a moment

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait before the attempt number `attempt` (0 is the first retry)."""
        return max(self.floor, rng.uniform(0, min(self.cap, self.base * 2.0 ** min(attempt, 32))))


class Subscriber:
    """Raw frames of one host, each seq at most once and in order, resumed after every break.

    `async with Subscriber(url, cursor=…) as subscriber: async for frame in subscriber.frames(): …`
    `cursor` is the seq of the last frame handed out: save it after the frame is dealt with.
    """

    path = SUBSCRIBE_PATH  # where an address without a path is asked

    def __init__(
        self,
        url: str,
        *,
        cursor: int | None = None,
        dids: Iterable[str] = (),
        collections: Iterable[str] = (),
        idle_timeout_s: float | None = None,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        on_state: Callable[[SubscriberState, str], None] | None = None,
        give_up_after_s: float | None = None,
    ) -> None:
        """Take the address; nothing is opened before the first frame is asked for.

        Args:
            url: ws(s):// or http(s):// of a PDS, relay or tap; without a path, the standard one is added.
            cursor: seq of the last frame already processed; 0: all that the host keeps; None: from now on.
            dids: only these accounts (a tap filters, a PDS ignores it and sends everything).
            collections: only these collections, exact or "prefix.*" (same).
            idle_timeout_s: reconnect when nothing has come for so long; None for a host that may be quiet.
            backoff: pauses between attempts; the default is 0.25 s doubling to 60 s.
            rng: draws the jitter.
            on_state: called with every change of state and its reason.
            give_up_after_s: raise when there has been no stream for so long; None: try for ever.

        Raises:
            HttpAddressInvalid: not an address, or with these filters too long for a request line.
        """
        self._url = _subscription_url(url, self.path, dids, collections)
        self.cursor = cursor
        self.state = SubscriberState.IDLE
        self.counters: Counter[str] = Counter()
        # How far the first seq after the last connect lay behind the cursor. Relays tell nobody when what was
        # asked for is no longer kept: then this is large, and the chain of each repository shows the gaps.
        self.resumed_after: int | None = None
        self._is_resuming = False
        self._idle_timeout_s = idle_timeout_s
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._on_state = on_state
        self._give_up_after_s = give_up_after_s
        self._stopped = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._attempt: int | None = None  # None: the next connection is the first, and waits for nothing
        self._retry_after_s = 0.0
        self._connected_at: float | None = None
        self._without_stream_since: float | None = None
        self._quarantine: OrderedDict[bytes, None] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; a `receive` that is waiting elsewhere ends with StopAsyncIteration of its `frames`."""
        self._enter(SubscriberState.STOPPED, "closed")
        await self._disconnect()

    async def pause(self) -> None:
        """Leave the host for now; the next `receive` goes on at once, from the cursor."""
        self.counters["pauses"] += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            # A farewell would wait behind all that the host has sent and nobody will read.
            connection.transport.abort()
            await connection.wait_closed()

    def done(self, seq: int) -> None:
        """Nothing: whoever follows one host keeps the cursor itself (`firehose.source.FrameSource`)."""

    def stats(self) -> dict[str, Any]:
        """The host, and how we stand with it."""
        return {
            "url": self._url,
            "state": self.state.value,
            "cursor": self.cursor,
            "resumed_after": self.resumed_after,
            "counters": dict(self.counters),
        }

    async def frames(self) -> AsyncIterator[bytes]:
        """Every frame from here on, until the subscriber is closed.

        Raises:
            CursorInFuture: the host has never issued our cursor.
            SubscriptionRefused: the host serves no stream at this address.
            UpstreamUnreachable: no stream for give_up_after_s.
        """
        while self.state is not SubscriberState.STOPPED:
            frame = await self.receive()
            if frame is not None:
                yield frame

    async def receive(self) -> bytes | None:
        """The next frame; None: we were closed. A cancelled wait loses nothing. Raises: as `frames`."""
        while self.state is not SubscriberState.STOPPED:
            connection = self._connection or await self._connect()
            if connection is None:
                continue
            try:
                message = await self._receive_within(connection)
            except ConnectionClosed as closed:
                await self._retry(_closing_words(closed))
                continue
            frame = await self._admit(message)
            if frame is not None:
                return frame
        return None

    # one connection

    async def _connect(self) -> ClientConnection | None:
        """Open the stream from our cursor, after a pause unless it is the first; None: not this time."""
        await self._pause()
        if self.state is SubscriberState.STOPPED:
            return None
        self._enter(SubscriberState.CONNECTING, self._url)
        target = self._url if self.cursor is None else _with_cursor(self._url, self.cursor)
        try:
            self._connection = await connect(
                target,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                user_agent_header=USER_AGENT,
                proxy=None if _is_loopback(self._url) else True,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status in PERMANENT_STATUSES:
                self._enter(SubscriberState.STOPPED, f"answered {status}")
                raise SubscriptionRefused(self._url, status) from None
            headers = error.response.headers
            self._retry_after_s = retry_after_s(headers.get("Retry-After"), headers.get("Date"))
            await self._retry(f"answered {status}")
            return None
        except (OSError, InvalidHandshake, EOFError) as error:  # OSError: includes every TimeoutError
            await self._retry(_reason(error))
            return None
        if self._stopped.is_set():  # closed meanwhile, when there was nothing to close yet
            await self._disconnect()
            return None
        self._connected_at = asyncio.get_running_loop().time()
        self._is_resuming = self.cursor is not None
        self._enter(SubscriberState.LIVE, f"cursor {self.cursor}")
        return self._connection

    async def _receive_within(self, connection: ClientConnection) -> str | bytes:
        """`recv` with an idle watchdog beside it: a timeout around every recv halves the throughput."""
        if self._idle_timeout_s is None:
            return await connection.recv()
        loop = asyncio.get_running_loop()
        watchdog = loop.call_later(self._idle_timeout_s, self._abort_idle, connection)
        try:
            return await connection.recv()
        finally:
            watchdog.cancel()

    def _abort_idle(self, connection: ClientConnection) -> None:
        self.counters["idle"] += 1
        connection.transport.abort()

    async def _admit(self, message: str | bytes) -> bytes | None:
        """The frame if it is to be handed out; otherwise it is counted and may cost the connection."""
        self.counters["received"] += 1
        try:
            raw, seen = self._look(message)
            if seen.type is FrameType.ERROR:
                await self._end_by_error(raw)
                return None
        except FrameInvalid as error:
            await self._drop_garbage(message, str(error))
            return None
        if seen.seq is None:
            return raw
        if self.cursor is not None and seen.seq <= self.cursor:
            self.counters["repeated"] += 1
            return None
        if self._is_resuming and self.cursor is not None:
            self.resumed_after, self._is_resuming = seen.seq - self.cursor, False
        self.cursor = seen.seq
        self._attempt = None
        self._without_stream_since = None
        self.counters["yielded"] += 1
        return raw

    def _look(self, message: str | bytes) -> tuple[bytes, FramePeek]:
        """What to hand out, and its place in the stream. Raises: FrameInvalid: it is garbage."""
        if isinstance(message, str):
            raise FrameInvalid("text-frame")
        return message, peek(message)

    async def _end_by_error(self, message: bytes) -> None:
        frame = parse_frame(message)
        assert isinstance(frame, ErrorFrame)
        self.counters[f"error {frame.name}"] += 1
        if frame.name == "FutureCursor":
            self._enter(SubscriberState.STOPPED, "the cursor is in the future")
            await self._disconnect()
            raise CursorInFuture(self._url, self.cursor)
        await self._retry(f"error frame {frame.name}: {frame.message or ''}")

    async def _drop_garbage(self, message: str | bytes, reason: str) -> None:
        """A bad frame costs the connection once, as the protocol says; when it comes again it is skipped."""
        raw = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
        digest = hashlib.sha256(raw).digest()
        if digest in self._quarantine:
            self.counters["skipped"] += 1
            return
        self._quarantine[digest] = None
        if len(self._quarantine) > MAX_QUARANTINED:
            self._quarantine.popitem(last=False)
        self.counters["garbage"] += 1
        await self._retry(f"garbage: {reason}")

    # between connections

    async def _retry(self, reason: str) -> None:
        await self._disconnect()
        if self.state is SubscriberState.STOPPED:
            return
        self._check_patience(reason)
        self.counters["reconnects"] += 1
        self._attempt = 0 if self._attempt is None else self._attempt + 1
        self._enter(SubscriberState.WAITING, reason)

    def _check_patience(self, reason: str) -> None:
        if self._give_up_after_s is None:
            return
        now = asyncio.get_running_loop().time()
        connected_at, self._connected_at = self._connected_at, None
        was_stable = connected_at is not None and now - connected_at >= self._give_up_after_s
        if self._without_stream_since is None or was_stable:
            self._without_stream_since = now
        if now - self._without_stream_since >= self._give_up_after_s:
            self._enter(SubscriberState.STOPPED, reason)
            raise UpstreamUnreachable(self._url, self._give_up_after_s, reason)

    async def _pause(self) -> None:
        if self._attempt is None:
            return
        delay_s = max(self._backoff.delay_s(self._attempt, self._rng), self._retry_after_s)
        if self._give_up_after_s is not None:
            delay_s = min(delay_s, self._give_up_after_s)
        self._retry_after_s = 0.0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), delay_s)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _enter(self, state: SubscriberState, reason: str) -> None:
        if state is self.state:
            return
        self.state = state
        if state is SubscriberState.STOPPED:
            self._stopped.set()
        log.info("subscriber", extra={"state": state, "reason": reason, "cursor": self.cursor})
        if self._on_state is not None:
            self._on_state(state, reason)


def _subscription_url(url: str, path: str, dids: Iterable[str], collections: Iterable[str]) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise HttpAddressInvalid(url, str(error)) from None
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.fragment:
        raise HttpAddressInvalid(url, "expected ws://host[:port], wss://, http:// or https://")
    filters = [("wantedDids", did) for did in dids] + [("wantedCollections", name) for name in collections]
    query = "&".join(part for part in (parts.query, urlencode(filters, safe=":*")) if part)
    path = parts.path if parts.path not in ("", "/") else path
    result = urlunsplit((scheme, parts.netloc, path, query, ""))
    if len(result) > MAX_URL_CHARS:
        raise HttpAddressInvalid(
            url, f"with its filters it has {len(result)} characters, {MAX_URL_CHARS} are allowed"
        )
    return result


def _with_cursor(url: str, cursor: int) -> str:
    return f"{url}{'&' if '?' in url else '?'}cursor={cursor}"


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def retry_after_s(value: str | None, answered: str | None) -> float:
    """Seconds that a 429 or 503 asks us to wait: a number, or a date after `answered`."""
    if value is None:
        return 0.0
    if value.isascii() and value.isdecimal():
        return min(float(value), MAX_RETRY_AFTER_S)
    try:
        pause_s = (parsedate_to_datetime(value) - parsedate_to_datetime(answered or "")).total_seconds()
    except (ValueError, TypeError):
        return 0.0  # our own backoff will do
    return min(max(0.0, pause_s), MAX_RETRY_AFTER_S)


def _closing_words(closed: ConnectionClosed) -> str:
    return (
        f"closed: {closed.rcvd.code} {closed.rcvd.reason}".rstrip() if closed.rcvd else "the connection broke"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no handshake in {OPEN_TIMEOUT_S:g} s"
    if isinstance(error, InvalidURI):
        return f"not a usable address: {error}"
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__
