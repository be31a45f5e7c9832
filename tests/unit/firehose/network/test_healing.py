"""Frames are lost on purpose between a real network and a tap: what was missed comes out, verified."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firehose.frames import CommitEvent, SyncEvent, encode_sync, parse_frame, peek
from firehose.healer import Healer
from firehose.identity import DidDirectory, StaticDirectory
from firehose.network import Network
from firehose.repo import read_repo_car
from firehose.resync_journal import Pending, ResyncJournal
from firehose.resync_shell import MAX_REDIRECTS, FetchFailed, RepoFetcher, RepoGone
from firehose.serve import FrameServer
from firehose.subscribe import Backoff, Subscriber
from firehose.syntax import Did
from firehose.tap import Tap, TapSpec
from firehose.verify import Policy, Verdict, VerifiedRecord, Verifier
from firehose.xrpc import XrpcClient

NOTE = "dev.example.note"


@pytest.fixture
async def lossy() -> AsyncIterator[FrameServer]:
    """An upstream that passes on what it likes; it has no repositories, so the PDS is asked for them."""
    async with FrameServer() as server:
        yield server


@asynccontextmanager
async def running(upstream: str, network: Network, state: Path, **settings: Any) -> AsyncIterator[Tap]:
    spec = TapSpec(backoff=Backoff(base=0.01, cap=0.05), **settings)
    async with AsyncExitStack() as stack:
        directory = await stack.enter_async_context(DidDirectory(network.url))
        tap = await stack.enter_async_context(Tap(upstream, directory, state, cursor=0, spec=spec))
        task = asyncio.ensure_future(tap.run())
        stack.callback(task.cancel)
        yield tap
        if task.done():
            task.result()


def sum_of(reasons: dict[str, int]) -> int:
    return sum(reasons.values())


def did_of(client: XrpcClient) -> Did:
    assert client.session is not None
    return Did(client.session.did)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():
            await asyncio.sleep(0.002)


async def frames_of(network: Network) -> list[bytes]:
    """Everything the network has said."""
    last_seq = network.stats()["seq"]
    frames: list[bytes] = []
    async with Subscriber(network.url, cursor=0) as subscriber, asyncio.timeout(30):
        while not frames or peek(frames[-1]).seq != last_seq:
            frame = await subscriber.receive()
            assert frame is not None
            frames.append(frame)
    return frames


async def play(alice: XrpcClient, bob: XrpcClient) -> None:
    """Creates, updates and deletes in two repositories."""
    for number in range(8):
        await alice.put_record(NOTE, f"a{number}", {"n": number})
        await bob.put_record(NOTE, f"b{number}", {"n": number})
    await alice.put_record(NOTE, "a1", {"n": 100})
    await alice.delete_record(NOTE, "a2")
    await alice.put_record(NOTE, "a9", {"n": 9})


def commits_of(frames: list[bytes], did: str) -> list[int]:
    events = [parse_frame(frame) for frame in frames]
    return [event.seq for event in events if isinstance(event, CommitEvent) and event.did == did]


def told(frames: list[bytes], did: str) -> dict[str, Any]:
    """Which records a plain reader of the stream knows of in the end."""
    records: dict[str, Any] = {}
    for frame in frames:
        event = parse_frame(frame)
        if isinstance(event, CommitEvent) and event.did == did:
            for op in event.ops:
                if op.cid is None:
                    records.pop(op.path, None)
                else:
                    records[op.path] = op.cid
    return records


def chained(frames: list[bytes], documents: dict[str, Any]) -> set[tuple[Verdict, str]]:
    """What a strict verifier that knows nothing of healing says of a stream."""
    verifier = Verifier()
    for frame in frames:
        judgement = verifier.receive(frame, 1_790_000_000_000 + 3_600_000)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, documents[need.did])
            judgement = verifier.receive(frame, 1_790_000_000_000 + 3_600_000)
    return set(verifier.counters)


@pytest.mark.parametrize("seed", range(3))
async def test_lost_frames_are_healed_in_place(
    network: Network, alice: XrpcClient, bob: XrpcClient, lossy: FrameServer, tmp_path: Path, seed: int
) -> None:
    await play(alice, bob)
    frames = await frames_of(network)
    dids = [did_of(client) for client in (alice, bob)]
    # Any commits but each account's first one and last one: the last shows that something is missing.
    can_be_lost = [seq for did in dids for seq in commits_of(frames, did)[1:-1]]
    lost = set(random.Random(seed).sample(can_be_lost, 6))
    kept = [frame for frame in frames if peek(frame).seq not in lost]
    for frame in kept:
        lossy.publish(frame, peek(frame).seq or 0, None)
    missed: list[VerifiedRecord] = []
    async with running(lossy.url, network, tmp_path / "tap", on_records=missed.extend) as tap:
        await until(lambda: sum(map(sum_of, tap.stats()["verdicts"].values())) == len(kept))
        # A last frame that shows a gap is counted before it is healed.
        await until(lambda: tap.stats()["resync"].get("healed", 0) == tap.stats()["resync"]["gaps"])
        stats = tap.stats()
        async with Subscriber(tap.url, cursor=0) as subscriber, asyncio.timeout(30):
            served: list[bytes] = []
            while not served or peek(served[-1]).seq != stats["seq"]:
                received = await subscriber.receive()
                assert received is not None
                served.append(received)
    assert stats["resync"]["healed"] == stats["resync"]["gaps"] > 0
    assert stats["seen"] == sum(sum(reasons.values()) for reasons in stats["verdicts"].values())
    assert missed
    assert not any(record.live for record in missed)
    documents: dict[str, Any] = {}
    async with DidDirectory(network.url) as directory:
        for client in (alice, bob):
            documents[did_of(client)] = await directory.resolve(did_of(client))
            contents = read_repo_car(await client.get_repo(did_of(client)))
            assert told(served, did_of(client)) == {path: cid for path, (cid, _) in contents.records.items()}
    assert {verdict for verdict, _ in chained(served, documents)} <= {"accept", "noop", "ignore"}


async def test_without_an_archive_the_stream_goes_on_unchained(
    network: Network, alice: XrpcClient, lossy: FrameServer, tmp_path: Path
) -> None:
    await alice.put_record(NOTE, "one", {"n": 1})
    await alice.put_record(NOTE, "lost", {"n": 2})
    await alice.put_record(NOTE, "three", {"n": 3})
    await alice.put_record(NOTE, "four", {"n": 4})
    frames = await frames_of(network)
    documents: dict[str, Any] = {}
    async with DidDirectory(network.url) as directory:
        documents[did_of(alice)] = await directory.resolve(did_of(alice))
    documents[did_of(alice)]["service"][0]["serviceEndpoint"] = "http://127.0.0.1:1"  # nobody is there
    lost = commits_of(frames, did_of(alice))[-3]
    for frame in frames:
        if peek(frame).seq != lost:
            lossy.publish(frame, peek(frame).seq or 0, None)
    async with AsyncExitStack() as stack:
        spec = TapSpec(backoff=Backoff(base=0.01, cap=0.05))
        static = StaticDirectory(documents)
        tap = await stack.enter_async_context(Tap(lossy.url, static, tmp_path / "tap", cursor=0, spec=spec))
        task = asyncio.ensure_future(tap.run())
        stack.callback(task.cancel)
        await until(lambda: tap.stats()["seq"] == peek(frames[-1]).seq)
        stats = tap.stats()
    assert (stats["resync"]["gaps"], stats["resync"]["released"], stats["resync"]["failed"]) == (1, 1, 1)
    assert stats["resync"]["phases"] == {"error": 1}
    assert stats["verdicts"]["desync"] == {"chain-data": 1}


async def test_without_resync_gaps_are_passed_over(
    network: Network, alice: XrpcClient, lossy: FrameServer, tmp_path: Path
) -> None:
    for rkey in ("one", "lost", "three"):
        await alice.put_record(NOTE, rkey, {"n": 1})
    frames = await frames_of(network)
    lost = commits_of(frames, did_of(alice))[-2]
    for frame in frames:
        if peek(frame).seq != lost:
            lossy.publish(frame, peek(frame).seq or 0, None)
    async with running(lossy.url, network, tmp_path / "tap", resync=False) as tap:
        await until(lambda: tap.stats()["seq"] == peek(frames[-1]).seq)
        assert tap.stats()["verdicts"]["accept"]["unchained"] == 1


async def test_the_relay_is_asked_first_and_what_it_gives_is_proved(
    network: Network, alice: XrpcClient, bob: XrpcClient
) -> None:
    await alice.put_record(NOTE, "one", {"n": 1})
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did_of(alice))
        bobs = await directory.resolve(did_of(bob))
        assert document is not None
        assert bobs is not None
        alone = document | {"service": [document["service"][0] | {"serviceEndpoint": "http://127.0.0.1:1"}]}
        fetcher = RepoFetcher([network.url], StaticDirectory({did_of(alice): alone}))
        archive = await fetcher.fetch(did_of(alice))
        assert f"{NOTE}/one" in archive.contents.records
        her_name = {"id": f"{did_of(alice)}#atproto", "controller": did_of(alice)}
        stolen = alone | {"verificationMethod": [method | her_name for method in bobs["verificationMethod"]]}
        # A key that does not fit is looked up once more, past every cache.
        again = RepoFetcher([network.url], StaticDirectory({did_of(alice): [stolen, alone]}))
        assert (await again.fetch(did_of(alice))).state == archive.state
        with pytest.raises(FetchFailed, match=r"127\.0\.0\.1:1|proves nothing"):
            await RepoFetcher([network.url], StaticDirectory({did_of(alice): stolen})).fetch(did_of(alice))
        elsewhere = RepoFetcher(["http://192.0.2.1"], StaticDirectory({did_of(alice): alone}))
        with pytest.raises(FetchFailed, match="refused"):  # a relay elsewhere: nobody's loopback is asked
            await elsewhere.fetch(did_of(alice))


async def test_an_archive_that_comes_late_is_told_and_takes_nothing_back(
    network: Network, alice: XrpcClient, bob: XrpcClient
) -> None:
    await play(alice, bob)
    frames = await frames_of(network)
    lost = commits_of(frames, did_of(alice))[4]
    now_ms = 1_790_000_000_000 + 3_600_000
    missed: list[VerifiedRecord] = []
    async with DidDirectory(network.url) as directory:
        verifier = Verifier(policy=Policy.STRICT)
        healer = Healer(
            verifier,
            RepoFetcher([network.url], directory),
            clock=lambda: now_ms,
            rng=random.Random(1),
            hold_s=0.0,
            on_records=missed.extend,
        )
        async with healer:
            for frame in frames:
                if peek(frame).seq == lost:
                    continue
                judgement = verifier.receive(frame, now_ms)
                while judgement.needs:
                    for need in judgement.needs:
                        verifier.learn(need.did, await directory.resolve(need.did))
                    judgement = verifier.receive(frame, now_ms)
                if judgement.verdict is Verdict.DESYNC:
                    assert await healer.heal(judgement, frame, now_ms, None) == (frame,)
                else:
                    healer.follow(judgement.event)
            await until(lambda: healer.counters["healed-late"] == 1)
    assert healer.counters["released"] == 1
    assert any(record.rkey == "a3" and not record.live for record in missed)
    contents = read_repo_car(await alice.get_repo(did_of(alice)))
    assert verifier.repos()[did_of(alice)].data == contents.data


async def test_a_sync_that_says_something_else_is_healed_too(
    network: Network, alice: XrpcClient, lossy: FrameServer, tmp_path: Path
) -> None:
    await alice.put_record(NOTE, "one", {"n": 1})
    await alice.put_record(NOTE, "lost", {"n": 2})
    frames = await frames_of(network)
    last = parse_frame(frames[-1])
    assert isinstance(last, CommitEvent)
    sync = encode_sync(seq=last.seq, did=last.did, rev=last.rev, time=last.time, blocks=last.blocks)
    assert isinstance(parse_frame(sync), SyncEvent)
    for frame in [*frames[:-1], sync]:
        lossy.publish(frame, peek(frame).seq or 0, None)
    async with running(lossy.url, network, tmp_path / "tap") as tap:
        await until(lambda: tap.stats()["seq"] == last.seq)
        assert tap.stats()["verdicts"]["desync"] == {"sync-data": 1}
        async with Subscriber(tap.url, cursor=last.seq - 1) as subscriber, asyncio.timeout(30):
            healed = await subscriber.receive()
        assert healed is not None
        event = parse_frame(healed)
        assert isinstance(event, CommitEvent)
        assert [op.path for op in event.ops] == [f"{NOTE}/lost"]


Answer = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def host_that_says(*answers: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives these answers, one per request, the last one for ever; and what it was asked."""
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers, body = answers[min(len(asked), len(answers) - 1)]
        asked.append(head.split()[1].decode())
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


