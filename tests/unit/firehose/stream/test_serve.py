"""FrameServer: cursors over the window, filters, and clients that do not keep up."""

import asyncio
import json
from collections.abc import Callable

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from firehose.errors import FrameInvalid, ListenFailed, PortInUse
from firehose.frames import ErrorFrame, InfoEvent, encode_info, parse_frame, peek
from firehose.http import HttpSession
from firehose.serve import FrameServer
from firehose.window import FrameWindow

MakeFrame = Callable[..., bytes]
PATH = "/xrpc/com.atproto.sync.subscribeRepos"
A, B = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"
NOTE, TURN = "dev.example.note", "dev.example.game.turn"


async def seqs(client: ClientConnection, count: int) -> list[int | None]:
    async with asyncio.timeout(5):
        return [peek(bytes(await client.recv(decode=False))).seq for _ in range(count)]


async def rest_of(client: ClientConnection) -> list[bytes]:
    """Everything up to the close, however it ends."""
    messages = []
    try:
        while True:
            messages.append(bytes(await client.recv(decode=False)))
    except ConnectionClosed:
        return messages


async def is_silent(client: ClientConnection) -> bool:
    try:
        async with asyncio.timeout(0.1):
            await client.recv()
    except TimeoutError:
        return True
    return False


def publish(
    server: FrameServer, frame: MakeFrame, *numbers: int, did: str = A, collections: tuple[str, ...] = ()
) -> None:
    for seq in numbers:
        server.publish(frame(seq, did), seq, did, collections)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("?cursor=0", [10, 20, 30, 40], id="from-the-beginning"),
        pytest.param("?cursor=-5", [10, 20, 30, 40], id="negative-is-zero"),
        pytest.param("?cursor=20", [30, 40], id="after-a-frame"),
        pytest.param("?cursor=25", [30, 40], id="between-frames"),
        pytest.param("?cursor=30", [40], id="at-the-tip"),
        pytest.param("", [40], id="live"),
        pytest.param("?cursor=", [40], id="empty-is-live"),
    ],
)
async def test_cursor(frame: MakeFrame, query: str, expected: list[int]) -> None:
    async with FrameServer() as server:
        publish(server, frame, 10, 20, 30)
        async with connect(server.url + PATH + query) as client:
            while server.stats()["clients"] == 0:
                await asyncio.sleep(0.001)
            publish(server, frame, 40)
            assert await seqs(client, len(expected)) == expected


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("?cursor=31", "FutureCursor"),
        ("?cursor=soon", "InvalidRequest"),
        ("?wantedCollections=*", "InvalidRequest"),
    ],
)
async def test_refusals_are_said_and_then_closed(frame: MakeFrame, query: str, name: str) -> None:
    async with FrameServer() as server:
        publish(server, frame, 30)
        async with connect(server.url + PATH + query) as client:
            said = parse_frame(bytes(await client.recv(decode=False)))
            assert isinstance(said, ErrorFrame)
            assert said.name == name
            with pytest.raises(ConnectionClosedError) as closed:
                await client.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, name)
        assert server.stats()["clients"] == 0


async def test_outdated_cursor_is_told_and_goes_on(frame: MakeFrame) -> None:
    async with FrameServer(window=FrameWindow(max_frames=2)) as server:
        publish(server, frame, 1, 2, 3, 4)
        async with connect(server.url + PATH + "?cursor=1") as client:
            said = parse_frame(bytes(await client.recv(decode=False)))
            assert isinstance(said, InfoEvent)
            assert said.name == "OutdatedCursor"
            assert await seqs(client, 2) == [3, 4]
        async with connect(server.url + PATH + "?cursor=2") as client:  # nothing after 2 is missing
            assert await seqs(client, 2) == [3, 4]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(f"wantedDids={A}", [1, 3, 5], id="did"),
        pytest.param(f"wantedDids={A}&wantedDids={B}", [1, 2, 3, 4, 5], id="dids"),
        pytest.param(f"wantedCollections={NOTE}", [1, 4, 5], id="collection"),
        pytest.param("wantedCollections=dev.example.game.*", [2, 3, 4, 5], id="prefix"),
        pytest.param(f"wantedDids={B}&wantedCollections={TURN}", [2, 4], id="both"),
    ],
)
async def test_filters(frame: MakeFrame, query: str, expected: list[int]) -> None:
    async with FrameServer() as server:
        publish(server, frame, 1, collections=(NOTE,))
        publish(server, frame, 2, did=B, collections=(TURN,))
        publish(server, frame, 3, collections=(TURN,))
        async with connect(f"{server.url}{PATH}?cursor=0&{query}") as client:
            past = [seq for seq in expected if seq <= 3]
            assert await seqs(client, len(past)) == past
            publish(server, frame, 4, did=B, collections=(NOTE, TURN))
            publish(server, frame, 5)  # an identity event
            live = [seq for seq in expected if seq > 3]
            assert await seqs(client, len(live)) == live
            assert await is_silent(client)


