"""The HTTP client against servers that say whatever bytes a test wants."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from firehose.errors import (
    HttpAddressInvalid,
    HttpProtocolError,
    HttpTimeout,
    HttpTooLarge,
    HttpUnreachable,
)
from firehose.http import HttpSession

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
LONG_HEADER = b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def answering(*answers: bytes, close: bool = False) -> tuple[Handler, list[bytes]]:
    """Serves each connection the answers in turn, one per request; and the list of request heads it saw."""
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            try:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
            except asyncio.IncompleteReadError:
                break
            writer.write(answer)
        if not close:
            await reader.read()
        writer.close()

    return handle, heads


async def test_two_requests_share_one_connection() -> None:
    connections = 0
    handle, heads = answering(OK, OK)

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await handle(reader, writer)

    async with serving(count) as url, HttpSession(url) as session:
        first = await session.request("GET", "/a?b=c", headers={"X-One": "1"})
        second = await session.request("POST", "/d", body=b"")
    assert (first.status, first.body, second.body) == (200, b"hi", b"hi")
    assert connections == 1
    assert heads[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"X-One: 1" in heads[0]
    assert b"Content-Length: 0" in heads[1]


@pytest.mark.parametrize(
    ("answer", "close", "body"),
    [
        pytest.param(CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", False, b"hi", id="chunked"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhi", True, b"hi", id="until-close"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, False, b"hi", id="continue-first"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", False, b"", id="no-content"),
        pytest.param(REDIRECT, False, b"", id="redirect-is-an-answer"),
    ],
)
async def test_reads_every_kind_of_body(answer: bytes, close: bool, body: bytes) -> None:
    handle, _ = answering(answer, close=close)
    async with serving(handle) as url, HttpSession(url) as session:
        assert (await session.request("GET", "/")).body == body


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + b"x" * 50, HttpTooLarge, id="body"),
        pytest.param(CHUNKED + b"32\r\n" + b"x" * 50, HttpTooLarge, id="chunked-body"),
        pytest.param(LONG_HEADER, HttpTooLarge, id="headers"),
        pytest.param(b"220 ready to talk\r\n", HttpProtocolError, id="another-protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", HttpUnreachable, id="cut-short"),
        pytest.param(b"", HttpUnreachable, id="no-answer"),
    ],
)
async def test_refuses(answer: bytes, expected: type[Exception]) -> None:
    handle, _ = answering(answer, close=True)
    async with serving(handle) as url, HttpSession(url) as session:
        with pytest.raises(expected):
            await session.request("GET", "/", max_body_bytes=49)


async def test_a_request_that_went_out_says_so() -> None:
    handle, _ = answering(b"", close=True)
    async with serving(handle) as url, HttpSession(url) as session:
        with pytest.raises(HttpUnreachable) as sent:
            await session.request("POST", "/", body=b"x")
    assert sent.value.is_sent
    async with HttpSession("http://127.0.0.1:1") as nobody:
        with pytest.raises(HttpUnreachable) as unsent:
            await nobody.request("POST", "/", body=b"x")
    assert not unsent.value.is_sent


async def test_a_silent_server_times_out_and_the_next_request_works() -> None:
    calls = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.readuntil(b"\r\n\r\n")
        if calls > 1:
            writer.write(OK)
        await reader.read()
        writer.close()

    async with serving(handle) as url, HttpSession(url) as session:
        with pytest.raises(HttpTimeout):
            await session.request("GET", "/", timeout_s=0.1)
        assert (await session.request("GET", "/", timeout_s=30)).status == 200


async def test_a_connection_that_died_while_idle_is_replaced() -> None:
    handle, _ = answering(OK, close=True)
    async with serving(handle) as url, HttpSession(url) as session:
        for _ in range(3):
            assert (await session.request("GET", "/")).status == 200
            await asyncio.sleep(0.02)  # the server's close arrives


async def test_more_requests_than_connections_wait_their_turn() -> None:
    open_now = most = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.01)
                writer.write(OK)
        except asyncio.IncompleteReadError:
            open_now -= 1
            writer.close()

    async with serving(handle) as url, HttpSession(url, max_connections=2) as session:
        answers = await asyncio.gather(*(session.request("GET", f"/{n}") for n in range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert most == 2


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:80", "http://", "http://a:b@host", "http://host:99999"]
)
def test_not_an_address(url: str) -> None:
    with pytest.raises(HttpAddressInvalid):
        HttpSession(url)


async def test_a_line_break_cannot_smuggle_a_header() -> None:
    async with HttpSession("http://127.0.0.1:1") as session:
        with pytest.raises(HttpAddressInvalid):
            await session.request("GET", "/a\r\nX-Evil: 1")


async def test_an_answer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firehose.http.SLOW_WINDOW_S", 0.05)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async with serving(trickle) as url, HttpSession(url, timeout_s=30) as session:
        with pytest.raises(HttpUnreachable, match="less than 1000 bytes/s"):
            await session.request("GET", "/", min_bytes_per_s=1000)
        monkeypatch.setattr("firehose.http.SLOW_WINDOW_S", 5.0)  # in which at least a byte comes
        assert (await session.request("GET", "/", min_bytes_per_s=1)).body == b"x" * 20
