"""Subscriber: nothing lost and nothing twice, whatever the other side does."""

import asyncio
import http
import random
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response

from firehose import subscribe
from firehose.errors import CursorInFuture, HttpAddressInvalid, SubscriptionRefused, UpstreamUnreachable
from firehose.frames import encode_error, encode_info, peek
from firehose.serve import FrameServer
from firehose.subscribe import MAX_FRAME_BYTES, Backoff, Subscriber, SubscriberState

MakeFrame = Callable[..., bytes]
Script = Callable[[ServerConnection], Awaitable[None]]
Upstream = Callable[[Script], Any]
DID = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"


def cursor_of(connection: ServerConnection) -> int | None:
    assert connection.request is not None
    values = parse_qs(urlsplit(connection.request.path).query).get("cursor")
    return int(values[0]) if values else None


async def take(subscriber: Subscriber, count: int) -> list[int | None]:
    async with asyncio.timeout(20):
        frames = [await subscriber.receive() for _ in range(count)]
    return [peek(frame).seq for frame in frames if frame is not None]


async def forever(connection: ServerConnection) -> None:
    await connection.wait_closed()


@pytest.mark.parametrize("includes_cursor", [False, True], ids=["server-sends-after", "server-sends-from"])
@pytest.mark.parametrize("ending", ["close", "going-away", "abort", "error-frame", "too-slow"])
async def test_resumes_after_every_ending(
    upstream: Upstream, frame: MakeFrame, fast: Backoff, ending: str, includes_cursor: bool
) -> None:
    asked: list[int | None] = []

    async def script(connection: ServerConnection) -> None:
        cursor = cursor_of(connection)
        asked.append(cursor)
        start = (cursor or 0) + (0 if includes_cursor and cursor else 1)
        for seq in range(start, start + 4):
            await connection.send(frame(seq))
        match ending:
            case "close":
                await connection.close()
            case "going-away":
                await connection.close(1001, "restart")
            case "abort":
                await asyncio.sleep(0.02)
                connection.transport.abort()
            case "error-frame":
                await connection.send(encode_error("SomethingNew", "sorry"))
                await connection.close(1008)
            case _:
                await connection.send(encode_error("ConsumerTooSlow"))
                await connection.close(1008)

    async with upstream(script) as url, Subscriber(url, cursor=0, backoff=fast) as subscriber:
        assert await take(subscriber, 20) == list(range(1, 21))
        assert subscriber.cursor == 20
    assert asked[0] == 0
    assert all(cursor is not None and cursor > 0 for cursor in asked[1:])
    assert subscriber.counters["yielded"] == 20


async def test_the_server_is_killed_and_comes_back(frame: MakeFrame, fast: Backoff) -> None:
    states: list[SubscriberState] = []
    server = FrameServer()
    async with server:
        port = server.port
        for seq in range(1, 11):
            server.publish(frame(seq), seq, DID)
        subscriber = Subscriber(
            server.url, cursor=0, backoff=fast, on_state=lambda state, _: states.append(state)
        )
        assert await take(subscriber, 10) == list(range(1, 11))
    waiting = asyncio.ensure_future(take(subscriber, 5))
    await asyncio.sleep(0.1)
    async with FrameServer(port=port) as again:
        for seq in range(1, 16):
            again.publish(frame(seq), seq, DID)
        assert await waiting == [11, 12, 13, 14, 15]
        await subscriber.close()
    assert states[0] is SubscriberState.CONNECTING
    assert SubscriberState.WAITING in states
    assert states[-1] is SubscriberState.STOPPED
    assert subscriber.counters["reconnects"] >= 2


async def test_repeated_and_lower_seqs_are_dropped(
    upstream: Upstream, frame: MakeFrame, fast: Backoff
) -> None:
    async def script(connection: ServerConnection) -> None:
        for seq in (5, 6, 6, 2, 7, 7, 8):
            await connection.send(frame(seq))
        await forever(connection)

    async with upstream(script) as url, Subscriber(url, backoff=fast) as subscriber:
        assert await take(subscriber, 4) == [5, 6, 7, 8]
        assert subscriber.counters["repeated"] == 3


