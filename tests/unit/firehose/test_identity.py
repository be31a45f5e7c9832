"""Resolving DIDs: what is cached, what is refused, and what counts as "could not say"."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firehose.errors import DirectoryUnavailable, SyntaxInvalid
from firehose.identity import (
    HIT_TTL_MS,
    MISS_TTL_MS,
    OUTAGE_TTL_MS,
    WEB_REQUESTS,
    WEB_WINDOW_MS,
    DidDirectory,
    StaticDirectory,
)

ALICE = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"


class Directory:
    """A directory whose next answer a test sets."""

    def __init__(self) -> None:
        self.status = 200
        self.body = json.dumps({"id": ALICE}).encode()
        self.asked: list[str] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split()[1].decode())
        await asyncio.sleep(0.01)
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (self.status, len(self.body))
        )
        writer.write(self.body)
        writer.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@asynccontextmanager
async def a_directory() -> AsyncIterator[tuple[Directory, DidDirectory, Clock]]:
    served, clock = Directory(), Clock()
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        async with DidDirectory(f"http://127.0.0.1:{served.port}", clock=clock, timeout_s=30) as directory:
            yield served, directory, clock
    finally:
        server.close()


async def test_a_document_is_asked_for_once_a_day() -> None:
    async with a_directory() as (served, directory, clock):
        assert await directory.resolve(ALICE) == {"id": ALICE}
        clock.now += HIT_TTL_MS - 1
        await directory.resolve(ALICE)
        assert served.asked == [f"/{ALICE}"]
        clock.now += 1
        await directory.resolve(ALICE)
        assert len(served.asked) == 2


async def test_purge_asks_again() -> None:
    async with a_directory() as (served, directory, _):
        await directory.resolve(ALICE)
        directory.purge(ALICE)
        await directory.resolve(ALICE)
        assert len(served.asked) == 2


async def test_a_burst_asks_once() -> None:
    async with a_directory() as (served, directory, _):
        await asyncio.gather(*(directory.resolve(ALICE) for _ in range(20)))
        assert len(served.asked) == 1


@pytest.mark.parametrize("status", [404, 410])
async def test_nobody_there_is_an_answer_for_two_minutes(status: int) -> None:
    async with a_directory() as (served, directory, clock):
        served.status = status
        assert await directory.resolve(ALICE) is None
        clock.now += MISS_TTL_MS - 1
        assert await directory.resolve(ALICE) is None
        assert len(served.asked) == 1
        clock.now += 1
        served.status = 200
        assert await directory.resolve(ALICE) == {"id": ALICE}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(500, b"{}", id="server-error"),
        pytest.param(302, b"", id="redirect"),
        pytest.param(200, b"<html>", id="not-json"),
        pytest.param(200, b"[" * 100_000, id="deep-json"),
        pytest.param(200, b"[]", id="not-an-object"),
        pytest.param(200, json.dumps({"id": "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"}).encode(), id="anothers"),
        pytest.param(200, b" " * 300_000, id="too-large"),
    ],
)
async def test_a_broken_answer_is_no_answer(status: int, body: bytes) -> None:
    async with a_directory() as (served, directory, clock):
        served.status, served.body = status, body
        with pytest.raises(DirectoryUnavailable):
            await directory.resolve(ALICE)
        with pytest.raises(DirectoryUnavailable):  # left alone for a second
            await directory.resolve(ALICE)
        assert len(served.asked) == 1
        served.status, served.body = 200, json.dumps({"id": ALICE}).encode()
        clock.now += OUTAGE_TTL_MS
        assert await directory.resolve(ALICE) == {"id": ALICE}


async def test_nobody_listens() -> None:
    async with DidDirectory("http://127.0.0.1:1") as directory:
        with pytest.raises(DirectoryUnavailable, match="cannot reach"):
            await directory.resolve(ALICE)


async def test_did_web_on_a_developers_machine() -> None:
    async with a_directory() as (served, directory, _):
        did = f"did:web:localhost%3A{served.port}"
        served.body = json.dumps({"id": did}).encode()
        assert await directory.resolve(did) == {"id": did}
        assert served.asked == ["/.well-known/did.json"]


@pytest.mark.parametrize(
    "did",
    [
        "did:web:127.0.0.1",
        "did:web:localhost",
        "did:web:localhost%3A8080",
        "did:web:10.0.0.1",
        "did:web:169.254.169.254",
        "did:web:example.com:user:alice",
        "did:web:exa%2Fmple.com",
        "did:web:%5B%3A%3A1%5D",
        "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme",
    ],
)
async def test_a_public_directory_reaches_no_private_host(did: str) -> None:
    async with DidDirectory("https://plc.directory") as directory:
        with pytest.raises(DirectoryUnavailable):
            await directory.resolve(did)


async def test_a_local_directory_reaches_no_private_network() -> None:
    async with DidDirectory("http://127.0.0.1:1") as directory:
        with pytest.raises(DirectoryUnavailable, match="no public address"):
            await directory.resolve("did:web:10.0.0.1")


async def test_not_a_did() -> None:
    async with DidDirectory("http://127.0.0.1:1") as directory:
        with pytest.raises(SyntaxInvalid):
            await directory.resolve("did:plc:../../etc/passwd")


async def test_static_documents_move_on_with_each_refresh() -> None:
    directory = StaticDirectory({ALICE: [{"v": 1}, {"v": 2}], "did:web:x.test": {"v": 9}})
    assert await directory.resolve(ALICE) == {"v": 1}
    directory.purge(ALICE)  # a hint that something may have changed is no reason to go on
    assert await directory.resolve(ALICE) == {"v": 1}
    directory.refresh(ALICE)
    assert await directory.resolve(ALICE) == {"v": 2}
    directory.refresh(ALICE)
    assert await directory.resolve(ALICE) == {"v": 2}
    directory.refresh("did:web:x.test")
    directory.refresh("did:web:nobody.test")
    assert await directory.resolve("did:web:x.test") == {"v": 9}
    assert await directory.resolve("did:web:nobody.test") is None


async def test_a_web_host_is_not_asked_without_end() -> None:
    async with a_directory() as (served, directory, clock):
        did = f"did:web:localhost%3A{served.port}"
        served.body = json.dumps({"id": did}).encode()
        for _ in range(WEB_REQUESTS):
            directory.purge(did)
            assert await directory.resolve(did) is not None
        directory.purge(did)
        with pytest.raises(DirectoryUnavailable, match="asked 60 times in a minute"):
            await directory.resolve(did)
        clock.now += WEB_WINDOW_MS
        directory.purge(did)
        assert await directory.resolve(did) is not None
        assert len(served.asked) == WEB_REQUESTS + 1
