"""One stream to many clients: cursors, filters, and the end of those who do not keep up.

Shared by the tap's server and the embedded network; each gives it a `Source` and one `Channel` per client.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from firehose.frames import encode_error, encode_info
from firehose.window import MAX_LAG_FRAMES, Entry, Source, Subscription, Wanted

BATCH_FRAMES: Final = 64  # looked at between two turns of the event loop
POLICY_VIOLATION: Final = 1008  # what a real PDS closes with after an error frame
FAREWELL_TIMEOUT_S: Final = 5.0  # for the error frame and the close of a client that may not be reading


class Channel(Protocol):
    """One client's connection, as whatever server holds it."""

    async def send(self, frame: bytes) -> None:
        """Send one binary message; returns when the connection can take the next one."""

    async def close(self, code: int, reason: str) -> None:
        """Close with this code."""

    async def wait_closed(self) -> None:
        """Return when the client is gone, or has said more than a listener may."""


class FanOut:
    """The clients of one stream. The owner appends to the source first, then calls `publish`."""

    def __init__(self, source: Source, *, max_lag_frames: int = MAX_LAG_FRAMES) -> None:
        """Serve from `source`; a live client more than max_lag_frames behind is dropped."""
        self._source = source
        self._max_lag_frames = max_lag_frames
        self._subscriptions: set[Subscription] = set()
        self.counters: Counter[str] = Counter()

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._subscriptions)

    def publish(self, entry: Entry) -> None:
        """Tell every client that `entry` is in the source now."""
        for subscription in self._subscriptions:
            subscription.offer(entry)

    def notify(self, frame: bytes) -> None:
        """Send every connected client a frame that has no seq: an #info."""
        for subscription in self._subscriptions:
            subscription.notify(frame)

    async def serve(self, channel: Channel, query: Mapping[str, Sequence[str]]) -> None:
        """Serve one client until it leaves or must leave.

        Args:
            channel: the open connection.
            query: the request's parameters, each with all its values: cursor, wantedDids, wantedCollections.
        """
        self.counters["connected"] += 1
        try:
            cursor = _parse_cursor(query.get("cursor", ()))
            wanted = Wanted.parse(query.get("wantedDids", ()), query.get("wantedCollections", ()))
        except ValueError as error:
            await self._refuse(channel, "InvalidRequest", str(error))
            return
        last_seq, missing_seq = self._source.last_seq, self._source.missing_seq
        if cursor is not None and last_seq is not None and cursor > last_seq:
            await self._refuse(channel, "FutureCursor", f"cursor {cursor} is ahead of {last_seq}")
            return
        if cursor is None:
            position = missing_seq if last_seq is None else last_seq
        else:
            position = max(cursor, missing_seq)
        subscription = Subscription(self._source, wanted, position, max_lag_frames=self._max_lag_frames)
        if cursor is not None and 0 < cursor < missing_seq:
            subscription.notify(encode_info("OutdatedCursor", f"nothing at or before {missing_seq} is kept"))
        self._subscriptions.add(subscription)
        try:
            await race(_pump(subscription, channel), channel.wait_closed(), subscription.lost.wait())
            is_lost = subscription.is_lost()
        except ConnectionError:
            return
        finally:
            self._subscriptions.discard(subscription)
        if is_lost:
            await self._refuse(channel, "ConsumerTooSlow", f"more than {self._max_lag_frames} frames behind")

    async def _refuse(self, channel: Channel, name: str, message: str) -> None:
        self.counters[name] += 1
        try:
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                await channel.send(encode_error(name, message))
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


async def _pump(subscription: Subscription, channel: Channel) -> None:
    """Send what the client wants, in order, for as long as it is connected and keeps up."""
    while not subscription.is_lost():
        while subscription.notices:
            await channel.send(subscription.notices.pop(0))
        entries = subscription.take(BATCH_FRAMES)
        for entry in entries:
            await channel.send(entry.frame)
            subscription.sent(entry)
        if not entries:
            await subscription.wait()
        await asyncio.sleep(0)  # a filter that passes nothing over a long window must not hold the loop


def _parse_cursor(values: Sequence[str]) -> int | None:
    if not values or values[-1] == "":
        return None
    try:
        return max(0, int(values[-1]))  # a real PDS reads a negative cursor as 0
    except ValueError:
        raise ValueError("cursor: expected an integer") from None