def at(document: dict[str, Any], url: str) -> dict[str, Any]:
    return document | {"service": [document["service"][0] | {"serviceEndpoint": url}]}


async def test_a_relay_that_points_elsewhere_is_followed_but_not_for_ever(
    network: Network, alice: XrpcClient
) -> None:
    await alice.put_record(NOTE, "one", {"n": 1})
    did = did_of(alice)
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did)
    assert document is not None
    nowhere = StaticDirectory({did: at(document, "http://127.0.0.1:1")})
    target = f"{network.url}/xrpc/com.atproto.sync.getRepo?did={did}"
    async with host_that_says((302, {"Location": target}, b"")) as (relay, asked):
        archive = await RepoFetcher([relay], nowhere).fetch(did)
        assert f"{NOTE}/one" in archive.contents.records
        assert len(asked) == 1
    async with host_that_says((302, {"Location": "/again"}, b"")) as (relay, asked):
        with pytest.raises(FetchFailed):
            await RepoFetcher([relay], nowhere).fetch(did)
        assert len(asked) == MAX_REDIRECTS + 1


async def test_its_own_pds_says_what_became_of_an_account(network: Network, alice: XrpcClient) -> None:
    did = did_of(alice)
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did)
    assert document is not None
    gone = json.dumps({"did": did, "active": False, "status": "takendown"}).encode()
    refused: Answer = (400, {}, b'{"error": "RepoTakendown"}')
    async with host_that_says(refused, (200, {}, gone)) as (pds, asked):
        with pytest.raises(RepoGone, match="takendown"):
            await RepoFetcher([pds], StaticDirectory({did: at(document, pds)})).fetch(did)
        assert [target.partition("?")[0].rpartition(".")[2] for target in asked] == [
            "getRepo",
            "getRepoStatus",
        ]
    active = json.dumps({"did": did, "active": True}).encode()
    unhelpful: list[Answer] = [
        (200, {}, active),
        (200, {}, b"[" * 9000),
        (200, {}, b"null"),
        (500, {}, gone),
    ]
    for answer in unhelpful:
        async with host_that_says(refused, answer) as (pds, _):
            with pytest.raises(FetchFailed) as caught:
                await RepoFetcher([pds], StaticDirectory({did: at(document, pds)})).fetch(did)
            assert not isinstance(caught.value, RepoGone)


async def test_a_host_that_asks_for_a_pause_gets_it(network: Network, alice: XrpcClient) -> None:
    did = did_of(alice)
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did)
    assert document is not None
    async with host_that_says((429, {"Retry-After": "7"}, b"")) as (pds, _):
        with pytest.raises(FetchFailed) as caught:
            await RepoFetcher([pds], StaticDirectory({did: at(document, pds)})).fetch(did)
        assert caught.value.retry_after_ms == 7000


async def test_a_gap_that_a_killed_tap_left_is_closed_by_the_next(
    network: Network, alice: XrpcClient, lossy: FrameServer, tmp_path: Path
) -> None:
    await alice.put_record(NOTE, "missed", {"n": 1})
    (tmp_path / "tap").mkdir()
    journal = ResyncJournal(tmp_path / "tap" / "resyncs.jsonl")
    with journal:
        journal.note(did_of(alice), Pending(failures=1, not_before_ms=1))
    told: list[VerifiedRecord] = []
    async with running(lossy.url, network, tmp_path / "tap", on_records=told.extend):
        await until(lambda: bool(told))
    assert [(record.rkey, record.live) for record in told] == [("missed", False)]
    with journal:
        assert not journal.pending
