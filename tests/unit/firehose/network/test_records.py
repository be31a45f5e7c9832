"""Records: what a write changes, what it emits, and whose it must be."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firehose.document import signing_key
from firehose.errors import XrpcError
from firehose.frames import Action, CommitEvent, parse_frame
from firehose.http import HttpSession
from firehose.identity import DidDirectory
from firehose.network import Network, repos
from firehose.repo import read_repo_car
from firehose.subscribe import Subscriber
from firehose.syntax import parse_did
from firehose.verify import Verdict, Verifier
from firehose.xrpc import Session, XrpcClient

NOTE = "com.example.note"
PARTS: dict[str, dict[str, Any]] = {
    "putRecord": {"rkey": "one", "record": {}},
    "createRecord": {"record": {}},
    "deleteRecord": {"rkey": "one"},
    "applyWrites": {"writes": []},
}
LIST = "com.atproto.repo.listRecords?repo=alice.test&collection=a.b.c"


def me(client: XrpcClient) -> Session:
    assert client.session is not None
    return client.session


@asynccontextmanager
async def commits(network: Network) -> AsyncIterator[list[CommitEvent]]:
    """Inside: do something. Afterwards: the commits that it emitted."""
    found: list[CommitEvent] = []
    before = network.stats()["seq"]
    yield found
    async with Subscriber(network.url, cursor=before) as subscriber:
        while (subscriber.cursor or 0) < network.stats()["seq"]:
            frame = await subscriber.receive()
            assert frame is not None
            event = parse_frame(frame)
            assert isinstance(event, CommitEvent)
            found.append(event)


async def test_put_creates_then_updates_then_changes_nothing(network: Network, alice: XrpcClient) -> None:
    async with commits(network) as emitted:
        first = await alice.put_record(NOTE, "one", {"text": "hi"})
        second = await alice.put_record(NOTE, "one", {"text": "ho"})
        again = await alice.put_record(NOTE, "one", {"text": "ho"})
    assert first.uri == f"at://{me(alice).did}/{NOTE}/one"
    assert again == second != first
    assert [(op.action, str(op.cid)) for event in emitted for op in event.ops] == [
        (Action.CREATE, first.cid),
        (Action.UPDATE, second.cid),
    ]
    assert emitted[1].since == emitted[0].rev
    found = await alice.get_record(me(alice).did, NOTE, "one")
    assert found == {"uri": first.uri, "cid": second.cid, "value": {"$type": NOTE, "text": "ho"}}


async def test_a_stranger_writes_nothing(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    async with commits(network) as emitted:
        for repo in (me(bob).did, me(bob).handle, "did:plc:zzzzzzzzzzzzzzzzzzzzzzzz", 7, None):
            for method, fields in PARTS.items():
                body: dict[str, Any] = {"repo": repo, "collection": NOTE, **fields}
                with pytest.raises(XrpcError) as refused:
                    await alice.procedure(f"com.atproto.repo.{method}", body)
                assert refused.value.status == 401
    assert emitted == []


async def test_swaps(alice: XrpcClient) -> None:
    first = await alice.put_record(NOTE, "one", {"n": 1})
    with pytest.raises(XrpcError, match="InvalidSwap"):
        await alice.put_record(NOTE, "two", {"n": 1}, swap_record=first.cid)
    second = await alice.put_record(NOTE, "one", {"n": 2}, swap_record=first.cid)
    with pytest.raises(XrpcError, match="InvalidSwap"):
        await alice.put_record(NOTE, "one", {"n": 3}, swap_record=first.cid)
    with pytest.raises(XrpcError, match="InvalidSwap"):
        await alice.delete_record(NOTE, "one", swap_record=first.cid)
    body: dict[str, Any] = {"repo": me(alice).did, "collection": NOTE, "rkey": "one", "record": {}}
    body["swapRecord"] = None
    with pytest.raises(XrpcError, match="InvalidSwap"):  # null: only if there is none
        await alice.procedure("com.atproto.repo.putRecord", body)
    write = {"$type": "com.atproto.repo.applyWrites#delete", "collection": NOTE, "rkey": "one"}
    with pytest.raises(XrpcError, match="InvalidSwap"):
        await alice.apply_writes([write], swap_commit=second.cid)
    head = await alice.latest_commit(me(alice).did)
    await alice.apply_writes([write], swap_commit=head.cid)
    assert await alice.get_record(me(alice).did, NOTE, "one") is None


async def test_create_and_delete(network: Network, alice: XrpcClient) -> None:
    async with commits(network) as emitted:
        one = await alice.create_record(NOTE, {"n": 1})
        two = await alice.create_record(NOTE, {"n": 2})
        assert one.uri < two.uri  # keys are TIDs of one clock
        await alice.create_record(NOTE, {"n": 3}, rkey="self")
        with pytest.raises(XrpcError, match="InvalidRequest"):
            await alice.create_record(NOTE, {"n": 3}, rkey="self")
        await alice.delete_record(NOTE, "self")
        await alice.delete_record(NOTE, "self")  # gone already
    assert [op.action for event in emitted for op in event.ops] == [Action.CREATE] * 3 + [Action.DELETE]


async def test_apply_writes_is_one_commit_or_none(network: Network, alice: XrpcClient) -> None:
    def write(kind: str, rkey: str, value: dict[str, Any] | None = None) -> dict[str, Any]:
        body = {"$type": f"com.atproto.repo.applyWrites#{kind}", "collection": NOTE, "rkey": rkey}
        return body if value is None else {**body, "value": value}

    async with commits(network) as emitted:
        results = await alice.apply_writes([write("create", f"k{n}", {"n": n}) for n in range(200)])
        assert results[7]["$type"] == "com.atproto.repo.applyWrites#createResult"
        await alice.apply_writes([write("update", "k1", {"n": -1}), write("delete", "k2")])
        for bad in (
            [write("update", "k3", {"n": 0}), write("update", "k2", {"n": 0})],  # k2 is not there
            [write("create", "new", {}), write("create", "k1", {})],
            [write("delete", "k5"), write("delete", "k5")],
            [write("rename", "k5")],
            [write("create", f"x{n}", {}) for n in range(201)],
            [7],
            [],
        ):
            with pytest.raises(XrpcError, match="InvalidRequest"):
                await alice.apply_writes(bad)  # type: ignore[arg-type]
    assert [len(event.ops) for event in emitted] == [200, 2]
    records, cursor = await alice.list_records(me(alice).did, NOTE, limit=100)
    rest, end = await alice.list_records(me(alice).did, NOTE, limit=100, cursor=cursor)
    assert (len(records), len(rest), end) == (100, 99, None)
    keys = [record["uri"].rpartition("/")[2] for record in records + rest]
    assert keys == sorted(keys, reverse=True)
    upwards, _ = await alice.list_records(me(alice).did, NOTE, limit=3, reverse=True)
    assert [record["value"]["n"] for record in upwards] == [0, -1, 10]


@pytest.mark.parametrize(
    "body",
    [
        {"collection": "not an nsid", "rkey": "one", "record": {}},
        {"collection": NOTE, "rkey": "a/b", "record": {}},
        {"collection": NOTE, "rkey": "..", "record": {}},
        {"collection": NOTE, "record": {}},
        {"collection": NOTE, "rkey": "one"},
        {"collection": NOTE, "rkey": "one", "record": []},
        {"collection": NOTE, "rkey": "one", "record": {"$type": "com.example.other"}},
        {"collection": NOTE, "rkey": "one", "record": {"x": 1.5}},
        {"collection": NOTE, "rkey": "one", "record": {"x": 1 << 70}},
        {"collection": NOTE, "rkey": "one", "record": {"x": {"$link": "nonsense"}}},
        {"collection": NOTE, "rkey": "one", "record": {"x": {"$bytes": 5}}},
        {"collection": NOTE, "rkey": "one", "record": {"x": "y" * 1_000_001}},
        {"collection": NOTE, "rkey": "one", "record": {}, "swapCommit": 7},
    ],
)
async def test_what_cannot_be_stored_is_refused(
    network: Network, alice: XrpcClient, body: dict[str, Any]
) -> None:
    async with commits(network) as emitted:
        with pytest.raises(XrpcError, match="InvalidRequest"):
            await alice.procedure("com.atproto.repo.putRecord", {"repo": me(alice).did, **body})
    assert emitted == []


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "name"),
    [
        ("POST", "com.atproto.repo.putRecord", b"nonsense", 400, "InvalidRequest"),
        ("POST", "com.atproto.repo.putRecord", b"[]", 400, "InvalidRequest"),
        ("POST", "com.atproto.repo.putRecord", b"[" * 200_000, 400, "InvalidRequest"),
        ("POST", "com.atproto.repo.putRecord", b" " * 5_000_000, 413, "PayloadTooLarge"),
        ("GET", "com.atproto.repo.putRecord", None, 400, "InvalidRequest"),
        ("POST", "com.atproto.repo.getRecord", b"{}", 400, "InvalidRequest"),
        ("GET", "com.atproto.repo.getRecord", None, 400, "InvalidRequest"),
        ("GET", "com.atproto.repo.getRecord?repo=a.test&collection=a.b.c&rkey=d", None, 400, "RepoNotFound"),
        ("GET", LIST + "&limit=0", None, 400, "InvalidRequest"),
        ("GET", LIST + "&limit=x", None, 400, "InvalidRequest"),
        ("GET", "com.atproto.sync.getRepo?did=did:plc:nobody", None, 400, "RepoNotFound"),
        ("GET", "com.atproto.sync.getBlob?did=did:plc:nobody&cid=x", None, 400, "RepoNotFound"),
        ("GET", "com.example.unheard.of", None, 501, "MethodNotImplemented"),
    ],
)
async def test_bad_calls_have_the_protocols_errors(
    network: Network, alice: XrpcClient, method: str, target: str, body: bytes | None, status: int, name: str
) -> None:
    headers = {"Authorization": f"Bearer {me(alice).access_jwt}"}
    async with HttpSession(network.url) as http:
        answer = await http.request(method, f"/xrpc/{target}", body=body, headers=headers)
    assert (answer.status, json.loads(answer.body)["error"]) == (status, name)


async def test_blobs(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    content = bytes(range(256)) * 20
    blob = await alice.upload_blob(content, "image/png")
    assert (blob["mimeType"], blob["size"]) == ("image/png", len(content))
    assert await alice.upload_blob(content, "image/png") == blob
    async with commits(network) as emitted:
        await alice.put_record(NOTE, "one", {"picture": blob})
        with pytest.raises(XrpcError, match="BlobNotFound"):  # it is alice's, not bob's
            await bob.put_record(NOTE, "one", {"picture": blob})
        with pytest.raises(XrpcError, match="InvalidRequest"):
            await alice.upload_blob(b"")
        with pytest.raises(XrpcError, match="PayloadTooLarge"):
            await alice.upload_blob(b"x" * (5 * 1024 * 1024 + 1))
    assert [str(cid) for cid in emitted[0].blobs] == [blob["ref"]["$link"]]
    fetched = await bob.get_blob(me(alice).did, blob["ref"]["$link"])
    assert hashlib.sha256(fetched).digest() == hashlib.sha256(content).digest()
    with pytest.raises(XrpcError, match="BlobNotFound"):
        await bob.get_blob(me(bob).did, blob["ref"]["$link"])


async def test_listing_repos(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    answer = await alice.query("com.atproto.sync.listRepos", limit=1)
    rest = await alice.query("com.atproto.sync.listRepos", cursor=answer["cursor"])
    repos = answer["repos"] + rest["repos"]
    assert {repo["did"] for repo in repos} == {me(alice).did, me(bob).did}
    for repo in repos:
        head = await alice.latest_commit(repo["did"])
        assert (repo["head"], repo["rev"], repo["active"]) == (head.cid, head.rev, True)
    described = await alice.query("com.atproto.repo.describeRepo", repo="bob.test")
    assert (described["did"], described["collections"]) == (me(bob).did, [])


async def test_schemas_are_checked_where_they_are_known(tmp_path: Path) -> None:
    def validate(collection: str, record: dict[str, Any]) -> None:
        if collection == NOTE and not isinstance(record.get("text"), str):
            raise ValueError("text: expected a string")

    async with Network(tmp_path, validate=validate) as network, XrpcClient(network.url) as client:
        await client.create_account("alice.test", "pw")
        with pytest.raises(XrpcError, match="text: expected a string"):
            await client.put_record(NOTE, "one", {"text": 5})
        await client.put_record(NOTE, "one", {"text": 5}, validate=False)  # the protocol lets a writer say so
        await client.put_record(NOTE, "two", {"text": "fine"})
        await client.put_record("com.example.other", "one", {"text": 5})


KEYS = st.sampled_from([f"k{n}" for n in range(12)])
WRITES = st.lists(st.tuples(st.sampled_from(["put", "delete"]), KEYS, st.integers(0, 3)), max_size=25)


async def test_what_commits_leave_behind_is_deleted(
    network: Network, alice: XrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repos, "SWEEP_COMMITS", 40)
    assert network._pds is not None
    for number in range(200):
        await alice.put_record(NOTE, f"k{number % 10}", {"n": number})
    row = network._pds.store.row("SELECT count(*) FROM blocks")
    assert row is not None
    assert row[0] < 40 * 5  # 200 commits have made more than 800
    assert len(read_repo_car(await alice.get_repo(me(alice).did)).records) == 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=WRITES)
async def test_any_history_verifies_and_exports(
    network: Network, alice: XrpcClient, monkeypatch: pytest.MonkeyPatch, writes: list[tuple[str, str, int]]
) -> None:
    """Model: a dict. Every frame is accepted by the verifier, and the exported repo equals the model.

    Every commit is followed by a sweep: it must never take a block that is still needed.
    """
    monkeypatch.setattr(repos, "SWEEP_COMMITS", 1)
    did, before = me(alice).did, network.stats()["seq"]
    records, _ = await alice.list_records(did, NOTE, limit=100)
    model = {record["uri"].rpartition("/")[2]: record["value"]["n"] for record in records}
    for action, key, number in writes:
        if action == "put":
            await alice.put_record(NOTE, key, {"n": number})
            model[key] = number
        else:
            await alice.delete_record(NOTE, key)
            model.pop(key, None)
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did)
    assert document is not None
    verifier = Verifier()
    async with Subscriber(network.url, cursor=before) as subscriber:
        while (subscriber.cursor or 0) < network.stats()["seq"]:
            frame = await subscriber.receive()
            assert frame is not None
            judgement = verifier.receive(frame, 1_790_000_999_000)
            if judgement.needs:
                verifier.learn(parse_did(did), document)
                judgement = verifier.receive(frame, 1_790_000_999_000)
            assert judgement.verdict is Verdict.ACCEPT
    contents = read_repo_car(await alice.get_repo(did), key=signing_key(document, parse_did(did)))
    assert {path.rpartition("/")[2]: value["n"] for path, (_, value) in contents.records.items()} == model
