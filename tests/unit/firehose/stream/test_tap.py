"""Tap: what is passed on is verified, written down first, and survives."""

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from firehose.errors import CursorInFuture, DirectoryUnavailable, PortInUse, ProverDied, WindowUnavailable
from firehose.frames import (
    Action,
    InfoEvent,
    encode_account,
    encode_commit,
    encode_identity,
    encode_info,
    parse_frame,
    peek,
)
from firehose.http import HttpSession
from firehose.identity import Document, StaticDirectory
from firehose.judging import SeveralProcesses
from firehose.keys import SigningKey
from firehose.notes import load_notes
from firehose.plc import build_operation, check_genesis, genesis_did, render_document
from firehose.repo import Repo, Write
from firehose.segments import SegmentWriter, TraceLimits
from firehose.serve import FrameServer
from firehose.subscribe import Backoff, Subscriber
from firehose.syntax import Did, Nsid, RecordKey
from firehose.tap import Tap, TapSpec
from firehose.tid import TidClock
from firehose.trace import TraceWriter, read_trace
from firehose.window import FrameWindow

NOW_MS = 1_790_000_000_000
TIME = "2026-09-21T00:00:00.000Z"
NOTE, TURN = "dev.example.note", "dev.example.game.turn"


class Author:
    """An account without a server: it signs, and numbers its own frames."""

    def __init__(self, name: str, secret: int) -> None:
        self.key = SigningKey.from_bytes(bytes([secret]) * 32)
        operation = build_operation(
            signing_key=self.key.did_key,
            handle=f"{name}.test",
            endpoint="https://pds.test",
            rotation_key=self.key,
        )
        self.did: Did = genesis_did(operation)
        self.document: Document = render_document(check_genesis(self.did, operation))
        self.blocks: dict[Any, bytes] = {}
        first = Repo.create(self.did, self.key, TidClock(lambda: NOW_MS * 1000), self.blocks.get)
        self.blocks.update(first.new_blocks)
        self.repo = first.repo

    def note(self, seq: int, collection: str = NOTE, key: SigningKey | None = None) -> bytes:
        """A commit frame with one new record; signed by another key if one is given."""
        repo = self.repo
        if key is not None:
            assert repo.commit is not None
            repo = Repo.load(repo.commit, self.blocks.get, key=key, tids=TidClock(lambda: NOW_MS * 1000))
        write = Write(
            action=Action.CREATE, collection=Nsid(collection), rkey=RecordKey(f"k{seq}"), record={"n": seq}
        )
        result = repo.apply([write])
        if key is None:
            self.blocks.update(result.new_blocks)
            self.repo = result.repo
        return encode_commit(
            seq=seq, repo=self.did, commit=result.commit, rev=result.rev, since=result.since, time=TIME,
            blocks=result.car, ops=result.ops, prev_data=result.prev_data,
        )  # fmt: skip


@pytest.fixture
def alice() -> Author:
    return Author("alice", 1)


@pytest.fixture
def bob() -> Author:
    return Author("bob", 2)


@pytest.fixture
def directory(alice: Author, bob: Author) -> StaticDirectory:
    return StaticDirectory({author.did: author.document for author in (alice, bob)})


@pytest.fixture
async def relay() -> AsyncIterator[FrameServer]:
    """An upstream that passes on whatever it is told to, true or not."""
    async with FrameServer() as server:
        yield server


def send(relay: FrameServer, *frames: bytes) -> None:
    for frame in frames:
        relay.publish(frame, peek(frame).seq or 0, None)


@asynccontextmanager
async def running(upstream: str, directory: Any, state: Path, **settings: Any) -> AsyncIterator[Tap]:
    cursor, record = settings.pop("cursor", 0), settings.pop("record", None)
    spec = TapSpec(backoff=Backoff(base=0.01, cap=0.05), **settings)
    settings = {"cursor": cursor, "record": record, "clock": lambda: NOW_MS, "spec": spec}
    async with Tap(upstream, directory, state, **settings) as tap, AsyncExitStack() as stack:
        task = asyncio.ensure_future(tap.run())
        stack.callback(task.cancel)
        yield tap
        if task.done():
            task.result()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():
            await asyncio.sleep(0.002)