async def test_a_client_that_does_not_read_is_dropped_and_nobody_else_waits(frame: MakeFrame) -> None:
    async with FrameServer(max_lag_frames=50) as server:
        async with (
            connect(server.url + PATH, max_queue=1) as slow,
            connect(server.url + PATH) as quick,
        ):
            while server.stats()["clients"] < 2:
                await asyncio.sleep(0.001)
            got = 0
            for seq in range(1, 400):  # 100 kB each: socket buffers hold a few megabytes at most
                server.publish(frame(seq, A, 100_000), seq, A)
                got += len(await seqs(quick, 1))
            assert got == 399
            last = (await rest_of(slow))[-1]
            assert parse_frame(last) == ErrorFrame(
                name="ConsumerTooSlow", message="more than 50 frames behind"
            )
            assert slow.close_code == 1008
        assert server.stats()["served"]["ConsumerTooSlow"] == 1


async def test_a_client_that_never_reads_again_does_not_stay(
    frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firehose.fanout.FAREWELL_TIMEOUT_S", 0.1)
    async with (
        FrameServer(max_lag_frames=20) as server,
        connect(server.url + PATH, max_queue=1, close_timeout=0.1),
    ):
        while server.stats()["clients"] < 1:
            await asyncio.sleep(0.001)
        for seq in range(1, 200):
            server.publish(frame(seq, A, 100_000), seq, A)
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while server.stats()["clients"]:
                await asyncio.sleep(0.01)


async def test_a_talkative_client_is_closed() -> None:
    async with FrameServer() as server, connect(server.url + PATH) as client:
        for _ in range(20):
            await client.send("hello?")
        async with asyncio.timeout(5):
            await client.wait_closed()


async def test_notices_reach_who_is_connected(frame: MakeFrame) -> None:
    async with FrameServer() as server, connect(server.url + PATH) as client:
        while server.stats()["clients"] < 1:
            await asyncio.sleep(0.001)
        server.notify(frame(7))
        assert await seqs(client, 1) == [7]


async def test_frames_can_be_published_as_they_are(frame: MakeFrame) -> None:
    async with FrameServer() as server, connect(f"{server.url}{PATH}?cursor=0&wantedDids={B}") as client:
        server.publish(frame(1, A))
        server.publish(frame(2, B))
        assert await seqs(client, 1) == [2]
        server.publish(encode_info("OutdatedCursor"))
        assert await seqs(client, 1) == [None]
        with pytest.raises(FrameInvalid):
            server.publish(b"nonsense")
        with pytest.raises(ValueError, match="seq 2"):
            server.publish(frame(2, B))


async def test_health_and_wrong_paths(frame: MakeFrame) -> None:
    async with FrameServer(health=lambda: {"mood": "fine"}) as server:
        publish(server, frame, 3)
        async with HttpSession(server.url.replace("ws", "http")) as http:
            answer = await http.request("GET", "/")
            assert answer.headers["content-type"] == "application/json"
            health = json.loads(answer.body)
            assert (health["seq"], health["clients"], health["mood"]) == (3, 0, "fine")
            assert (await http.request("GET", "/xrpc/other")).status == 404
        with pytest.raises(InvalidStatus):
            await connect(server.url + "/other")


async def test_a_port_in_use_is_named() -> None:
    async with FrameServer() as server:
        with pytest.raises(PortInUse, match=str(server.port)):
            await FrameServer(port=server.port).__aenter__()
    async with FrameServer(port=server.port):  # and free again at once
        pass
    with pytest.raises(ListenFailed):
        await FrameServer("203.0.113.7").__aenter__()
    with pytest.raises(ListenFailed):
        await FrameServer(port=70_000).__aenter__()