GARBAGE = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\x00\x01garbage", id="no-cbor"),
    pytest.param(b"\xa0", id="one-map"),
    pytest.param(b"\xa0\xa0\xa0", id="three-maps"),
    pytest.param(b"\x9f" * 3000, id="deep"),
    pytest.param("hello", id="text"),
    pytest.param("\x00\ud7ff", id="odd-text"),
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_costs_one_connection_and_is_then_skipped(
    upstream: Upstream, frame: MakeFrame, fast: Backoff, garbage: bytes | str
) -> None:
    connections = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        for seq in range((cursor_of(connection) or 0) + 1, 6):
            if seq == 3:
                await connection.send(garbage)
            await connection.send(frame(seq))
        await forever(connection)

    async with upstream(script) as url, Subscriber(url, cursor=0, backoff=fast) as subscriber:
        assert await take(subscriber, 5) == [1, 2, 3, 4, 5]
        assert connections == 2
        assert (subscriber.counters["garbage"], subscriber.counters["skipped"]) == (1, 1)


async def test_info_is_handed_out_and_moves_nothing(upstream: Upstream, frame: MakeFrame) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.send(encode_info("OutdatedCursor"))
        await connection.send(frame(9))
        await forever(connection)

    async with upstream(script) as url, Subscriber(url, cursor=2) as subscriber:
        assert await subscriber.receive() == encode_info("OutdatedCursor")
        assert subscriber.cursor == 2
        assert await take(subscriber, 1) == [9]


async def test_a_cursor_in_the_future_stops(frame: MakeFrame) -> None:
    async with FrameServer() as server:
        server.publish(frame(5), 5, DID)
        async with Subscriber(server.url, cursor=6) as subscriber:
            with pytest.raises(CursorInFuture, match="6"):
                async for _ in subscriber.frames():
                    pass
            assert subscriber.state is SubscriberState.STOPPED
            assert await subscriber.receive() is None


@pytest.mark.parametrize("status", [405, 426, 501])
async def test_no_stream_there_stops(status: int) -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(http.HTTPStatus(status), "<html>no</html>")

    async with serve(forever, "127.0.0.1", 0, process_request=refuse) as server:
        url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        with pytest.raises(SubscriptionRefused, match=str(status)):
            await Subscriber(url).receive()


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_other_refusals_are_tried_again(frame: MakeFrame, fast: Backoff, status: int) -> None:
    attempts = 0

    def refuse_twice(connection: ServerConnection, request: Request) -> Response | None:
        nonlocal attempts
        attempts += 1
        if attempts > 2:
            return None
        answer = connection.respond(http.HTTPStatus(status), "busy")
        answer.headers["Retry-After"] = "0"
        return answer

    async def script(connection: ServerConnection) -> None:
        await connection.send(frame(1))
        await forever(connection)

    async with serve(script, "127.0.0.1", 0, process_request=refuse_twice) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with Subscriber(url, backoff=fast) as subscriber:
            assert await take(subscriber, 1) == [1]
    assert attempts == 3


async def test_retry_after_is_honoured(frame: MakeFrame, fast: Backoff) -> None:
    times: list[float] = []

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        times.append(asyncio.get_running_loop().time())
        if len(times) > 1:
            return None
        answer = connection.respond(http.HTTPStatus.TOO_MANY_REQUESTS, "")
        answer.headers["Retry-After"] = "1"
        return answer

    async def script(connection: ServerConnection) -> None:
        await connection.send(frame(1))
        await forever(connection)

    async with serve(script, "127.0.0.1", 0, process_request=refuse) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with Subscriber(url, backoff=fast) as subscriber:
            assert await take(subscriber, 1) == [1]
    assert times[1] - times[0] >= 1


