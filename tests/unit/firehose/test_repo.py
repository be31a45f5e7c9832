"""Our own repositories: every commit is one that a stranger can verify and undo."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.car import read_car, write_car
from firehose.cid import Cid
from firehose.commit import parse_commit, sign_commit
from firehose.drisl import decode, encode
from firehose.errors import MissingBlock, MstInvalid, RepoInvalid, SyntaxInvalid, WriteRefused
from firehose.frames import MAX_COMMIT_OPS, Action, CommitEvent, parse_frame
from firehose.keys import Curve, SigningKey
from firehose.mst import Mst
from firehose.repo import MAX_RECORD_BYTES, CommitResult, Repo, Write, read_repo_car
from firehose.syntax import Did, Nsid, RecordKey, Tid
from firehose.tid import TidClock
from firehose.verify.inversion import check_inversion

NOTE = Nsid("com.example.note")
DID = Did("did:plc:abc")
KEY = SigningKey.from_bytes(b"\x05" * 32)


def write(action: Action, rkey: str, text: Any = "hello", collection: str = NOTE) -> Write:
    record = None if action is Action.DELETE else {"$type": collection, "text": text}
    return Write(action=action, collection=Nsid(collection), rkey=RecordKey(rkey), record=record)


def check_result(result: CommitResult, before: Repo | None, key: SigningKey = KEY) -> None:
    """What any verifier would ask of a commit frame's blocks."""
    car = read_car(result.car)
    assert car.roots == (result.commit,)
    commit = parse_commit(car.blocks[result.commit])
    assert commit.is_signed_by(key.verifying_key)
    assert (commit.did, commit.rev, commit.data) == (DID, result.rev, result.data)
    assert result.since == (None if before is None else before.rev)
    assert result.prev_data == (None if before is None else before.data)
    check_inversion(Mst.load(result.data, car.blocks.get), result.ops, result.prev_data or Mst.empty().root)
    for op in result.ops:
        if op.cid is not None:
            assert result.records[op.path] == (op.cid, decode(car.blocks[op.cid]))


RKEYS = [f"r{number}" for number in range(25)]


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(RKEYS), st.booleans(), st.integers(0, 3)),
            max_size=8,
            unique_by=lambda t: t[0],
        ),
        max_size=8,
    ),
    st.sampled_from(list(Curve)),
)
def test_any_history_is_verifiable_commit_by_commit(
    history: list[list[tuple[str, bool, int]]], curve: Curve
) -> None:
    key = SigningKey.from_bytes(b"\x09" * 32, curve)
    store: dict[Cid, bytes] = {}
    model: dict[str, Any] = {}
    tids = TidClock(lambda: 1_000_000)
    first = Repo.create(DID, key, tids, store.get)
    check_result(first, None, key)
    store.update(first.new_blocks)
    repo = first.repo
    for batch in history:
        writes = []
        for rkey, removes, text in batch:
            path = f"{NOTE}/{rkey}"
            if path not in model:
                writes.append(write(Action.CREATE, rkey, text))
                model[path] = text
            elif removes:
                writes.append(write(Action.DELETE, rkey))
                del model[path]
            else:
                writes.append(write(Action.UPDATE, rkey, text))
                model[path] = text
        result = repo.apply(writes)
        check_result(result, repo, key)
        store.update(result.new_blocks)
        assert result.commit is not None
        repo = Repo.load(result.commit, store.get, key=key, tids=tids)
    contents = read_repo_car(repo.car(), key=key.verifying_key)
    assert {path: record["text"] for path, (_, record) in contents.records.items()} == model
    assert (contents.did, contents.rev, contents.data, contents.commit) == (
        DID,
        repo.rev,
        repo.data,
        repo.commit,
    )


def test_revs_grow_also_when_the_clock_stands_still(author: Any) -> None:
    revs = [author.repo.rev]
    for number in range(20):
        revs.append(author.save(author.repo.apply([write(Action.CREATE, f"a{number}")])).rev)
    assert revs == sorted(set(revs))


