"""Several hosts as one stream: every event once, each host from its own cursor, and no reader waits."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection

from firehose.cursor_file import CursorFile, Cursors, Numbering
from firehose.errors import CursorInFuture, FrameInvalid, WindowUnavailable
from firehose.frames import encode_account, encode_error, encode_identity, encode_info, parse_frame, peek
from firehose.relays import SEQ_STEP, Relays
from firehose.renumber import renumber, without_seq
from firehose.serve import FrameServer
from firehose.subscribe import Backoff, Subscriber, retry_after_s

MakeFrame = Callable[..., bytes]
Upstream = Callable[[Callable[[ServerConnection], Awaitable[None]]], Any]
DIDS = [f"did:plc:{letter * 24}" for letter in "abcdefgh"]
TIME = "2026-01-01T00:00:00.000Z"
START_MS = 1_790_000_000_000


def follow(urls: list[str], state: Path, last_seq: int | None = None, **settings: Any) -> Relays:
    fast = Backoff(base=0.01, cap=0.05, floor=0.001)

    def subscribe(url: str, cursor: int | None) -> Subscriber:
        return Subscriber(url, cursor=cursor, backoff=fast)

    settings = dict[str, Any](begin=0, clock=lambda: START_MS) | settings
    return Relays(urls, last_seq, subscribe, CursorFile(state / "cursors.json"), **settings)


async def take(relays: Relays, count: int, *, done: bool = True) -> list[bytes]:
    taken: list[bytes] = []
    async with asyncio.timeout(30):
        async for frame in relays.frames():
            taken.append(frame)
            seq = peek(frame).seq
            if done and seq is not None:
                relays.done(seq)
            if len(taken) == count:
                break
    return taken


def dids_of(frames: list[bytes]) -> list[str | None]:
    return [peek(frame).did for frame in frames]


def saved(state: Path) -> dict[str, int]:
    held: dict[str, int] = json.loads((state / "cursors.json").read_text())["cursors"]
    return held


async def test_an_event_of_two_hosts_is_handed_out_once_in_one_numbering(
    tmp_path: Path, frame: MakeFrame
) -> None:
    async with FrameServer() as one, FrameServer() as two:
        relays = follow([one.url, two.url], tmp_path)
        for number, did in enumerate(DIDS[:4], 1):
            one.publish(frame(number, did))
            two.publish(frame(1000 + 7 * number, did))
        two.publish(frame(2000, DIDS[4]))
        frames = await take(relays, 5)
        async with asyncio.timeout(30):
            while relays.stats()["counters"].get("copies") != 4:
                await anext(aiter(relays.frames())) if relays.stats()["ahead"] > 4 else await take_copies(
                    relays
                )
        await relays.close()
    assert sorted(map(str, dids_of(frames))) == DIDS[:5]
    seqs = [peek(one_frame).seq for one_frame in frames]
    assert seqs == [START_MS * 1000 + SEQ_STEP * number for number in range(1, 6)]
    assert relays.numbering is Numbering.OWN


async def take_copies(relays: Relays) -> None:
    """Let the copies that are still to come be dropped: nothing of them is handed out."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(aiter(relays.frames()))


async def test_each_host_goes_on_from_its_own_cursor(tmp_path: Path, frame: MakeFrame) -> None:
    async with FrameServer() as one, FrameServer() as two:
        one.publish(frame(5, DIDS[0]))
        two.publish(frame(900, DIDS[1]))
        relays = follow([one.url, two.url], tmp_path)
        last_seq = peek((await take(relays, 2))[-1]).seq
        await relays.close()
        assert saved(tmp_path) == {one.url: 5, two.url: 900}
        one.publish(frame(6, DIDS[2]))
        two.publish(frame(907, DIDS[3]))
        again = follow([two.url, one.url], tmp_path, last_seq)
        frames = await take(again, 2)
        await again.close()
    assert set(dids_of(frames)) == set(DIDS[2:4])
    assert last_seq is not None
    assert all((peek(one_frame).seq or 0) > last_seq for one_frame in frames)
    assert again.stats()["counters"].get("repeated", 0) == 0


