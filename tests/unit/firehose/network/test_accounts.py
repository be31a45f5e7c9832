"""Accounts and sessions: who gets in, for how long, and what the directory says of them."""

import json
from pathlib import Path
from typing import Protocol

import pytest

from firehose.document import pds_url, signing_key
from firehose.errors import PortInUse, StoreUnavailable, XrpcError
from firehose.frames import AccountEvent, CommitEvent, Frame, IdentityEvent, SyncEvent, parse_frame
from firehose.http import HttpSession
from firehose.identity import DidDirectory
from firehose.network import Network
from firehose.network.tokens import ACCESS_TTL_MS, REFRESH_GRACE_MS, REFRESH_TTL_MS
from firehose.plc import check_log
from firehose.repo import read_repo_car
from firehose.subscribe import Subscriber
from firehose.xrpc import Session, XrpcClient


class Clock(Protocol):
    now: int

    def __call__(self) -> int: ...


async def events(network: Network, count: int, cursor: int = 0) -> list[Frame]:
    async with Subscriber(network.url, cursor=cursor) as subscriber:
        frames = [await subscriber.receive() for _ in range(count)]
    return [parse_frame(frame) for frame in frames if frame is not None]


def me(client: XrpcClient) -> Session:
    assert client.session is not None
    return client.session


async def test_a_new_account_is_announced_as_a_real_pds_does(network: Network, alice: XrpcClient) -> None:
    did = me(alice).did
    identity, account, commit, sync = await events(network, 4)
    assert isinstance(identity, IdentityEvent)
    assert (identity.seq, identity.did, identity.handle) == (1, did, "alice.test")
    assert isinstance(account, AccountEvent)
    assert (account.seq, account.active, account.status) == (2, True, None)
    assert isinstance(commit, CommitEvent)
    assert (commit.seq, commit.since, commit.prev_data, commit.ops) == (3, None, None, ())
    assert isinstance(sync, SyncEvent)
    assert (sync.seq, sync.rev) == (4, commit.rev)
    assert (await alice.latest_commit(did)).rev == commit.rev


async def test_the_directory_proves_itself(network: Network, alice: XrpcClient) -> None:
    did = me(alice).did
    async with HttpSession(network.url) as http:
        log = json.loads((await http.request("GET", f"/{did}/log")).body)
    state = check_log(did, log)
    async with DidDirectory(network.url) as directory:
        document = await directory.resolve(did)
        assert await directory.resolve("did:plc:zzzzzzzzzzzzzzzzzzzzzzzz") is None
    assert document is not None
    assert signing_key(document, state.did).did_key == state.signing_key
    assert pds_url(document, state.did) == network.url
    contents = read_repo_car(await alice.get_repo(did), key=signing_key(document, state.did))
    assert (contents.did, contents.records) == (did, {})


