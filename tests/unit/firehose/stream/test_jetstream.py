"""Jetstream: its documented JSON, from a server of our own; nothing of it is ever verified."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection

from firehose.cid import Cid
from firehose.drisl import encode
from firehose.errors import FrameInvalid
from firehose.frames import Action
from firehose.jetstream import Jetstream, Proof, Told, ToldAccount, ToldIdentity, ToldRecord, parse_event
from firehose.subscribe import Backoff

Upstream = Callable[[Callable[[ServerConnection], Awaitable[None]]], Any]
DID = "did:plc:eygmaihciaxprqvxpfvl6flk"
RECORD = {"$type": "app.bsky.feed.like", "createdAt": "2024-09-09T19:46:02.102Z", "n": 1}
CID = str(Cid.for_dag_cbor(encode(RECORD)))


def commit(time_us: int, operation: str = "create", **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "rev": "3l3qo2vutsw2b",
        "operation": operation,
        "collection": "app.bsky.feed.like",
        "rkey": "3l3qo2vuowo2b",
    }
    if operation != "delete":
        told |= {"record": RECORD, "cid": CID}
    return {"did": DID, "time_us": time_us, "kind": "commit", "commit": told | changes}


def identity(time_us: int) -> dict[str, Any]:
    part = {"did": DID, "handle": "alice.test", "seq": 1409752997, "time": "2024-09-05T06:11:04.870Z"}
    return {"did": DID, "time_us": time_us, "kind": "identity", "identity": part}


def account(time_us: int, **changes: Any) -> dict[str, Any]:
    part = {"active": True, "did": DID, "seq": 1409753013, "time": "2024-09-05T06:11:04.870Z"} | changes
    return {"did": DID, "time_us": time_us, "kind": "account", "account": part}


@asynccontextmanager
async def jetstream(
    upstream: Upstream, events: list[Any]
) -> AsyncIterator[tuple[str, list[dict[str, list[str]]]]]:
    """A server that keeps these events, sends those from `cursor` on, and closes after every third."""
    asked: list[dict[str, list[str]]] = []

    async def script(connection: ServerConnection) -> None:
        assert connection.request is not None
        parts = urlsplit(connection.request.path)
        assert parts.path == "/subscribe"
        asked.append(parse_qs(parts.query))
        cursor = int(asked[-1].get("cursor", ["0"])[0])
        wanted = asked[-1].get("wantedCollections")
        kept = [event for event in events if not isinstance(event, dict) or event.get("time_us", 0) >= cursor]
        for event in kept[:3]:
            if wanted is None or not isinstance(event, dict) or event["commit"]["collection"] in wanted:
                await connection.send(event if isinstance(event, str) else json.dumps(event))
        if len(kept) <= 3:
            await connection.wait_closed()

    async with upstream(script) as url:
        yield url, asked


async def take(source: Jetstream, count: int) -> list[Told]:
    events: list[Told] = []
    async with asyncio.timeout(30):
        async for event in source.events():
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_each_kind_of_event_once_over_every_break_and_never_verified(
    upstream: Upstream, fast: Backoff
) -> None:
    told = [
        commit(1_725_911_162_329_308),
        identity(1_725_911_162_329_309),
        account(1_725_911_162_329_310, active=False, status="takendown"),
        commit(1_725_911_162_329_311, "update"),
        {"did": DID, "time_us": 1_725_911_162_329_312, "kind": "weather"},
        commit(1_725_911_162_329_313, "delete"),
    ]
    async with jetstream(upstream, told) as (url, asked), Jetstream(url, cursor=0, backoff=fast) as source:
        events = await take(source, 5)
        assert source.counters["unknown-kind"] == 1
    assert [type(event) for event in events] == [
        ToldRecord,
        ToldIdentity,
        ToldAccount,
        ToldRecord,
        ToldRecord,
    ]
    assert {event.proof for event in events} == {Proof.UNVERIFIED}
    records = [event for event in events if isinstance(event, ToldRecord)]
    assert [record.action for record in records] == [Action.CREATE, Action.UPDATE, Action.DELETE]
    assert records[0].record == RECORD
    assert records[0].uri == f"at://{DID}/app.bsky.feed.like/3l3qo2vuowo2b"
    assert records[2].record is None
    assert isinstance(events[2], ToldAccount)
    assert (events[2].active, events[2].status) == (False, "takendown")
    assert len(asked) >= 2
    assert int(asked[1]["cursor"][0]) == 1_725_911_162_329_310


async def test_filters_go_to_the_server(upstream: Upstream, fast: Backoff) -> None:
    told = [commit(5), commit(6, collection="com.example.other")]
    async with (
        jetstream(upstream, told) as (url, asked),
        Jetstream(url, cursor=0, dids=[DID], collections=["com.example.other"], backoff=fast) as source,
    ):
        (event,) = await take(source, 1)
    assert isinstance(event, ToldRecord)
    assert event.collection == "com.example.other"
    assert asked[0]["wantedDids"] == [DID]


async def test_what_is_malformed_is_counted_and_the_stream_goes_on(upstream: Upstream, fast: Backoff) -> None:
    told: list[Any] = [commit(5, rkey="/"), commit(6, cid="nonsense"), commit(7)]
    async with jetstream(upstream, told) as (url, _), Jetstream(url, cursor=0, backoff=fast) as source:
        (event,) = await take(source, 1)
        assert source.counters["invalid jetstream-rkey"] == source.counters["invalid jetstream-record"] == 1
    assert event.time_us == 7


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (commit(5, operation="weave"), "jetstream-operation"),
        (commit(5, record={"f": 1.5}), "jetstream-record"),
        (commit(5, record=None), "jetstream-record"),
        (commit(5, rev="now"), "jetstream-rev"),
        (commit(5, collection="x"), "jetstream-collection"),
        (commit(5) | {"did": "alice"}, "jetstream-did"),
        (commit(5) | {"commit": []}, "jetstream-commit"),
        (commit(0), "jetstream-time"),
        (commit(5) | {"time_us": True}, "jetstream-time"),
        (account(5, active="yes"), "jetstream-account"),
        ([], "jetstream-json"),
    ],
)
def test_a_bad_event_has_a_reason(event: Any, reason: str) -> None:
    with pytest.raises(FrameInvalid) as caught:
        parse_event(json.dumps(event).encode())
    assert caught.value.reason == reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(
    noise=JSON | st.just("[" * 100_000), where=st.sampled_from(["did", "time_us", "kind", "commit", "record"])
)
def test_noise_is_an_event_or_refused(noise: Any, where: str) -> None:
    told = commit(5)
    if where == "record":
        told["commit"]["record"] = noise
    else:
        told[where] = noise
    for raw in (json.dumps(told).encode(), str(noise).encode("utf-8", "replace"), b"[" * 100_000):
        try:
            parse_event(raw)
        except FrameInvalid:
            continue