async def test_what_was_not_dealt_with_comes_again(tmp_path: Path, frame: MakeFrame) -> None:
    async with FrameServer() as one, FrameServer() as two:
        for seq in range(1, 7):
            one.publish(frame(seq, DIDS[seq]))
        relays = follow([one.url, two.url], tmp_path)
        frames = await take(relays, 6, done=False)
        relays.done(peek(frames[2]).seq or 0)
        await relays.close()
        assert saved(tmp_path)[one.url] == 3
        again = follow([one.url, two.url], tmp_path, peek(frames[2]).seq)
        assert dids_of(await take(again, 3)) == DIDS[4:7]
        await again.close()


async def test_one_host_alone_keeps_its_numbers_until_it_is_replaced(
    tmp_path: Path, frame: MakeFrame
) -> None:
    async with FrameServer() as one, FrameServer() as other:
        for seq in (500, 501):
            one.publish(frame(seq, DIDS[0]))
        relays = follow([one.url], tmp_path)
        assert [peek(kept).seq for kept in await take(relays, 2)] == [500, 501]
        await relays.close()
        other.publish(frame(3, DIDS[1]))
        # 501 means nothing to the other host: it is asked from its own beginning, under our numbers.
        replaced = follow([other.url], tmp_path, 501)
        assert [peek(kept).seq for kept in await take(replaced, 1)] == [501 + SEQ_STEP]
        await replaced.close()
        assert saved(tmp_path) == {one.url: 501, other.url: 3}
        one.publish(frame(502, DIDS[2]))
        back = follow([one.url], tmp_path, 501 + SEQ_STEP)
        assert dids_of(await take(back, 1)) == [DIDS[2]]
        await back.close()


async def test_a_network_that_changes_its_port_is_still_the_same(tmp_path: Path, frame: MakeFrame) -> None:
    for seq in (1, 2):
        async with FrameServer() as server:
            for number in range(1, seq + 1):
                server.publish(frame(number, DIDS[number]))
            relays = follow([server.url], tmp_path, seq - 1 or None, name="embedded")
            assert [peek(kept).seq for kept in await take(relays, 1)] == [seq]
            await relays.close()
    assert saved(tmp_path) == {"embedded": 2}


async def test_the_stream_goes_on_while_one_host_can_be_followed(tmp_path: Path, frame: MakeFrame) -> None:
    async with FrameServer() as lost, FrameServer() as good:
        lost.publish(frame(10, DIDS[0]))
        good.publish(frame(10, DIDS[0]))
        cursors = Cursors(numbering=Numbering.OWN, last_seq=4, by_url={lost.url: 99, good.url: 10})
        CursorFile(tmp_path / "cursors.json").save(cursors)
        relays = follow([lost.url, good.url], tmp_path)
        good.publish(frame(11, DIDS[1]))
        good.publish(frame(12, DIDS[2]))
        assert dids_of(await take(relays, 2)) == DIDS[1:3]
        states = [told["state"] for told in relays.stats()["relays"]]
        assert (relays.stats()["state"], states) == ("live", ["stopped", "live"])
        await relays.close()


async def test_when_nobody_is_left_the_reason_is_told(tmp_path: Path, frame: MakeFrame) -> None:
    async with FrameServer() as lost, FrameServer() as other:
        lost.publish(frame(10, DIDS[0]))
        other.publish(frame(10, DIDS[0]))
        for urls in ([lost.url], [lost.url, other.url]):
            relays = follow(urls, tmp_path, begin=99)
            with pytest.raises(CursorInFuture, match="start again without a cursor"):
                await take(relays, 1)
            await relays.close()