async def test_foreign_operations_are_checked(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    async with HttpSession(network.url) as http:
        log = json.loads((await http.request("GET", f"/{me(alice).did}/log")).body)
        same = json.dumps(log[0]).encode()
        assert (await http.request("POST", f"/{me(alice).did}", body=same)).status == 200  # nothing new
        for did, body in [
            (me(bob).did, same),
            (me(alice).did, json.dumps({**log[0], "prev": "x"}).encode()),
            (me(alice).did, b"[]"),
            (me(alice).did, b"nonsense"),
            ("did:plc:zzzzzzzzzzzzzzzzzzzzzzzz", json.dumps({**log[0], "sig": "AAAA"}).encode()),
        ]:
            assert (await http.request("POST", f"/{did}", body=body)).status == 400


async def test_sessions(network: Network, alice: XrpcClient) -> None:
    async with XrpcClient(network.url) as other:
        for identifier in ("alice.test", "ALICE.test", me(alice).did):
            assert (await other.login(identifier, "alice's password")).did == me(alice).did
        assert (await other.query("com.atproto.server.getSession"))["handle"] == "alice.test"
        with pytest.raises(XrpcError, match="AuthenticationRequired"):
            await other.login("alice.test", "another password")
        with pytest.raises(XrpcError, match="AuthenticationRequired"):
            await other.login("nobody.test", "alice's password")
        assert "Jwt" not in repr(other.session)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"handle": "alice.test", "password": "x"}, "HandleNotAvailable"),
        ({"handle": "Alice.Test", "password": "x"}, "HandleNotAvailable"),
        ({"handle": "no handle", "password": "x"}, "InvalidHandle"),
        ({"handle": 7, "password": "x"}, "InvalidHandle"),
        ({"password": "x"}, "InvalidHandle"),
        ({"handle": "carol.test"}, "InvalidRequest"),
        ({"handle": "carol.test", "password": ""}, "InvalidRequest"),
        ({"handle": "carol.test", "password": "x" * 1000}, "InvalidRequest"),
        ({"handle": "carol.test", "password": "x", "email": 3}, "InvalidRequest"),
        ({"handle": "carol.test", "password": "x", "did": "did:plc:a"}, "UnsupportedDidMethod"),
    ],
)
async def test_refused_accounts(
    network: Network, alice: XrpcClient, body: dict[str, object], name: str
) -> None:
    seq = network.stats()["seq"]
    with pytest.raises(XrpcError, match=name):
        await alice.procedure("com.atproto.server.createAccount", body, is_anonymous=True)
    assert network.stats()["seq"] == seq
    assert network.stats()["accounts"] == 1


async def test_an_expired_token_is_refreshed_once(network: Network, alice: XrpcClient, clock: Clock) -> None:
    before = me(alice)
    clock.now += ACCESS_TTL_MS
    await alice.put_record("com.example.note", "one", {"text": "hi"})
    assert me(alice).access_jwt != before.access_jwt
    assert network.stats()["calls"]["com.atproto.server.refreshSession"] == 1
    clock.now += REFRESH_TTL_MS
    with pytest.raises(XrpcError, match="ExpiredToken"):
        await alice.put_record("com.example.note", "one", {"text": "ho"})
    assert network.stats()["calls"]["com.atproto.server.refreshSession"] == 2  # no loop


async def test_a_used_refresh_token_works_for_a_short_while(alice: XrpcClient, clock: Clock) -> None:
    first = me(alice)
    await alice.refresh()
    alice.session = first  # its answer was lost
    await alice.refresh()
    alice.session = first
    clock.now += REFRESH_GRACE_MS
    with pytest.raises(XrpcError, match="ExpiredToken"):
        await alice.refresh()


async def test_a_deleted_session_is_over(network: Network, alice: XrpcClient) -> None:
    session = me(alice)
    async with HttpSession(network.url) as http:
        answer = await http.request(
            "POST",
            "/xrpc/com.atproto.server.deleteSession",
            headers={"Authorization": f"Bearer {session.refresh_jwt}"},
        )
        assert answer.status == 200
    with pytest.raises(XrpcError, match="ExpiredToken"):
        await alice.refresh()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (None, "AuthMissing"),
        ("Basic YTpi", "InvalidToken"),
        ("Bearer", "InvalidToken"),
        ("Bearer nonsense", "InvalidToken"),
        ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.", "InvalidToken"),  # alg "none"
    ],
)
async def test_bad_tokens(network: Network, header: str | None, name: str) -> None:
    async with HttpSession(network.url) as http:
        answer = await http.request(
            "POST",
            "/xrpc/com.atproto.repo.putRecord",
            headers={} if header is None else {"Authorization": header},
            body=b"{}",
        )
    assert json.loads(answer.body)["error"] == name


async def test_a_refresh_token_writes_nothing(alice: XrpcClient) -> None:
    session = me(alice)
    alice.session = Session(
        did=session.did,
        handle=session.handle,
        access_jwt=session.refresh_jwt,
        refresh_jwt=session.access_jwt,
    )
    with pytest.raises(XrpcError, match="InvalidToken"):
        await alice.put_record("com.example.note", "one", {})