async def read(tap: Tap, count: int, **settings: Any) -> list[bytes]:
    async with Subscriber(tap.url, **{"cursor": 0, **settings}) as subscriber, asyncio.timeout(30):
        frames = [await subscriber.receive() for _ in range(count)]
    return [frame for frame in frames if frame is not None]


async def test_only_what_is_true_is_passed_on(
    relay: FrameServer, directory: StaticDirectory, alice: Author, bob: Author, tmp_path: Path
) -> None:
    good = [alice.note(1), bob.note(2), alice.note(5)]
    forged = alice.note(3, key=bob.key)
    broken = bob.note(4).replace(b"\xa1an\x04", b"\xa1an\x05")  # another record under the same CID
    send(relay, good[0], good[1], forged, broken, good[2])
    async with running(relay.url, directory, tmp_path, record=tmp_path / "all.fht") as tap:
        assert await read(tap, 3) == good
        stats = tap.stats()
        assert (stats["seen"], stats["verified"], stats["rejected"], stats["seq"]) == (5, 3, 2, 5)
        assert sum(stats["rejected_by_reason"].values()) == 2
        assert stats["seen"] == sum(sum(reasons.values()) for reasons in stats["verdicts"].values())
        async with HttpSession(tap.url.replace("ws", "http")) as http:
            health = json.loads((await http.request("GET", "/")).body)
        assert (health["seq"], health["upstream"]["state"]) == (5, "live")
    assert [kept.frame for kept in read_trace(tmp_path / "window")] == good
    assert [kept.frame for kept in read_trace(tmp_path / "all.fht")] == [
        *good[:2],
        forged,
        broken,
        good[2],
    ]


async def test_filters_and_a_tap_behind_a_tap(
    relay: FrameServer, directory: StaticDirectory, alice: Author, bob: Author, tmp_path: Path
) -> None:
    frames = [
        alice.note(1),
        bob.note(2, TURN),
        encode_identity(seq=3, did=bob.did, time=TIME),
        alice.note(4, TURN),
        encode_account(seq=5, did=alice.did, time=TIME, active=True),
    ]
    send(relay, *frames)
    async with (
        running(relay.url, directory, tmp_path / "1") as first,
        running(first.url, directory, tmp_path / "2") as second,
        running(second.url, directory, tmp_path / "3", dids=(alice.did,)) as third,
    ):
        assert await read(second, 5) == frames
        assert await read(second, 2, dids=[bob.did]) == [frames[1], frames[2]]
        assert await read(second, 4, collections=["dev.example.game.*"]) == frames[1:]
        assert await read(second, 2, dids=[alice.did], collections=[NOTE]) == [frames[0], frames[4]]
        assert await read(third, 3) == [frames[0], frames[3], frames[4]]
        assert second.stats()["seq"] == first.stats()["seq"] == 5  # frames keep their seq