async def test_a_host_is_read_while_nobody_asks_and_left_when_there_is_no_room(
    tmp_path: Path, frame: MakeFrame
) -> None:
    async with FrameServer() as server:
        for seq in range(1, 101):
            server.publish(frame(seq, DIDS[0]))
        relays = follow([server.url], tmp_path, max_ahead_frames=20)
        frames = aiter(relays.frames())
        seqs = [peek(await anext(frames)).seq]
        async with asyncio.timeout(30):
            while not relays.stats()["counters"].get("pauses"):
                await asyncio.sleep(0.01)
            assert relays.stats()["ahead"] <= 20
            seqs += [peek(await anext(frames)).seq for _ in range(99)]
        await relays.close()
    assert seqs == list(range(1, 101))
    assert relays.stats()["counters"]["pauses"] >= 4


async def test_a_changed_copy_does_not_keep_out_the_true_one(tmp_path: Path) -> None:
    true = {"did": DIDS[0], "time": TIME, "active": True}
    async with FrameServer() as liar, FrameServer() as honest:
        liar.publish(encode_account(seq=1, **(true | {"active": False, "status": "deleted"})))  # type: ignore[arg-type]
        honest.publish(encode_account(seq=1, **true))  # type: ignore[arg-type]
        relays = follow([liar.url, honest.url], tmp_path)
        said = [getattr(parse_frame(kept), "active", None) for kept in await take(relays, 2)]
        await relays.close()
    assert sorted(map(bool, said)) == [False, True]


async def test_frames_without_a_seq_pass_through(
    tmp_path: Path, upstream: Upstream, frame: MakeFrame
) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.send(encode_info("OutdatedCursor", "gone"))
        await connection.send(frame(7, DIDS[0]))
        await connection.wait_closed()

    async with upstream(script) as url, FrameServer() as other:
        relays = follow([url, other.url], tmp_path)
        frames = await take(relays, 2)
        await relays.close()
    assert frames[0] == encode_info("OutdatedCursor", "gone")


@pytest.mark.parametrize(
    "held", ["", "{", "[]", '{"version": 2}', '{"version": 1, "cursors": [], "last_seq": 1}']
)
def test_cursors_that_cannot_be_read_are_not_guessed(tmp_path: Path, held: str) -> None:
    (tmp_path / "cursors.json").write_text(held)
    with pytest.raises(WindowUnavailable, match="cursors"):
        follow(["ws://127.0.0.1:1"], tmp_path)


@given(
    seq=st.integers(1, (1 << 53) - 1),
    fresh=st.integers(1, (1 << 53) - 1),
    before=st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.sampled_from(
            [0, -70_000, b"\x63seq\x05", "seq", [[{"seq": 1}], 2], {"seq": {"seq": [b""]}}, None, 1.5]
        ),
    ),
)
def test_only_the_seq_is_changed(seq: int, fresh: int, before: dict[str, Any]) -> None:
    header = cbor2.dumps({"op": 1, "t": "#identity"}, canonical=True)
    body = {**before, "seq": seq, "zzzzz": {"seq": 5}}
    raw = header + cbor2.dumps(body)
    changed = renumber(raw, fresh)
    assert changed == header + cbor2.dumps(body | {"seq": fresh})
    assert without_seq(raw) == without_seq(changed)
    assert renumber(changed, seq) == raw


@given(st.binary(max_size=60))
def test_noise_has_no_seq_or_is_changed_and_nothing_else(raw: bytes) -> None:
    for data in (raw, encode_identity(seq=5, did=DIDS[0], time=TIME)[: len(raw)], encode_error("x") + raw):
        try:
            assert len(renumber(data, 1)) <= len(data)
        except FrameInvalid:
            continue


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0),
        ("7", 7),
        ("999999", 300),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0),
        ("soon", 0),
        ("²", 0),
        ("-3", 0),
    ],
)
def test_how_long_to_wait(value: str | None, seconds: float) -> None:
    assert retry_after_s(value, "Sun, 06 Nov 1994 08:49:37 GMT") == seconds
    assert retry_after_s("Sun, 06 Nov 1994 08:49:47 GMT", None) == 0