async def test_giving_up_is_said(fast: Backoff) -> None:
    async with Subscriber("ws://127.0.0.1:1", backoff=fast, give_up_after_s=0.2) as subscriber:
        with pytest.raises(UpstreamUnreachable, match=r"127\.0\.0\.1:1"):
            async with asyncio.timeout(20):
                await subscriber.receive()
    assert subscriber.counters["reconnects"] > 1


async def test_accepting_and_closing_at_once_is_no_stream(upstream: Upstream, fast: Backoff) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.close()

    async with upstream(script) as url, Subscriber(url, backoff=fast, give_up_after_s=0.2) as subscriber:
        with pytest.raises(UpstreamUnreachable):
            async with asyncio.timeout(20):
                await subscriber.receive()
        assert 1 < subscriber.counters["reconnects"] < 100  # no hot loop


async def test_silence_is_ended_by_the_watchdog(upstream: Upstream, frame: MakeFrame, fast: Backoff) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.send(frame((cursor_of(connection) or 0) + 1))
        await forever(connection)

    async with (
        upstream(script) as url,
        Subscriber(url, cursor=0, idle_timeout_s=0.1, backoff=fast) as subscriber,
    ):
        assert await take(subscriber, 3) == [1, 2, 3]
        assert subscriber.counters["idle"] >= 2  # a busy host may be silent before its first frame, too


async def test_a_slow_consumer_is_not_mistaken_for_a_silent_host(
    upstream: Upstream, frame: MakeFrame
) -> None:
    async def script(connection: ServerConnection) -> None:
        for seq in range(1, 4):
            await connection.send(frame(seq))
        await forever(connection)

    async with upstream(script) as url, Subscriber(url, idle_timeout_s=1.0) as subscriber:
        assert await take(subscriber, 1) == [1]
        await asyncio.sleep(1.1)
        assert await take(subscriber, 2) == [2, 3]
        assert subscriber.counters["idle"] == 0


async def test_a_host_that_answers_no_ping_is_left_and_who_pings_is_answered(
    upstream: Upstream, frame: MakeFrame, fast: Backoff, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "PING_INTERVAL_S", 0.02)
    monkeypatch.setattr(subscribe, "PING_TIMEOUT_S", 0.02)
    asked: list[int | None] = []

    async def script(connection: ServerConnection) -> None:
        asked.append(cursor_of(connection))
        if len(asked) == 1:  # as behind a connection that broke without a word
            send = connection.protocol.send_frame

            def send_no_pong(sent: Frame) -> None:
                if sent.opcode is not Opcode.PONG:
                    send(sent)

            monkeypatch.setattr(connection.protocol, "send_frame", send_no_pong)
        await (await connection.ping())
        await connection.send(frame((asked[-1] or 0) + 1))
        await forever(connection)

    async with upstream(script) as url, Subscriber(url, cursor=0, backoff=fast) as subscriber:
        assert await take(subscriber, 2) == [1, 2]
    assert asked[:2] == [0, 1]


async def test_close_ends_a_wait_elsewhere(fast: Backoff, upstream: Upstream) -> None:
    async with upstream(forever) as url:
        for target, backoff in ((url, fast), ("ws://127.0.0.1:1", Backoff(base=60, floor=60))):
            subscriber = Subscriber(target, backoff=backoff)
            frames = asyncio.ensure_future(anext(subscriber.frames(), b"ended"))
            await asyncio.sleep(0.05)
            await subscriber.close()
            async with asyncio.timeout(20):
                assert await frames == b"ended"


