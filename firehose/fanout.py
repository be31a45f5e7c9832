"""One stream to many clients: cursors, filters, and the end of those who do not keep up.

Shared by the tap's server and the embedded network; each gives it a `Source` and one `Channel` per client.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from firehose.frames import encode_error, encode_info
from firehose.json_view import JsonView, frame_json
from firehose.wanted import Audience, Wanted
from firehose.window import MAX_LAG_FRAMES, Entry, Source, Subscription

BATCH_FRAMES: Final = 64  # looked at between two turns of the event loop
JSON_BATCH_FRAMES: Final = 8  # rendering one takes some twenty times as long as sending it
POLICY_VIOLATION: Final = 1008  # what a real PDS closes with after an error frame
FAREWELL_TIMEOUT_S: Final = 5.0  # for the error frame and the close of a client that may not be reading
HELLO_TIMEOUT_S: Final = 30.0  # for the first filter of a client that promised one (requireHello)
MAX_MESSAGES: Final = 16  # of one client, …
MESSAGES_WINDOW_S: Final = 10.0  # … in so long; a filter of 10,000 accounts takes 15 ms to read


class Channel(Protocol):
    """One client's connection, as whatever server holds it."""

    async def send(self, message: bytes | str) -> None:
        """Send one binary or text message; returns when the connection can take the next one."""

    async def receive(self) -> bytes | str | None:
        """The client's next message; None: it is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close with this code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked for in its address."""

    cursor: int | None
    wanted: Wanted
    is_json: bool = False
    waits_for_hello: bool = False  # nothing is sent before its first options_update

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Read the parameters, each with all its values. Raises: ValueError: one of them is wrong."""
        form = (query.get("format") or ["cbor"])[-1]
        if form not in ("cbor", "json"):
            raise ValueError("format: expected cbor or json")
        return cls(
            cursor=_parse_cursor(query.get("cursor", ())),
            wanted=Wanted.parse(query.get("wantedDids", ()), query.get("wantedCollections", ())),
            is_json=form == "json",
            waits_for_hello=(query.get("requireHello") or ["false"])[-1] == "true",
        )


class FanOut:
    """The clients of one stream. The owner appends to the source first, then calls `publish`."""

    def __init__(self, source: Source, *, max_lag_frames: int = MAX_LAG_FRAMES) -> None:
        """Serve from `source`; a live client more than max_lag_frames behind is dropped."""
        self._source = source
        self._max_lag_frames = max_lag_frames
        self._audience: Audience[Subscription] = Audience()
        self._json = JsonView()
        self.counters: Counter[str] = Counter()

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._audience)

    def publish(self, entry: Entry) -> None:
        """Tell the clients who want it that `entry` is in the source now; the others cost nothing."""
        for subscription in self._audience.of(entry):
            subscription.offer(entry)

    def notify(self, frame: bytes) -> None:
        """Send every connected client a frame that has no seq: an #info."""
        for subscription in self._audience.members():
            subscription.notify(frame)

    async def serve(self, channel: Channel, query: Mapping[str, Sequence[str]]) -> None:
        """Serve one client until it leaves or must leave.

        Args:
            channel: the open connection.
            query: the request's parameters, each with all its values: cursor, wantedDids, wantedCollections,
                format (cbor or json), requireHello.
        """
        self.counters["connected"] += 1
        try:
            request = Request.parse(query)
        except ValueError as error:
            await self._refuse(channel, "InvalidRequest", str(error))
            return
        cursor, last_seq, missing_seq = request.cursor, self._source.last_seq, self._source.missing_seq
        if cursor is not None and last_seq is not None and cursor > last_seq:
            text = f"cursor {cursor} is ahead of {last_seq}"
            await self._refuse(channel, "FutureCursor", text, is_json=request.is_json)
            return
        if cursor is None:
            position = missing_seq if last_seq is None else last_seq
        else:
            position = max(cursor, missing_seq)
        subscription = Subscription(
            self._source, request.wanted, position, max_lag_frames=self._max_lag_frames
        )
        if cursor is not None and 0 < cursor < missing_seq:
            subscription.notify(encode_info("OutdatedCursor", f"nothing at or before {missing_seq} is kept"))
        await self._attend(channel, request, subscription)

    async def _attend(self, channel: Channel, request: Request, subscription: Subscription) -> None:
        """Send and listen until one side has enough."""
        self._audience.put(subscription, request.wanted)
        is_told = asyncio.Event()  # once the client has said what it said it would say
        if not request.waits_for_hello:
            is_told.set()
        try:
            await race(
                self._pump(subscription, channel, is_told, is_json=request.is_json),
                self._listen(subscription, channel, is_told),
                subscription.lost.wait(),
            )
            is_lost = subscription.is_lost()
        except ConnectionError:
            return
        except ValueError as error:
            await self._refuse(channel, "InvalidRequest", str(error), is_json=request.is_json)
            return
        finally:
            self._audience.discard(subscription)
        if is_lost:
            text = f"more than {self._max_lag_frames} frames behind"
            await self._refuse(channel, "ConsumerTooSlow", text, is_json=request.is_json)

    async def _listen(self, subscription: Subscription, channel: Channel, is_told: asyncio.Event) -> None:
        """Take the client's filters until it is gone. Raises: ValueError: what it says is no filter."""
        loop = asyncio.get_running_loop()
        heard_s: deque[float] = deque(maxlen=MAX_MESSAGES)
        while (message := await channel.receive()) is not None:
            if len(heard_s) == MAX_MESSAGES and loop.time() - heard_s[0] < MESSAGES_WINDOW_S:
                raise ValueError(f"more than {MAX_MESSAGES} messages in {MESSAGES_WINDOW_S:g} s")
            heard_s.append(loop.time())
            wanted = Wanted.parse_update(message)
            self.counters["filters changed"] += 1
            self._audience.put(subscription, wanted)
            subscription.change(wanted)
            is_told.set()

    async def _pump(
        self, subscription: Subscription, channel: Channel, is_told: asyncio.Event, *, is_json: bool
    ) -> None:
        """Send what the client wants, in order, for as long as it is connected and keeps up."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await is_told.wait()
        except TimeoutError:
            raise ValueError(f"no options_update in {HELLO_TIMEOUT_S:g} s") from None
        limit = JSON_BATCH_FRAMES if is_json else BATCH_FRAMES
        while not subscription.is_lost():
            while subscription.notices:
                notice = subscription.notices.pop(0)
                await channel.send(frame_json(notice) if is_json else notice)
            wanted = subscription.wanted
            entries = subscription.take(limit)
            for entry in entries:
                if subscription.wanted is not wanted:
                    break  # it was changed during a send: what follows is chosen anew
                await channel.send(self._json.of(entry) if is_json else entry.frame)
                subscription.sent(entry)
            if not entries:
                await subscription.wait()
            await asyncio.sleep(0)  # a filter that passes nothing over a long window must not hold the loop

    async def _refuse(self, channel: Channel, name: str, message: str, *, is_json: bool = False) -> None:
        self.counters[name] += 1
        frame = encode_error(name, message)
        try:
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                await channel.send(frame_json(frame) if is_json else frame)
                await channel.close(POLICY_VIOLATION, name)
        except (TimeoutError, ConnectionError):
            self.counters["left without hearing why"] += 1


async def race(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run the coroutines together until the first one ends, then cancel and await the others.

    An exception of the first to end is raised; one of a cancelled one is not.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _parse_cursor(values: Sequence[str]) -> int | None:
    if not values or values[-1] == "":
        return None
    try:
        return max(0, int(values[-1]))  # a real PDS reads a negative cursor as 0
    except ValueError:
        raise ValueError("cursor: expected an integer") from None
