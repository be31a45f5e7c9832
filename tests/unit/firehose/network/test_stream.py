"""The network's event stream: cursors over memory and disk, and clients that do not keep up."""

import asyncio
import contextlib

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from firehose.errors import CursorInFuture, StoreUnavailable, XrpcError
from firehose.frames import ErrorFrame, InfoEvent, parse_frame, peek
from firehose.network import Network, sequencer
from firehose.network.pds import Pds
from firehose.network.store import Store
from firehose.subscribe import Subscriber
from firehose.window import FrameWindow
from firehose.xrpc import XrpcClient

NOTE = "com.example.note"


def inside(network: Network) -> Pds:
    assert network._pds is not None
    return network._pds


async def seqs(network: Network, cursor: int, count: int) -> list[int | None]:
    async with Subscriber(network.url, cursor=cursor) as subscriber, asyncio.timeout(30):
        return [peek(await subscriber.receive() or b"").seq for _ in range(count)]


async def test_from_disk_into_memory_into_live(network: Network, alice: XrpcClient) -> None:
    for number in range(30):
        await alice.put_record(NOTE, f"k{number}", {"n": number})
    source = inside(network).sequencer
    recent = FrameWindow(missing_seq=20)  # as after a restart: the older ones are on disk only
    for entry in source.after(20, 100):
        recent.append(entry)
    source._recent = recent
    reading = asyncio.ensure_future(seqs(network, 3, 36 - 3))
    await asyncio.sleep(0.05)
    for number in range(2):
        await alice.put_record(NOTE, f"live{number}", {})
    assert await reading == list(range(4, 37))


async def test_a_cursor_in_the_future(network: Network, alice: XrpcClient) -> None:
    seq = network.stats()["seq"]
    with pytest.raises(CursorInFuture):
        await Subscriber(network.url, cursor=seq + 1).receive()
    waiting = asyncio.ensure_future(seqs(network, seq, 1))
    await asyncio.sleep(0.05)
    await alice.put_record(NOTE, "one", {})
    assert await waiting == [seq + 1]


async def test_old_events_are_deleted_and_that_is_said(
    network: Network, alice: XrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer, "TRIM_EVERY", 10)
    inside(network).sequencer._max_events = 15
    for number in range(60):
        await alice.put_record(NOTE, f"k{number % 5}", {"n": number})
    last = network.stats()["seq"]
    missing = inside(network).sequencer.missing_seq
    assert last - 25 <= missing <= last - 15
    async with Subscriber(network.url, cursor=2) as subscriber:
        assert isinstance(parse_frame(await subscriber.receive() or b""), InfoEvent)
        assert peek(await subscriber.receive() or b"").seq == missing + 1
    assert await seqs(network, 0, last - missing) == list(range(missing + 1, last + 1))


async def test_a_client_that_does_not_read_is_told_and_dropped(network: Network, alice: XrpcClient) -> None:
    fanout = inside(network).sequencer.fanout
    fanout._max_lag_frames = 20
    url = network.url.replace("http", "ws") + "/xrpc/com.atproto.sync.subscribeRepos"
    async with connect(url, max_queue=1, compression=None) as slow, Subscriber(network.url) as quick:
        frames = asyncio.ensure_future(quick.receive())
        while fanout.clients < 2:
            await asyncio.sleep(0.001)
        number = 0
        while not fanout.counters["ConsumerTooSlow"]:
            await alice.put_record(NOTE, "one", {"x": "y" * 200_000, "n": number})
            assert await frames is not None
            frames = asyncio.ensure_future(quick.receive())
            number += 1
            assert number < 200
        messages: list[bytes] = []
        with contextlib.suppress(ConnectionClosed):
            while True:  # what was under way still comes, then the reason
                messages.append(bytes(await slow.recv(decode=False)))
        assert isinstance(parse_frame(messages[-1]), ErrorFrame)
        assert slow.close_code == 1008
        frames.cancel()


async def test_a_disk_that_fails_changes_nothing(
    network: Network, alice: XrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alice.session is not None
    before, seq = await alice.latest_commit(alice.session.did), network.stats()["seq"]

    def full(self: Store) -> None:
        self._db.execute("ROLLBACK")
        raise StoreUnavailable("network.db", "database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_commit", full)
        with pytest.raises(XrpcError, match="disk is full"):
            await alice.create_record(NOTE, {"n": 1})
    assert (await alice.latest_commit(alice.session.did), network.stats()["seq"]) == (before, seq)
    await alice.put_record(NOTE, "one", {"n": 2})  # and it goes on
    assert await seqs(network, seq, 1) == [seq + 1]
