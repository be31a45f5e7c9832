"""XrpcClient against a server that breaks down: what is repeated, and what must not be."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from firehose import xrpc
from firehose.errors import HttpError, HttpTimeout, XrpcError
from firehose.xrpc import Session, XrpcClient

ME = Session(did="did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", handle="a.test", access_jwt="old", refresh_jwt="refresh")
REF = {"uri": "at://a/b/c", "cid": "bafy"}


class Server:
    """Answers each call by what the script says: a status, or "cut" (no answer), or "hang"."""

    def __init__(self, *script: int | str) -> None:
        self.script = list(script)
        self.calls: list[tuple[str, str]] = []  # method, token
        self.writers: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(lines.get("Content-Length", "0")))
                method = head.split()[1].removeprefix("/xrpc/").partition("?")[0].rpartition(".")[2]
                self.calls.append((method, lines.get("Authorization", "").removeprefix("Bearer ")))
                step = self.script.pop(0) if self.script else 200
                if step == "cut":
                    break
                if step == "hang":
                    await asyncio.sleep(60)
                writer.write(self.answer(method, step))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    def answer(self, method: str, step: int | str) -> bytes:
        body: object = {**REF, "results": []}
        status = step if isinstance(step, int) else 400
        if method == "refreshSession":
            body = {"did": ME.did, "handle": ME.handle, "accessJwt": "new", "refreshJwt": "refresh2"}
        if step == "expired":
            body = {"error": "ExpiredToken", "message": "expired"}
        elif status != 200:
            body = {"error": "Busy", "message": "try again"} if status == 503 else "<html>"
        raw = json.dumps(body).encode()
        return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(raw)) + raw


@asynccontextmanager
async def client_of(server: Server, timeout_s: float = 5) -> AsyncIterator[XrpcClient]:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with XrpcClient(url, timeout_s, session=ME, rng=random.Random(1)) as client:
            yield client
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # the transports hear of it


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xrpc, "RETRY_BASE_S", 0.001)


@pytest.mark.parametrize("trouble", [["cut"], ["cut", "cut"], [503], [502, "cut", 504]])
async def test_what_may_be_repeated_is(trouble: list[int | str]) -> None:
    server = Server(*trouble)
    async with client_of(server) as client:
        assert (await client.put_record("a.b.c", "k", {})).cid == "bafy"
        assert len(server.calls) == len(trouble) + 1
        server.script = list(trouble)
        assert await client.get_record("a.test", "a.b.c", "k") == {**REF, "results": []}
        server.script = list(trouble)
        await client.delete_record("a.b.c", "k")


CALLS: dict[str, Callable[[XrpcClient], Awaitable[object]]] = {
    "create": lambda client: client.create_record("a.b.c", {}),
    "apply": lambda client: client.apply_writes([]),
    "swap": lambda client: client.put_record("a.b.c", "k", {}, swap_record="bafy"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_what_must_not_be_repeated_is_not(call: str) -> None:
    server = Server("cut")
    async with client_of(server) as client:
        with pytest.raises(HttpError):
            await CALLS[call](client)
    assert len(server.calls) == 1


async def test_a_request_that_never_left_is_always_repeated() -> None:
    server = Server()
    async with client_of(server) as client:
        await client.create_record("a.b.c", {})
    assert len(server.calls) == 1
    async with XrpcClient("http://127.0.0.1:1", session=ME) as nobody:
        with pytest.raises(HttpError, match="cannot reach"):
            await nobody.create_record("a.b.c", {})


async def test_repetition_ends() -> None:
    server = Server(*[503] * 20)
    async with client_of(server) as client:
        with pytest.raises(XrpcError, match="Busy"):
            await client.put_record("a.b.c", "k", {})
    assert len(server.calls) == xrpc.MAX_ATTEMPTS


async def test_refusals_are_not_repeated() -> None:
    server = Server(400, 500)
    async with client_of(server) as client:
        for _ in range(2):
            with pytest.raises(XrpcError) as refused:
                await client.put_record("a.b.c", "k", {})
            assert refused.value.name == f"Http{refused.value.status}"
            assert "<html>" not in str(refused.value)
    assert len(server.calls) == 2


async def test_a_timeout_is_a_timeout() -> None:
    async with client_of(Server(*["hang"] * 9), timeout_s=0.05) as client:
        with pytest.raises(HttpTimeout):
            await client.create_record("a.b.c", {})


async def test_expiry_refreshes_once_for_all_who_hit_it() -> None:
    server = Server("expired", "expired", "expired")
    async with client_of(server) as client:
        await asyncio.gather(*(client.put_record("a.b.c", f"k{n}", {}) for n in range(3)))
    assert [method for method, _ in server.calls].count("refreshSession") == 1
    assert server.calls.count(("putRecord", "old")) == 3
    assert server.calls.count(("putRecord", "new")) == 3


async def test_expired_again_at_once_is_an_error() -> None:
    server = Server("expired", 200, "expired")
    async with client_of(server) as client:
        with pytest.raises(XrpcError, match="ExpiredToken"):
            await client.put_record("a.b.c", "k", {})
    assert [method for method, _ in server.calls] == ["putRecord", "refreshSession", "putRecord"]


async def test_nobody_is_nobody() -> None:
    async with client_of(Server()) as client:
        client.session = None
        with pytest.raises(XrpcError, match="log in"):
            await client.put_record("a.b.c", "k", {})
