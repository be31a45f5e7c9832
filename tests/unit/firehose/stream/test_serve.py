"""FrameServer: cursors over the window, filters, and clients that do not keep up."""

import asyncio
import json
from collections.abc import Callable

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from firehose.errors import FrameInvalid, ListenFailed, PortInUse
from firehose.frames import ErrorFrame, InfoEvent, encode_identity, encode_info, parse_frame, peek
from firehose.http import HttpSession
from firehose.serve import FrameServer, entry_of
from firehose.window import FrameWindow

MakeFrame = Callable[..., bytes]
PATH = "/xrpc/com.atproto.sync.subscribeRepos"
A, B = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "did:plc:bbbbbbbbbbbbbbbbbbbbbbbb"
NOTE, TURN = "dev.example.note", "dev.example.game.turn"


async def seqs(client: ClientConnection, count: int) -> list[int | None]:
    async with asyncio.timeout(30):
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
        async with asyncio.timeout(30):
            while server.stats()["clients"]:
                await asyncio.sleep(0.01)


def update(**payload: list[str]) -> str:
    return json.dumps({"type": "options_update", "payload": payload})


async def test_filters_change_on_a_live_connection(frame: MakeFrame) -> None:
    async with FrameServer() as server, connect(f"{server.url}{PATH}?wantedDids={A}") as client:
        while server.stats()["clients"] < 1:
            await asyncio.sleep(0.001)
        publish(server, frame, 1)
        publish(server, frame, 2, did=B)
        assert await seqs(client, 1) == [1]
        await client.send(update(wantedDids=[B]))
        while server.stats()["served"].get("filters changed") != 1:
            await asyncio.sleep(0.001)
        publish(server, frame, 3)
        publish(server, frame, 4, did=B)
        assert await seqs(client, 1) == [4]
        await client.send(update())  # everything
        while server.stats()["served"]["filters changed"] != 2:
            await asyncio.sleep(0.001)
        publish(server, frame, 5)
        assert await seqs(client, 1) == [5]


async def test_who_promises_a_filter_gets_nothing_before(frame: MakeFrame) -> None:
    async with FrameServer() as server, connect(f"{server.url}{PATH}?cursor=0&requireHello=true") as client:
        publish(server, frame, 1)
        publish(server, frame, 2, did=B)
        assert await is_silent(client)
        await client.send(update(wantedDids=[B, *(f"did:plc:{n:024}" for n in range(9_999))]))
        assert await seqs(client, 1) == [2]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(["hello?"], id="no-filter"),
        pytest.param([update(wantedDids=[f"did:plc:{n}" for n in range(10_001)])], id="too-many-accounts"),
        pytest.param([update()] * 17, id="too-often"),
    ],
)
async def test_a_client_that_talks_nonsense_or_too_much_is_closed(said: list[str]) -> None:
    async with FrameServer() as server, connect(server.url + PATH) as client:
        for message in said:
            await client.send(message)
        refusal = parse_frame((await rest_of(client))[-1])
        assert isinstance(refusal, ErrorFrame)
        assert (refusal.name, client.close_code) == ("InvalidRequest", 1008)


async def test_a_message_without_end_is_not_read() -> None:
    async with FrameServer() as server, connect(server.url + PATH) as client:
        await client.send("x" * 1_100_000)
        assert await rest_of(client) == []
        assert client.close_code == 1009  # message too big


async def test_json_for_tools(pds_frames: list[tuple[int, bytes]]) -> None:
    frames = [raw for _, raw in pds_frames[:40]]
    async with FrameServer() as server:
        for raw in frames:
            server.append(entry_of(raw, parse_frame(raw), "accept", "ok"))
        async with connect(f"{server.url}{PATH}?cursor=0&format=json") as client:
            told = [json.loads(await client.recv(decode=True)) for _ in frames]
            server.notify(encode_info("OutdatedCursor", "some are gone"))
            info = json.loads(await client.recv(decode=True))
            server.publish(encode_identity(seq=10_000, did=A, time="t"))
            unjudged = json.loads(await client.recv(decode=True))
        async with connect(f"{server.url}{PATH}?cursor=20000&format=json") as client:
            refused = json.loads(await client.recv(decode=True))
        async with connect(f"{server.url}{PATH}?format=xml") as client:
            assert isinstance(parse_frame(bytes(await client.recv(decode=False))), ErrorFrame)
    assert [event["seq"] for event in told] == [peek(raw).seq for raw in frames]
    assert {event["verdict"] for event in told} == {"accept"}
    created = [op for event in told if event["type"] == "commit" for op in event["ops"] if "record" in op]
    assert created
    assert all(op["record"]["$type"] == op["path"].partition("/")[0] for op in created)
    assert info == {"type": "info", "name": "OutdatedCursor", "message": "some are gone"}
    assert (unjudged["verdict"], unjudged["type"], unjudged["did"]) == ("unverified", "identity", A)
    assert (refused["type"], refused["error"]) == ("error", "FutureCursor")


async def test_the_slow_can_resume_where_they_were_cut_off(frame: MakeFrame) -> None:
    got: list[int] = []
    async with FrameServer(max_lag_frames=20) as server:
        async with connect(server.url + PATH, max_queue=1) as slow:
            while server.stats()["clients"] < 1:
                await asyncio.sleep(0.001)
            for seq in range(1, 200):
                server.publish(frame(seq, A, 100_000), seq, A)
                await asyncio.sleep(0)
            *had, last = await rest_of(slow)
        assert isinstance(parse_frame(last), ErrorFrame)
        got += [peek(raw).seq or 0 for raw in had]
        async with connect(f"{server.url}{PATH}?cursor={got[-1] if got else 0}") as client:
            got += [seq or 0 for seq in await seqs(client, 199 - len(got))]
    assert got == list(range(1, 200))


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