async def test_leaving_and_coming_back(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    did = me(alice).did
    await alice.put_record("com.example.note", "one", {"text": "hi"})
    seq = network.stats()["seq"]
    await alice.procedure("com.atproto.server.deactivateAccount", {})
    with pytest.raises(XrpcError, match="Forbidden"):
        await alice.put_record("com.example.note", "two", {})
    for call in (bob.get_repo(did), bob.latest_commit(did), bob.get_record(did, "com.example.note", "one")):
        with pytest.raises(XrpcError, match="RepoDeactivated"):
            await call
    status = await bob.query("com.atproto.sync.getRepoStatus", did=did)
    assert status == {"did": did, "active": False, "status": "deactivated"}
    await alice.procedure("com.atproto.server.activateAccount")
    await alice.procedure("com.atproto.server.activateAccount")  # said twice, done once
    gone, back, identity, sync = await events(network, 4, seq)
    assert isinstance(gone, AccountEvent)
    assert (gone.active, gone.status) == (False, "deactivated")
    assert isinstance(back, AccountEvent)
    assert back.active
    assert isinstance(identity, IdentityEvent)
    assert isinstance(sync, SyncEvent)
    assert network.stats()["seq"] == seq + 4


async def test_a_new_handle(network: Network, alice: XrpcClient, bob: XrpcClient) -> None:
    did = me(alice).did
    with pytest.raises(XrpcError, match="HandleNotAvailable"):
        await alice.procedure("com.atproto.identity.updateHandle", {"handle": "bob.test"})
    await alice.procedure("com.atproto.identity.updateHandle", {"handle": "alice2.test"})
    assert await bob.resolve_handle("alice2.test") == did
    assert await bob.resolve_handle("alice.test") is None
    async with HttpSession(network.url) as http:
        log = json.loads((await http.request("GET", f"/{did}/log")).body)
    assert check_log(did, log).handle == "alice2.test"
    assert len(log) == 2


async def test_the_network_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with Network(tmp_path) as network, XrpcClient(network.url) as client:
        session = await client.create_account("alice.test", "pw")
        await client.put_record("com.example.note", "one", {"text": "hi"})
        head, old_url, old_seq = await client.latest_commit(session.did), network.url, network.stats()["seq"]
        old_frames = await events(network, old_seq)
    async with Network(tmp_path) as network, XrpcClient(network.url, session=session) as client:
        assert network.url != old_url
        assert await client.latest_commit(session.did) == head
        await client.put_record("com.example.note", "two", {"text": "still me"})  # the old token works
        frames = await events(network, network.stats()["seq"])
        assert frames[:old_seq] == old_frames
        moved, commit = frames[old_seq:]
        assert isinstance(moved, IdentityEvent)  # the document follows to the new port
        assert isinstance(commit, CommitEvent)
        assert commit.since == head.rev
        async with DidDirectory(network.url) as directory:
            document = await directory.resolve(session.did)
        assert document is not None
        assert pds_url(document, commit.repo) == network.url
        contents = read_repo_car(await client.get_repo(session.did), key=signing_key(document, commit.repo))
        assert sorted(contents.records) == ["com.example.note/one", "com.example.note/two"]


async def test_one_process_at_a_time(network: Network, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="has it open"):
        await Network(tmp_path / "network").__aenter__()
    with pytest.raises(PortInUse, match=str(network.port)):
        await Network(tmp_path / "other", port=network.port).__aenter__()
    assert not (tmp_path / "other").exists()  # nothing half done


@pytest.mark.parametrize("content", [b"not a database at all, and long enough to be read as one" * 40])
async def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "network.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"network\.db"):
        await Network(path).__aenter__()
    assert path.read_bytes() == content