def test_a_loaded_repository_goes_past_its_last_rev(author: Any) -> None:
    slow = TidClock(lambda: 1)
    repo = Repo.load(author.repo.commit, author.blocks.get, key=author.key, tids=slow)
    assert repo.apply([]).rev > author.repo.rev


def test_a_commit_that_was_not_saved_leaves_nothing_behind(author: Any) -> None:
    lost = author.repo.apply([write(Action.CREATE, "a"), write(Action.CREATE, "b")])
    again = author.save(author.repo.apply([write(Action.CREATE, "a"), write(Action.CREATE, "c")]))
    assert lost.prev_data == again.prev_data == author.first.data
    assert dict(author.repo.items()).keys() == {f"{NOTE}/a", f"{NOTE}/c"}
    assert Repo.load(again.commit, author.blocks.get, key=author.key, tids=author.tids).record(f"{NOTE}/c")


def test_reading_back(author: Any) -> None:
    author.save(author.repo.apply([write(Action.CREATE, "a", "one")]))
    assert author.repo.record(f"{NOTE}/a") == {"$type": NOTE, "text": "one"}
    assert author.repo.record(f"{NOTE}/b") is None
    assert author.repo.get(f"{NOTE}/a") == Cid.for_dag_cbor(encode({"$type": NOTE, "text": "one"}))


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param([write(Action.CREATE, "a")], id="create-over-a-record"),
        pytest.param([write(Action.UPDATE, "b")], id="update-of-none"),
        pytest.param([write(Action.DELETE, "b")], id="delete-of-none"),
        pytest.param([write(Action.CREATE, "b"), write(Action.CREATE, "b")], id="twice-the-same-path"),
        pytest.param([write(Action.CREATE, "b"), write(Action.UPDATE, "b")], id="create-then-update"),
        pytest.param([write(Action.DELETE, "a"), write(Action.CREATE, "a")], id="delete-then-create"),
        pytest.param([write(Action.CREATE, "b", 1.5)], id="a-float"),
        pytest.param([write(Action.CREATE, "b", object())], id="an-object"),
        pytest.param([write(Action.CREATE, "b", "x" * MAX_RECORD_BYTES)], id="too-large"),
        pytest.param(
            [Write(action=Action.CREATE, collection=NOTE, rkey=RecordKey("b"))], id="create-without-a-record"
        ),
        pytest.param(
            [write(Action.CREATE, f"b{number}") for number in range(MAX_COMMIT_OPS + 1)], id="too-many"
        ),
    ],
)
def test_a_write_that_does_not_fit_is_refused_with_all_of_its_batch(author: Any, writes: list[Write]) -> None:
    author.save(author.repo.apply([write(Action.CREATE, "a")]))
    before = author.repo.data
    with pytest.raises(WriteRefused):
        author.repo.apply([write(Action.CREATE, "fine"), *writes])
    assert author.repo.data == before
    assert author.repo.get(f"{NOTE}/fine") is None


@pytest.mark.parametrize(("collection", "rkey"), [("note", "a"), (NOTE, "../a"), (NOTE, "a/b"), (NOTE, "")])
def test_a_path_that_is_none_is_refused(author: Any, collection: str, rkey: str) -> None:
    with pytest.raises(SyntaxInvalid):
        author.repo.apply([write(Action.CREATE, rkey, collection=collection)])


def test_a_full_commit_of_200_ops_fits_its_frame(author: Any) -> None:
    result = author.save(author.repo.apply([write(Action.CREATE, f"k{n}", n) for n in range(MAX_COMMIT_OPS)]))
    assert len(read_car(result.car).blocks) > MAX_COMMIT_OPS
    gone = author.save(author.repo.apply([write(Action.DELETE, f"k{n}") for n in range(MAX_COMMIT_OPS)]))
    assert gone.data == author.first.data
    check_inversion(Mst.load(gone.data, read_car(gone.car).blocks.get), gone.ops, result.data)


def test_a_commit_too_large_for_its_frame_is_refused(author: Any) -> None:
    writes = [write(Action.CREATE, f"k{n}", str(n) * 900_000) for n in range(3)]
    author.repo.apply(writes[:2])
    with pytest.raises(WriteRefused, match="too large"):
        author.repo.apply(writes)