async def test_close_while_it_connects_is_a_close() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hesitate(connection: ServerConnection, request: Request) -> None:
        asked.set()
        await answer.wait()

    async with (
        asyncio.timeout(10),
        serve(forever, "127.0.0.1", 0, process_request=hesitate) as server,
        asyncio.TaskGroup() as tasks,
    ):
        port = server.sockets[0].getsockname()[1]
        subscriber = Subscriber(f"ws://127.0.0.1:{port}")
        received = tasks.create_task(subscriber.receive())
        await asked.wait()
        await subscriber.close()
        answer.set()
        assert await received is None
        assert subscriber.state is SubscriberState.STOPPED


async def test_a_cancelled_receive_loses_nothing(upstream: Upstream, frame: MakeFrame) -> None:
    async def script(connection: ServerConnection) -> None:
        for seq in range(1, 21):
            await connection.send(frame(seq))
            await asyncio.sleep(0.003)
        await forever(connection)

    got: list[int | None] = []
    async with upstream(script) as url, Subscriber(url) as subscriber, asyncio.timeout(20):
        while len(got) < 20:
            try:
                async with asyncio.timeout(0.002):
                    received = await subscriber.receive()
            except TimeoutError:
                continue
            assert received is not None
            got.append(peek(received).seq)
    assert got == list(range(1, 21))


def test_filters_go_into_the_address() -> None:
    subscriber = Subscriber("https://relay.example/", dids=[DID], collections=["app.bsky.*", "dev.x.y"])
    parts = urlsplit(subscriber._url)
    assert (parts.scheme, parts.path) == ("wss", "/xrpc/com.atproto.sync.subscribeRepos")
    assert parse_qs(parts.query) == {"wantedDids": [DID], "wantedCollections": ["app.bsky.*", "dev.x.y"]}


@pytest.mark.parametrize(
    "url", ["", "relay.example", "ftp://relay.example", "ws://", "ws://h:99999", "ws://h/#a"]
)
def test_not_an_address(url: str) -> None:
    with pytest.raises(HttpAddressInvalid):
        Subscriber(url)


def test_an_address_has_a_longest_length() -> None:
    with pytest.raises(HttpAddressInvalid, match="characters"):
        Subscriber("ws://h", dids=[f"{DID}{n}" for n in range(300)])


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_backoff_is_bounded(attempt: int, seed: int) -> None:
    backoff = Backoff(base=0.5, cap=60, floor=0.1)
    delay = backoff.delay_s(attempt, random.Random(seed))
    assert 0.1 <= delay <= min(60, max(0.1, 0.5 * 2.0 ** min(attempt, 7)))


async def test_what_is_asked_for_and_what_is_not(upstream: Upstream, frame: MakeFrame) -> None:
    asked: list[Any] = []

    async def script(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append(connection.request)
        await connection.send(frame(1))
        await connection.wait_closed()

    async with upstream(script) as url, Subscriber(url) as subscriber:
        await take(subscriber, 1)
    headers = asked[0].headers
    assert headers["User-Agent"].startswith("skylease/")
    # Compression costs more than it saves, and every subprotocol but the default is of a later day.
    assert "Sec-WebSocket-Extensions" not in headers
    assert "Sec-WebSocket-Protocol" not in headers
    assert "Authorization" not in headers
    assert urlsplit(asked[0].path).query == ""


async def test_a_message_over_the_limit_costs_the_connection(
    upstream: Upstream, frame: MakeFrame, fast: Backoff
) -> None:
    connections = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await connection.send(frame(1))
            await connection.send(frame(2, size_bytes=MAX_FRAME_BYTES))
        else:
            await connection.send(frame(3))
        await connection.wait_closed()

    async with upstream(script) as url, Subscriber(url, backoff=fast) as subscriber:
        assert await take(subscriber, 2) == [1, 3]
    assert subscriber.counters["reconnects"] == 1


async def test_how_far_a_host_went_on_without_us_is_told(upstream: Upstream, frame: MakeFrame) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.send(frame(500))
        await connection.wait_closed()

    async with upstream(script) as url, Subscriber(url, cursor=100) as subscriber:
        await take(subscriber, 1)
        assert subscriber.stats()["resumed_after"] == 400