async def test_a_restart_goes_on_from_the_window(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    frames = [alice.note(seq) for seq in range(1, 9)]
    send(relay, *frames[:4])
    async with running(relay.url, directory, tmp_path) as tap:
        await until(lambda: tap.stats()["seq"] == 4)
    send(relay, *frames[4:])
    async with running(relay.url, directory, tmp_path) as tap:
        assert tap.stats()["restored"] == 4
        assert await read(tap, 8) == frames
        assert tap.stats()["seen"] == 4  # the first four are not asked for again
        assert tap.stats()["window"]["missing_seq"] == 0


async def test_a_restarted_tap_still_knows_who_is_inactive(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    send(relay, encode_account(seq=1, did=alice.did, time=TIME, active=False, status="takendown"))
    async with running(relay.url, directory, tmp_path) as tap:
        await until(lambda: tap.stats()["seq"] == 1)
    send(relay, alice.note(2))
    async with running(relay.url, directory, tmp_path) as tap:
        await until(lambda: tap.stats()["seen"] == 1)
        assert tap.stats()["verdicts"] == {"ignore": {"account-inactive": 1}}


@pytest.mark.parametrize("cut", [1, 11, 12, 13, 200])
async def test_a_torn_tail_is_cut_and_fetched_again(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path, cut: int
) -> None:
    frames = [alice.note(seq) for seq in (1, 2, 3)]
    with SegmentWriter(tmp_path / "window") as writer:
        for frame in frames[:2]:
            writer.append(0, frame)
    path = next((tmp_path / "window").glob("*.tail"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 12 - len(frames[1]) + cut])
    send(relay, *frames)
    async with running(relay.url, directory, tmp_path) as tap:
        assert tap.stats()["restored"] == 1
        assert await read(tap, 3) == frames
    assert [kept.frame for kept in read_trace(tmp_path / "window")] == frames


async def test_the_window_is_bounded_on_disk_and_in_memory(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    frames = [alice.note(seq) for seq in range(1, 101)]
    size = len(frames[50])
    limits = TraceLimits(block_bytes=3 * size, segment_bytes=5 * size, keep_bytes=20 * size)
    send(relay, *frames)
    settings: dict[str, Any] = {"max_window_bytes": 10 * size, "window": limits}
    async with running(relay.url, directory, tmp_path, **settings) as tap:
        await until(lambda: tap.stats()["seq"] == 100)
        window = tap.stats()["window"]
        assert window["bytes"] <= 10 * size
        first = window["missing_seq"] + 1
        assert 10 < first < 100 - window["frames"] + 1, "more is on disk than in memory"
        outdated, *rest = await read(tap, 1 + 100 - first + 1, cursor=5)
        assert isinstance(parse_frame(outdated), InfoEvent)
        assert rest == frames[first - 1 :]
        assert await read(tap, 100 - first, cursor=first) == frames[first:]  # nothing after it is missing
        assert tap.stats()["disk_bytes"] < 40 * size
    async with running(relay.url, directory, tmp_path, **settings) as tap:  # and it still knows that
        assert tap.stats()["restored"] < 50
        outdated, *rest = await read(tap, 1 + 100 - first + 1, cursor=5)
        assert isinstance(parse_frame(outdated), InfoEvent)
        assert rest == frames[first - 1 :]
        assert tap.stats()["seen"] == 0


async def test_what_was_known_of_accounts_outlives_their_frames(
    relay: FrameServer, directory: StaticDirectory, alice: Author, bob: Author, tmp_path: Path
) -> None:
    """The frames that said so are no longer kept, or not read at a start; the state beside a segment is."""
    early = [bob.note(1), encode_account(seq=2, did=bob.did, time=TIME, active=False, status="takendown")]
    late = [alice.note(seq) for seq in range(3, 60)]
    size = len(late[30])
    limits = TraceLimits(block_bytes=2 * size, segment_bytes=3 * size, keep_segments=3)
    settings: dict[str, Any] = {"max_window_bytes": 4 * size, "window": limits}
    send(relay, *early, *late)
    async with running(relay.url, directory, tmp_path, **settings) as tap:
        await until(lambda: tap.stats()["seq"] == 59)
        assert tap.stats()["window"]["missing_seq"] > 2
    send(relay, bob.note(60), alice.note(61))
    async with running(relay.url, directory, tmp_path, **settings) as tap:
        await until(lambda: tap.stats()["seen"] == 2)
        assert tap.stats()["verdicts"] == {"ignore": {"account-inactive": 1}, "accept": {"ok": 1}}
    for state in (tmp_path / "window").glob("*.state"):
        state.write_bytes(b"damaged")
    async with running(relay.url, directory, tmp_path, **settings) as tap:  # then only what the frames say
        assert tap.stats()["restored"] > 0


async def test_the_window_of_an_earlier_version_is_taken_over(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    frames = [alice.note(seq) for seq in (5, 6, 7)]
    with TraceWriter(tmp_path / "window.fht") as writer:
        writer.append(0, encode_info("OutdatedCursor", "frames before this one are not kept"))
        for frame in frames[:2]:
            writer.append(7, frame)
    with SegmentWriter(tmp_path / "window") as begun:  # an earlier take-over was interrupted
        begun.append(7, frames[0])
    send(relay, *frames)
    async with running(relay.url, directory, tmp_path) as tap:
        assert tap.stats()["restored"] == 2
        assert await read(tap, 3, cursor=4) == frames
    assert not (tmp_path / "window.fht").exists()


async def test_the_verdict_is_kept_with_the_frame(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    first, _, third = alice.note(1), alice.note(2), alice.note(3)  # the second gets lost
    send(relay, first, third)
    for _ in range(2):
        async with (
            running(relay.url, directory, tmp_path, resync_hold_s=0.01) as tap,
            connect(f"{tap.url}/xrpc/com.atproto.sync.subscribeRepos?cursor=0&format=json") as client,
        ):
            told = [json.loads(await client.recv()) for _ in range(2)]
        assert [(event["seq"], event["verdict"], event["reason"]) for event in told] == [
            (1, "accept", "ok"),
            (3, "desync", "chain-data"),
        ]


async def test_a_window_that_begins_late_says_so(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    send(relay, alice.note(1), alice.note(2), alice.note(3))
    async with running(relay.url, directory, tmp_path, cursor=2) as tap:
        await until(lambda: tap.stats()["seq"] == 3)
    async with running(relay.url, directory, tmp_path, cursor=2) as tap:
        said, frame = await read(tap, 2, cursor=1)
        assert isinstance(parse_frame(said), InfoEvent)
        assert peek(frame).seq == 3


async def test_losses_upstream_are_told_to_the_clients(
    directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    async with FrameServer(window=FrameWindow(max_frames=1)) as relay:
        send(relay, alice.note(1), alice.note(2))
        async with running(relay.url, directory, tmp_path, cursor=1) as tap:
            await until(lambda: tap.stats()["seq"] == 2)
            client = asyncio.ensure_future(read(tap, 1, cursor=None))
            await until(lambda: tap.stats()["clients"] == 1)
            relay.notify(encode_info("OutdatedCursor", "some are gone"))
            assert await client == [encode_info("OutdatedCursor", "some are gone")]


async def test_a_rotated_key_is_asked_for_once(
    relay: FrameServer, alice: Author, bob: Author, tmp_path: Path
) -> None:
    old = {**alice.document, "verificationMethod": bob.document["verificationMethod"]}
    old["verificationMethod"] = [
        {**old["verificationMethod"][0], "id": f"{alice.did}#atproto", "controller": alice.did}
    ]
    send(relay, alice.note(1), alice.note(2))
    async with running(relay.url, StaticDirectory({alice.did: [old, alice.document]}), tmp_path) as tap:
        await until(lambda: tap.stats()["seen"] == 2)
        assert tap.stats()["verified"] == 2


class Away:
    """A directory that answers only after a number of failures."""

    def __init__(self, document: Document, failures: int) -> None:
        self.document = document
        self.failures = failures

    async def resolve(self, did: str) -> Document | None:
        self.failures -= 1
        if self.failures >= 0:
            raise DirectoryUnavailable(did, "away")
        return self.document

    def purge(self, did: str) -> None:
        pass

    def refresh(self, did: str) -> None:
        pass


async def test_the_stream_waits_for_a_directory_that_is_away(
    relay: FrameServer, alice: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firehose.tap.HOLD_PAUSE_S", 0.01)
    frames = [alice.note(1), alice.note(2)]
    send(relay, *frames)
    async with running(relay.url, Away(alice.document, 5), tmp_path / "1") as tap:
        assert await read(tap, 2) == frames
        assert tap.stats()["held"] == 5
    async with running(relay.url, Away(alice.document, 10_000), tmp_path / "2", hold_s=0.1) as tap:
        await until(lambda: tap.stats()["seen"] == 2)  # but not for ever
        assert tap.stats()["verdicts"] == {"ignore": {"identity-unresolved": 2}}


async def test_what_cannot_go_on_is_said(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    send(relay, alice.note(1))
    async with Tap(relay.url, directory, tmp_path / "1", cursor=7) as tap:
        with pytest.raises(CursorInFuture):
            await tap.run()
        with pytest.raises(WindowUnavailable, match="another tap has it"):
            await Tap(relay.url, directory, tmp_path / "1").__aenter__()
        with pytest.raises(PortInUse):
            await Tap(relay.url, directory, tmp_path / "2", port=tap.port).__aenter__()
    (tmp_path / "3" / "window").mkdir(parents=True)
    (tmp_path / "3" / "window" / "000000000001.fht.zst").write_bytes(b"something else entirely")
    with pytest.raises(WindowUnavailable, match="move it away"):
        await Tap(relay.url, directory, tmp_path / "3").__aenter__()
    (tmp_path / "4").write_text("a file where the directory should be")
    with pytest.raises(WindowUnavailable):
        await Tap(relay.url, directory, tmp_path / "4").__aenter__()


async def test_a_full_disk_stops_before_anything_is_served(
    relay: FrameServer,
    directory: StaticDirectory,
    alice: Author,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = [alice.note(1), alice.note(2)]
    send(relay, frames[0])
    async with Tap(relay.url, directory, tmp_path, cursor=0, clock=lambda: NOW_MS) as tap:
        run = asyncio.ensure_future(tap.run())
        await until(lambda: tap.stats()["seq"] == 1)

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(TraceWriter, "flush", full)
        send(relay, frames[1])
        with pytest.raises(WindowUnavailable, match="No space left"):
            await run
        assert tap.stats()["seq"] == 1
        monkeypatch.undo()
    async with running(relay.url, directory, tmp_path) as tap:
        assert await read(tap, 2) == frames


async def test_a_full_disk_under_the_trace_stops_nothing(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    frames = [alice.note(seq) for seq in range(1, 101)]
    size = len(frames[50])
    small = TraceLimits(block_bytes=2 * size, segment_bytes=4 * size)  # the window stays below, the trace not
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * size, before[1]))
    try:
        send(relay, *frames)
        async with running(relay.url, directory, tmp_path, record=tmp_path / "raw.fht", window=small) as tap:
            assert await read(tap, 100) == frames
            stats = tap.stats()
            resource.setrlimit(resource.RLIMIT_FSIZE, before)  # somebody has made room
            send(relay, alice.note(101))
            await until(lambda: tap.stats()["seq"] == 101)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    verified, lost = stats["verified"], stats["record"]["lost"]
    assert (verified, lost["last_seq"], lost["reason"]) == (100, 100, "File too large")
    assert 70 < lost["count"] < 90
    assert [gap["count"] for gap in load_notes(tmp_path / "raw.fht").gaps] == [lost["count"]]
    kept = [peek(record.frame).seq for record in read_trace(tmp_path / "raw.fht")]
    assert [seq for seq in kept if seq] == [*range(1, lost["first_seq"]), 101]


async def test_several_processes_pass_on_the_same(
    relay: FrameServer, directory: StaticDirectory, alice: Author, bob: Author, tmp_path: Path
) -> None:
    good, forged = [alice.note(1), bob.note(2), alice.note(3), bob.note(4)], alice.note(5, key=bob.key)
    later = [alice.note(6), bob.note(7)]
    send(relay, *good, forged, *later)
    async with running(relay.url, directory, tmp_path, verify_processes=2) as tap:
        assert await read(tap, 6) == [*good, *later]
        assert tap.stats()["verdicts"] == {"accept": {"ok": 6}, "reject": {"signature": 1}}
    more = [alice.note(8), bob.note(9)]
    send(relay, *more)
    async with running(relay.url, directory, tmp_path, verify_processes=2) as tap:
        assert await read(tap, 8) == [*good, *later, *more]
        assert tap.stats()["verdicts"] == {"accept": {"ok": 2}}  # they were told what was known
        assert [entry.verdict for entry in tap._opened_server().window.after(7, 9)] == ["accept"] * 2


async def test_a_verifying_process_that_dies_ends_the_run(
    relay: FrameServer, directory: StaticDirectory, alice: Author, tmp_path: Path
) -> None:
    send(relay, alice.note(1))
    settings: dict[str, Any] = {"cursor": 0, "clock": lambda: NOW_MS, "spec": TapSpec(verify_processes=2)}
    async with Tap(relay.url, directory, tmp_path, **settings) as tap:
        run = asyncio.ensure_future(tap.run())
        await until(lambda: tap.stats()["seq"] == 1)
        assert isinstance(tap._judging, SeveralProcesses)
        for pid in tap._judging._provers.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProverDied):
            await asyncio.wait_for(run, 10)


async def test_unknown_kinds_are_ignored(
    relay: FrameServer, directory: StaticDirectory, tmp_path: Path
) -> None:
    strange = encode_identity(seq=1, did="did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", time=TIME).replace(
        b"#identity", b"#idensity"
    )
    relay.publish(strange, 1, None)
    async with running(relay.url, directory, tmp_path) as tap:
        await until(lambda: tap.stats()["seen"] == 1)
        assert tap.stats()["verdicts"] == {"ignore": {"unknown-type": 1}}