# Reading the repositories of others.


def test_the_recorded_repositories_are_what_the_stream_said(data: Any, pds_frames: Any) -> None:
    last = {
        event.repo: event
        for event in (parse_frame(frame) for _, frame in pds_frames)
        if isinstance(event, CommitEvent)
    }
    for name in ("alice", "bob", "carol", "dave", "erin", "frank"):
        contents = read_repo_car((data / f"pds-trace.{name}.car").read_bytes())
        event = last[contents.did]
        assert (contents.commit, contents.rev) == (event.commit, event.rev)
        assert parse_commit(read_car(event.blocks).blocks[event.commit]).data == contents.data


def signed(tree: Mst, blocks: dict[Cid, bytes], **changes: Any) -> bytes:
    _, block = sign_commit(KEY, did=DID, rev=Tid("3jzfcijpj2z2a"), data=tree.root)
    if changes:
        block = encode(decode(block) | changes)
    root = Cid.for_dag_cbor(block)
    return write_car([root], {root: block, **tree.all_blocks(), **blocks})


RECORD = encode({"$type": NOTE})
RECORD_CID = Cid.for_dag_cbor(RECORD)
TREE = Mst.empty().put(f"{NOTE}/a", RECORD_CID)


def test_a_repository_in_order_is_read() -> None:
    contents = read_repo_car(signed(TREE, {RECORD_CID: RECORD}), key=KEY.verifying_key)
    assert contents.records == {f"{NOTE}/a": (RECORD_CID, {"$type": NOTE})}


@pytest.mark.parametrize(
    ("archive", "error", "words"),
    [
        pytest.param(
            signed(TREE, {RECORD_CID: RECORD}, version=2), RepoInvalid, "commit-version", id="version-2"
        ),
        pytest.param(
            signed(TREE, {RECORD_CID: RECORD}, extra=1), RepoInvalid, "commit-form", id="extra-field"
        ),
        pytest.param(
            signed(TREE, {RECORD_CID: RECORD}, prev=b"x"), RepoInvalid, "commit-form", id="prev-of-bytes"
        ),
        pytest.param(signed(TREE, {RECORD_CID: RECORD}, did="abc"), RepoInvalid, "commit-form", id="no-did"),
        pytest.param(signed(TREE, {RECORD_CID: RECORD}, rev="abc"), RepoInvalid, "commit-form", id="no-rev"),
        pytest.param(
            signed(TREE, {RECORD_CID: RECORD}, rev="3jzfcijpj2z2b"), RepoInvalid, "signature", id="altered"
        ),
        pytest.param(
            signed(TREE, {RECORD_CID: RECORD}, sig=b""), RepoInvalid, "signature", id="no-signature"
        ),
        pytest.param(signed(TREE, {}), MissingBlock, "missing", id="no-record"),
        pytest.param(
            signed(Mst.empty().put("nopath", RECORD_CID), {RECORD_CID: RECORD}),
            SyntaxInvalid,
            "path",
            id="no-path",
        ),
        pytest.param(
            signed(Mst.empty().put_raw(b"\xff\xfe", RECORD_CID.bytes), {RECORD_CID: RECORD}),
            MstInvalid,
            "key-text",
            id="path-not-utf8",
        ),
        pytest.param(
            signed(Mst.empty().put(f"{NOTE}/a", TREE.root), TREE.all_blocks() | {RECORD_CID: RECORD}),
            None,
            "",
            id="a-node-as-a-record",
        ),
    ],
)
def test_a_repository_out_of_order_is_refused(
    archive: bytes, error: type[Exception] | None, words: str
) -> None:
    if error is None:  # any map is a record: what it must look like is for its lexicon to say
        assert read_repo_car(archive, key=KEY.verifying_key).records
        return
    with pytest.raises(error, match=words):
        read_repo_car(archive, key=KEY.verifying_key)


def test_errors_survive_pickling() -> None:
    for error in (RepoInvalid("a", "b"), WriteRefused("p", "r"), MissingBlock("cid"), MstInvalid("r", "c")):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)
