"""A commit that proves itself in one go: the facts are those of the long way, and so are the verdicts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose import car, commit, compiled, drisl, frames, repo, syntax
from firehose.car import write_car
from firehose.cid import Cid
from firehose.commit import sign_commit
from firehose.drisl import decode_first, encode
from firehose.frames import Action, CommitEvent, RepoOp, encode_commit, parse_frame, route
from firehose.keys import SigningKey
from firehose.mst import Mst
from firehose.syntax import Did, Tid
from firehose.trace import read_trace
from firehose.verify import FirstSight, Judgement, Policy, Verdict, Verifier
from firehose.verify.proven import prove, prove_slowly

KEY = SigningKey.from_bytes(b"\x05" * 32)
DID = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"
REV = "3kdgeujwlq32y"
NOTE = encode({"$type": "com.example.note", "text": "hello"})
DATA = Path(__file__).parents[2] / "data"
COMMIT = Cid.for_dag_cbor(NOTE)
SYNTAX = DATA / "interop/syntax"
SHORT = [entry.frame for entry in read_trace(DATA / "pds-trace.fht") if 1000 < len(entry.frame) < 3000][:40]


@pytest.fixture(scope="module", autouse=True)
def with_fast(fast: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", fast)
        yield


def lines(name: str) -> list[str]:
    texts = (SYNTAX / f"{name}.txt").read_text().splitlines()
    return [text for text in texts if text and not text.startswith("#")]


def frame_of(
    *,
    did: str = DID,
    rev: str = REV,
    since: str | None = None,
    path: str = "com.example.note/a",
    record: bytes = NOTE,
) -> bytes:
    """One create that is right in all but perhaps what is given."""
    cid = Cid.for_dag_cbor(record)
    tree = Mst.empty().put(path, cid)
    _, block = sign_commit(KEY, did=Did(did), rev=Tid(rev), data=tree.root)
    root = Cid.for_dag_cbor(block)
    return encode_commit(
        seq=7,
        repo=did,
        commit=root,
        rev=rev,
        since=since,
        time="2026-09-21T14:13:20Z",
        blocks=write_car([root], {root: block, tree.root: tree.root_block, cid: record}),
        ops=[RepoOp(action=Action.CREATE, path=path, cid=cid)],
        prev_data=Mst.empty().root,
    )


def agreed(frame: bytes) -> bool:
    """Whether there is a proof; the compiled way and its twin never contradict each other."""
    quick, slow = prove(frame), prove_slowly(frame)
    assert quick is None or quick == slow
    # Only what almost nobody writes may be left to the twin.
    assert (quick is None) == (slow is None)
    return quick is not None


def test_every_commit_of_a_real_server_proves_itself(pds_frames: list[tuple[int, bytes]]) -> None:
    proofs = 0
    for _, frame in pds_frames:
        event = parse_frame(frame)
        if not isinstance(event, CommitEvent) or event.prev_data is None:
            assert prove(frame) is None
            continue
        quick, slow = prove(frame), prove_slowly(frame)
        assert slow is not None
        # A record of 92 kB may hold more than it seems: the twin looks at it.
        assert quick == slow or (quick is None and len(frame) > drisl.DENSE_BYTES)
        proofs += quick is not None
    assert proofs > 360


@pytest.mark.parametrize("did", lines("did_syntax_valid") + lines("did_syntax_invalid"))
def test_whose_it_is(did: str) -> None:
    if did.isascii():
        frame = frame_of(did=did)
        assert agreed(frame) == did.startswith(("did:plc:", "did:web:")) or did in lines("did_syntax_invalid")
        assert compiled.fast.author(frame) in (None, did)


@pytest.mark.parametrize("rev", lines("tid_syntax_valid") + lines("tid_syntax_invalid"))
def test_its_rev(rev: str) -> None:
    assert agreed(frame_of(rev=rev)) == (rev in lines("tid_syntax_valid"))
    assert agreed(frame_of(since=rev)) == (rev in lines("tid_syntax_valid"))


NSIDS = lines("nsid_syntax_valid") + lines("nsid_syntax_invalid")
RKEYS = lines("recordkey_syntax_valid") + lines("recordkey_syntax_invalid")


@pytest.mark.parametrize(
    "path", [f"{nsid}/a" for nsid in NSIDS] + [f"com.example.note/{rkey}" for rkey in RKEYS]
)
def test_where_it_writes(path: str) -> None:
    if path.isascii() and 1 < len(path) <= 1024:
        agreed(frame_of(path=path))


@given(path=st.text("aB9.-_~:/%@ ", min_size=1, max_size=14).map(lambda text: "com.example" + text))
def test_where_else_it_writes(path: str) -> None:
    agreed(frame_of(path=path))


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | st.sampled_from([Cid.for_dag_cbor(b"a"), Cid.for_raw(b"b")])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(value=VALUES, data=st.data())
def test_its_record(value: Any, data: st.DataObject) -> None:
    record = bytearray(encode({"value": value}))
    assert agreed(frame_of(record=bytes(record)))
    for _ in range(data.draw(st.integers(1, 2))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(record[: data.draw(st.integers(1, len(record)) | st.just(len(record)))])
    if b"\x3b" not in changed:  # a negative number of 64 bits is left to the twin
        agreed(frame_of(record=changed))


@given(
    text=st.binary(max_size=12)
    | st.text(max_size=4).map(str.encode)
    | st.text("\ud7ff\ue000\U0010ffff").map(str.encode)
)
def test_its_text(text: bytes) -> None:
    assert agreed(frame_of(record=b"\xa1\x61t" + drisl.head(3, len(text)) + text)) == _is_text(text)


@pytest.mark.parametrize(
    "text", [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xc3"]
)
def test_its_text_is_none(text: bytes) -> None:
    assert not _is_text(text)
    assert not agreed(frame_of(record=b"\xa1\x61t" + drisl.head(3, len(text)) + text))


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("depth", [126, 127, 128, 2000])
def test_how_deep_its_record_is(depth: int) -> None:
    assert agreed(frame_of(record=b"\xa1\x61a" + b"\x81" * depth + b"\xf6")) is (depth < 128)


@given(data=st.data())
def test_what_its_frame_says(data: st.DataObject) -> None:
    """Fields of real frames with other values in them, in canonical form again."""
    real = data.draw(st.sampled_from(SHORT))
    header, end = decode_first(real)
    body, _ = decode_first(real, end)
    assert isinstance(header, dict)
    assert isinstance(body, dict)
    ops = body.get("ops")
    places: list[Any] = [body, *(ops if isinstance(ops, list) else [])]
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.sampled_from(places))
        field = data.draw(st.sampled_from([*place, "more"]))
        donor = data.draw(st.sampled_from(places))
        others = [value for value in donor.values() if not isinstance(value, list)]
        value = data.draw(LEAVES | st.sampled_from(others or [None]))
        if data.draw(st.booleans()):
            place[field] = value
        else:
            place.pop(field, None)
    frame = encode(header) + encode(body)
    quick, slow = prove(frame), prove_slowly(frame)
    assert quick is None or quick == slow
    author, found = compiled.fast.author(frame), route(frame)
    assert author is None or found is None or author == found[1]


@given(data=st.data())
def test_what_its_bytes_say(data: st.DataObject, pds_frames: list[tuple[int, bytes]]) -> None:
    frame = bytearray(
        data.draw(st.sampled_from([frame for _, frame in pds_frames if len(frame) < 6000][:60]))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(frame[: data.draw(st.integers(0, len(frame)) | st.just(len(frame)))])
    quick, slow = prove(changed), prove_slowly(changed)
    assert quick is None or quick == slow
    compiled.fast.author(changed)


def test_its_ops_are_each_of_another_path() -> None:
    cid = Cid.for_dag_cbor(NOTE)
    frame = frame_of()
    header, end = decode_first(frame)
    body, _ = decode_first(frame, end)
    assert isinstance(body, dict)
    ops = body["ops"]
    assert isinstance(ops, list)
    ops.append({"action": "delete", "path": "com.example.note/a", "cid": None, "prev": cid})
    assert not agreed(encode(header) + encode(body))


def test_wrong_arguments_are_refused(fast: Any) -> None:
    for function in (fast.prove, fast.author):
        with pytest.raises(TypeError):
            function("text")
    wrong: tuple[tuple[Any, ...], ...] = ((), (b"", []), (b"", (), Cid), ("", [], Cid), (b"", [], 1))
    for arguments in wrong:
        with pytest.raises(TypeError):
            fast.records(*arguments)
    wrong = ((), (RepoOp,), (RepoOp, []), (RepoOp, (1,)), (1, ()), (int, ()))
    for arguments in wrong:
        with pytest.raises((TypeError, AttributeError)):
            fast.make(*arguments)
    archive = write_car([COMMIT], {COMMIT: NOTE})
    assert fast.records(archive, [COMMIT.bytes], Cid) == [drisl.decode(NOTE)]
    for cids in ([b"short"], [None], [Cid.for_raw(b"").bytes], ["text"]):
        assert fast.records(archive, cids, Cid) is None
    assert fast.records(b"noise", [], Cid) is None
    assert fast.records(write_car([COMMIT], {COMMIT: NOTE + b"more"}), [COMMIT.bytes], Cid) is None


def test_what_is_made_is_what_its_class_makes(fast: Any) -> None:
    cid = Cid.for_raw(b"")
    expected = RepoOp(action=Action.CREATE, path="a/b", cid=cid)
    assert compiled.make(RepoOp, Action.CREATE, "a/b", cid, None) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", None)
        assert compiled.make(RepoOp, Action.CREATE, "a/b", cid, None) == expected


def test_the_limits_are_the_same(fast: Any) -> None:
    assert fast.VERSION == compiled.VERSION
    limits = (frames.MAX_COMMIT_OPS, car.MAX_BLOCKS_BYTES, repo.MAX_RECORD_BYTES, commit.MAX_COMMIT_BYTES)
    assert (*limits, syntax.MAX_DID_CHARS, syntax.MAX_NSID_CHARS, drisl.DENSE_BYTES) == fast.LIMITS


def told(frames_: list[tuple[int, bytes]], documents: dict[str, Any], verifier: Verifier) -> list[Judgement]:
    judgements = []
    for now_ms, frame in frames_:
        judgement = verifier.receive(frame, now_ms)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, documents[need.did][-1 if need.refresh else 0])
            judgement = verifier.receive(frame, now_ms)
        judgements.append(judgement)
    return judgements


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("first_sight", list(FirstSight))
def test_the_verdicts_are_those_of_the_long_way(
    policy: Policy,
    first_sight: FirstSight,
    pds_frames: list[tuple[int, bytes]],
    pds_documents: dict[str, Any],
) -> None:
    lossy = [frame for number, frame in enumerate(pds_frames) if number % 11]  # and some come twice
    lossy[200:200] = lossy[150:160]
    quick = Verifier(policy=policy, first_sight=first_sight)
    judged = told(lossy, pds_documents, quick)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", None)
        slow = Verifier(policy=policy, first_sight=first_sight)
        assert judged == told(lossy, pds_documents, slow)
    assert quick.counters == slow.counters
    assert quick.accounts() == slow.accounts()
    assert quick.last_seq == slow.last_seq
    accepted = [judgement for judgement in judged if judgement.verdict is Verdict.ACCEPT]
    assert any(judgement.records for judgement in accepted)
