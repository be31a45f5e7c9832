"""The verifier on frames of our own making: true ones pass, and each lie has its verdict and its word."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from firehose.car import read_car, write_car
from firehose.cid import Cid
from firehose.commit import sign_commit
from firehose.drisl import decode, encode
from firehose.frames import (
    Action,
    CommitEvent,
    RepoOp,
    encode_account,
    encode_commit,
    encode_error,
    encode_identity,
    encode_info,
    encode_sync,
)
from firehose.keys import ORDER, Curve, SigningKey
from firehose.mst import Mst
from firehose.repo import CommitResult, Write
from firehose.syntax import Did, Nsid, RecordKey, Tid
from firehose.tid import tid_from
from firehose.verify import Policy, Verdict, Verifier

NOW_MS = 1_790_000_000_000
NOTE = Nsid("com.example.note")
TIME = "2026-09-21T14:13:20Z"


def write(action: Action, rkey: str, text: str = "hello") -> Write:
    record = None if action is Action.DELETE else {"$type": NOTE, "text": text}
    return Write(action=action, collection=NOTE, rkey=RecordKey(rkey), record=record)


def frame(result: CommitResult, seq: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "seq": seq,
        "repo": result.repo.did,
        "commit": result.commit,
        "rev": result.rev,
        "since": result.since,
        "time": TIME,
        "blocks": result.car,
        "ops": result.ops,
        "prev_data": result.prev_data,
    }
    return encode_commit(**fields | changes)


@dataclass
class Scene:
    """Alice's account on a stream, her first commit already accepted as seq 10."""

    author: Any
    verifier: Verifier
    judge: Any
    documents: dict[str, list[dict[str, Any]]]

    def say(self, raw: bytes, now_ms: int = NOW_MS) -> tuple[str, str]:
        judgement = self.judge(self.verifier, raw, now_ms, self.documents)
        assert judgement.verdict is not None
        return str(judgement.verdict), judgement.reason

    def commit(self, *writes: Write) -> CommitResult:
        result: CommitResult = self.author.save(self.author.repo.apply(list(writes)))
        return result


@pytest.fixture
def scene(author: Any, judge: Any) -> Scene:
    scene = Scene(author, Verifier(), judge, {author.did: [author.document()]})
    assert scene.say(frame(author.first, 10)) == ("accept", "ok")
    return scene


def test_creates_updates_and_deletes_come_out_as_records(scene: Scene) -> None:
    steps = [
        (write(Action.CREATE, "a", "one"), {"$type": NOTE, "text": "one"}),
        (write(Action.UPDATE, "a", "two"), {"$type": NOTE, "text": "two"}),
        (write(Action.DELETE, "a"), None),
    ]
    for seq, (wish, record) in enumerate(steps, 11):
        result = scene.commit(wish)
        judgement = scene.judge(scene.verifier, frame(result, seq), NOW_MS, scene.documents)
        (verified,) = judgement.records
        assert judgement.verdict is Verdict.ACCEPT
        assert (verified.did, verified.collection, verified.rkey) == (scene.author.did, NOTE, "a")
        assert (verified.action, verified.record, verified.rev) == (wish.action, record, result.rev)
        assert verified.seq == seq == scene.verifier.last_seq
    assert scene.verifier.repos()[scene.author.did].data == scene.author.repo.data


@pytest.mark.parametrize("curve", list(Curve))
def test_both_curves_verify(author: Any, judge: Any, curve: Curve) -> None:
    other = type(author)(key=SigningKey.from_bytes(b"\x21" * 32, curve))
    verifier, documents = Verifier(), {other.did: [other.document()]}
    assert judge(verifier, frame(other.first, 1), NOW_MS, documents).verdict is Verdict.ACCEPT


# Tampering. Each case takes an honest frame apart and puts it together with one lie in it.


def reblocked(result: CommitResult, change: Callable[[dict[Cid, bytes]], Cid | None]) -> dict[str, Any]:
    """The frame's fields with other blocks; `change` edits them and may return another commit."""
    blocks = dict(read_car(result.car).blocks)
    commit = change(blocks) or result.commit
    return {"blocks": write_car([commit], blocks), "commit": commit}


def recommitted(result: CommitResult, **fields: Any) -> dict[str, Any]:
    """The frame's fields with a changed commit block, whose hash is right again."""

    def change(blocks: dict[Cid, bytes]) -> Cid:
        block = encode(decode(blocks.pop(result.commit)) | fields)
        commit = Cid.for_dag_cbor(block)
        blocks[commit] = block
        return commit

    return reblocked(result, change)


def signature_of(result: CommitResult) -> bytes:
    return bytes(decode(result.commit_block)["sig"])


def flipped(result: CommitResult) -> dict[str, Any]:
    sig = bytearray(signature_of(result))
    sig[40] ^= 1
    return recommitted(result, sig=bytes(sig))


def high_s(result: CommitResult) -> dict[str, Any]:
    sig = signature_of(result)
    return recommitted(result, sig=sig[:32] + (ORDER[Curve.K256] - int.from_bytes(sig[32:])).to_bytes(32))


def in_der(result: CommitResult) -> dict[str, Any]:
    sig = signature_of(result)
    return recommitted(result, sig=encode_dss_signature(int.from_bytes(sig[:32]), int.from_bytes(sig[32:])))


def swapped_record(result: CommitResult) -> dict[str, Any]:
    honest = encode({"$type": NOTE, "text": "honest"})
    forged = encode({"$type": NOTE, "text": "forged"})
    return {"blocks": result.car.replace(honest, forged)}


def forged_op(result: CommitResult) -> dict[str, Any]:
    """A record of the server's own, under its right CID: only the tree knows nothing of it."""
    forged = encode({"$type": NOTE, "text": "forged"})
    cid = Cid.for_dag_cbor(forged)
    (op,) = result.ops
    changes = reblocked(result, lambda blocks: blocks.update({cid: forged}))
    return changes | {"ops": (RepoOp(action=op.action, path=op.path, cid=cid),)}


def remove(blocks: dict[Cid, bytes], cid: Cid) -> None:
    del blocks[cid]


def without_record(result: CommitResult) -> dict[str, Any]:
    (op,) = result.ops
    assert op.cid is not None
    cid = op.cid
    return reblocked(result, lambda blocks: remove(blocks, cid))


def without_root_node(result: CommitResult) -> dict[str, Any]:
    return reblocked(result, lambda blocks: remove(blocks, result.data))


def without_commit(result: CommitResult) -> dict[str, Any]:
    return reblocked(result, lambda blocks: remove(blocks, result.commit))


def op(action: Action, path: str, cid: Cid | None, prev: Cid | None = None) -> dict[str, Any]:
    return {"ops": (RepoOp(action=action, path=path, cid=cid, prev=prev),)}


LEAF = Cid.for_dag_cbor(b"\xa0")
TAMPERED: list[Any] = [
    pytest.param(flipped, "signature", id="flipped-signature"),
    pytest.param(high_s, "signature", id="high-s"),
    pytest.param(in_der, "signature", id="der"),
    pytest.param(lambda r: recommitted(r, sig=b""), "signature", id="no-signature"),
    pytest.param(lambda r: recommitted(r, data=LEAF), "signature", id="another-tree"),
    pytest.param(lambda r: recommitted(r, version=2), "commit-version", id="version-2"),
    pytest.param(lambda r: recommitted(r, version=4), "commit-version", id="version-4"),
    pytest.param(lambda r: recommitted(r, more=1), "commit-form", id="commit-with-more"),
    pytest.param(lambda r: recommitted(r, did="did:plc:mallory"), "commit-did", id="another-author-inside"),
    pytest.param(lambda r: {"repo": "did:plc:mallory"}, "commit-did", id="another-author-outside"),
    pytest.param(lambda r: {"rev": tid_from(NOW_MS * 1000 + 9)}, "commit-rev", id="another-rev-outside"),
    pytest.param(lambda r: {"commit": LEAF}, "commit-root", id="another-commit-outside"),
    pytest.param(without_commit, "commit-missing", id="no-commit"),
    pytest.param(swapped_record, "car-block-hash", id="swapped-record-bytes"),
    pytest.param(forged_op, "op-tree", id="forged-record"),
    pytest.param(without_record, "record-missing", id="no-record"),
    pytest.param(without_root_node, "mst-missing", id="no-root-node"),
    pytest.param(lambda r: {"blocks": r.car[:-1]}, "car-truncated", id="cut-archive"),
    pytest.param(lambda r: {"blocks": b"\x00"}, "car-header", id="no-archive"),
    pytest.param(lambda r: {"ops": ()}, "inversion", id="hidden-op"),
    pytest.param(lambda r: {"prev_data": LEAF}, "inversion", id="another-past"),
    pytest.param(lambda r: {"ops": r.ops * 2}, "op-duplicate", id="op-twice"),
    pytest.param(
        lambda r: op(Action.DELETE, f"{NOTE}/a", None, LEAF), "op-tree", id="delete-of-what-is-there"
    ),
    pytest.param(lambda r: op(Action.DELETE, f"{NOTE}/a", LEAF), "op-cid", id="delete-with-cid"),
    pytest.param(lambda r: op(Action.CREATE, f"{NOTE}/a", None), "op-cid", id="create-without-cid"),
    pytest.param(lambda r: op(Action.CREATE, f"{NOTE}/a", LEAF, LEAF), "op-prev", id="create-with-prev"),
    pytest.param(lambda r: op(Action.UPDATE, f"{NOTE}/a", r.ops[0].cid), "op-prev", id="update-without-prev"),
    pytest.param(lambda r: op(Action.CREATE, "note/a", r.ops[0].cid), "op-path", id="path-without-nsid"),
    pytest.param(lambda r: op(Action.CREATE, f"{NOTE}/..", r.ops[0].cid), "op-path", id="path-upwards"),
    pytest.param(lambda r: op(Action.CREATE, f"{NOTE}/b", r.ops[0].cid), "op-tree", id="another-path"),
    pytest.param(
        lambda r: {"rev": tid_from((NOW_MS + 400_000) * 1000)}, "rev-future", id="rev-of-the-future"
    ),
]


@pytest.mark.parametrize(("tamper", "reason"), TAMPERED)
def test_a_lie_is_rejected_and_leaves_no_trace(
    scene: Scene, tamper: Callable[[CommitResult], dict[str, Any]], reason: str
) -> None:
    result = scene.commit(write(Action.CREATE, "a", "honest"))
    scene.documents["did:plc:mallory"] = [scene.author.document() | {"id": "did:plc:mallory"}]
    before = scene.verifier.repos()
    raw = frame(result, 11, **tamper(result))
    judgement = scene.judge(scene.verifier, raw, NOW_MS, scene.documents)
    assert (judgement.verdict, judgement.reason) == (Verdict.REJECT, reason)
    assert judgement.records == ()
    assert scene.verifier.repos() == before
    # The truth, told later, still counts.
    assert scene.say(frame(result, 12)) == ("accept", "ok")


def test_another_accounts_signature_does_not_count(scene: Scene) -> None:
    mallory = type(scene.author)(key=SigningKey.from_bytes(b"\x66" * 32))  # her key, Alice's DID
    result = mallory.repo.apply([write(Action.CREATE, "a")])
    assert scene.say(frame(result, 11)) == ("reject", "signature")


def text_of(size: int) -> bytes:
    """A record of this many bytes."""
    block = encode({"text": "x" * (size - 11)})
    assert len(block) == size
    return block


@pytest.mark.parametrize(
    ("block", "verdict"),
    [
        pytest.param(encode([1]), ("reject", "record-form"), id="list"),
        pytest.param(b"\xff", ("reject", "record-form"), id="noise"),
        pytest.param(b"\x18\x01", ("reject", "record-form"), id="longer-number"),
        pytest.param(text_of(1_000_001), ("reject", "record-size"), id="too-large"),
        pytest.param(text_of(1_000_000), ("accept", "ok"), id="as-large-as-it-may-be"),
    ],
)
def test_what_a_record_may_be(scene: Scene, block: bytes, verdict: tuple[str, str]) -> None:
    cid = Cid.for_dag_cbor(block)
    tree = Mst.empty().put(f"{NOTE}/a", cid)
    rev = Tid(tid_from(NOW_MS * 1000 + 50))
    _, commit_block = sign_commit(scene.author.key, did=scene.author.did, rev=rev, data=tree.root)
    root = Cid.for_dag_cbor(commit_block)
    raw = encode_commit(
        seq=(scene.verifier.last_seq or 0) + 1,
        repo=scene.author.did,
        commit=root,
        rev=rev,
        since=scene.author.repo.rev,
        time=TIME,
        blocks=write_car([root], {root: commit_block, **tree.all_blocks(), cid: block}),
        ops=[RepoOp(action=Action.CREATE, path=f"{NOTE}/a", cid=cid)],
        prev_data=scene.author.repo.data,
    )
    assert scene.say(raw) == verdict


# What an honest stream may hold besides.


def test_a_server_of_before_sync_1_1_is_believed_but_marked_where_that_is_wanted(scene: Scene) -> None:
    result = scene.commit(write(Action.CREATE, "a"))
    assert scene.say(frame(result, 10, prev_data=None)) == ("seq-error", "seq-not-increasing")
    scene.verifier.policy = Policy.LENIENT
    assert scene.say(frame(result, 11, prev_data=None)) == ("accept", "unproven")
    forged = frame(
        scene.commit(write(Action.CREATE, "b")), 12, prev_data=None, **op(Action.CREATE, f"{NOTE}/c", LEAF)
    )
    assert scene.say(forged) == ("reject", "op-tree")


def test_an_old_rev_is_ignored(scene: Scene) -> None:
    result = scene.commit(write(Action.CREATE, "a"))
    assert scene.say(frame(result, 11)) == ("accept", "ok")
    assert scene.say(frame(result, 12)) == ("ignore", "rev-old")
    assert scene.say(frame(scene.author.first, 13)) == ("ignore", "rev-old")


def test_a_seq_that_does_not_grow_is_an_error_and_changes_nothing(scene: Scene) -> None:
    result = scene.commit(write(Action.CREATE, "a"))
    for seq in (10, 1):
        assert scene.say(frame(result, seq)) == ("seq-error", "seq-not-increasing")
        assert scene.verifier.last_seq == 10
    assert scene.say(frame(result, 5000)) == ("accept", "ok")


def test_a_malformed_frame_moves_the_stream_on_if_it_says_where_it_is(scene: Scene) -> None:
    assert scene.say(encode_account(seq=11, did="nobody", time=TIME, active=True)) == ("reject", "did-syntax")
    assert scene.verifier.last_seq == 11
    assert scene.say(b"noise") == ("reject", "frame-cbor")
    assert scene.verifier.last_seq == 11


def test_an_inactive_account_is_ignored_until_it_is_active_again(scene: Scene) -> None:
    did = scene.author.did
    first, second = scene.commit(write(Action.CREATE, "a")), scene.commit(write(Action.CREATE, "b"))
    off = encode_account(seq=11, did=did, time=TIME, active=False, status="takendown")
    assert scene.say(off) == ("accept", "ok")
    assert not scene.verifier.is_active(did)
    assert scene.say(frame(first, 12)) == ("ignore", "account-inactive")
    sync = encode_sync(seq=13, did=did, rev=second.rev, time=TIME, blocks=second.sync_car)
    assert scene.say(sync) == ("ignore", "account-inactive")
    odd = encode_account(seq=14, did=did, time=TIME, active=True, status="throttled")
    assert scene.say(odd) == ("accept", "ok")  # `active` decides, whatever the status says
    assert scene.say(frame(second, 15)) == ("desync", "chain-data")  # the first one was not for us to see
    assert scene.say(frame(first, 16)) == ("accept", "ok")


@pytest.mark.parametrize(
    "did", ["did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme", "did:example:a"]
)
def test_a_did_of_another_method_is_not_ours_to_judge(judge: Any, author: Any, did: str) -> None:
    assert judge(Verifier(), frame(author.first, 1, repo=did), NOW_MS, {}).reason == "did-method"


def test_info_errors_and_unknown_kinds(scene: Scene) -> None:
    assert scene.say(encode_info("OutdatedCursor")) == ("info", "info")
    assert scene.say(encode_error("FutureCursor")) == ("fatal", "error-frame")
    assert scene.say(encode({"op": 1, "t": "#handle"}) + encode({"seq": 99})) == ("ignore", "unknown-type")
    assert scene.verifier.last_seq == 10


def test_syncs(scene: Scene) -> None:
    did, first = scene.author.did, scene.author.first

    def sync(seq: int, result: CommitResult, **changes: Any) -> tuple[str, str]:
        fields = {"seq": seq, "did": did, "rev": result.rev, "time": TIME, "blocks": result.sync_car}
        return scene.say(encode_sync(**fields | changes))

    assert sync(11, first) == ("noop", "ok")
    later = scene.commit(write(Action.CREATE, "a"))
    assert sync(12, later) == ("desync", "sync-data")
    assert scene.say(frame(later, 13)) == ("accept", "ok")
    assert sync(14, later) == ("noop", "ok")
    assert sync(15, first) == ("ignore", "rev-old")
    # @atproto/pds 0.4 after an import: a newer rev outside, the known commit inside.
    assert sync(16, later, rev=tid_from(NOW_MS * 1000 + 77)) == ("noop", "ok")
    assert sync(17, later, blocks=later.sync_car[:-1]) == ("reject", "car-truncated")
    assert sync(18, later, blocks=flipped(later)["blocks"]) == ("reject", "signature")


def test_a_first_sync_is_a_base_only_if_it_is_consistent(author: Any, judge: Any) -> None:
    documents = {author.did: [author.document()]}
    for rev, expected in ((author.first.rev, Verdict.ACCEPT), (tid_from(NOW_MS * 1000 + 77), Verdict.REJECT)):
        raw = encode_sync(seq=1, did=author.did, rev=rev, time=TIME, blocks=author.first.sync_car)
        assert judge(Verifier(), raw, NOW_MS, documents).verdict is expected


def test_a_restored_state_is_where_the_judging_goes_on(author: Any, judge: Any) -> None:
    verifier = Verifier(last_seq=40)
    verifier.restore(author.did, rev=author.first.rev, data=author.first.data)
    documents = {author.did: [author.document()]}
    assert judge(verifier, frame(author.first, 41), NOW_MS, documents).reason == "rev-old"
    assert judge(verifier, frame(author.first, 40), NOW_MS, documents).verdict is Verdict.SEQ_ERROR
    verifier.restore(author.did, active=False)
    assert judge(verifier, frame(author.first, 42), NOW_MS, documents).reason == "account-inactive"


def test_what_an_earlier_run_accepted_is_taken_up_without_any_key(author: Any) -> None:
    verifier = Verifier()
    event = verifier.trust(frame(author.first, 7))
    assert isinstance(event, CommitEvent)
    verifier.trust(encode_account(seq=8, did=author.did, time=TIME, active=False))
    assert verifier.last_seq == 8
    assert verifier.repos()[author.did].data == author.first.data
    assert not verifier.is_active(author.did)


def test_every_frame_is_counted_once(scene: Scene) -> None:
    seen = 1
    for seq in range(11, 31):
        result = scene.commit(write(Action.CREATE, f"r{seq}"))
        changes = flipped(result) if seq % 3 == 0 else {}
        scene.say(frame(result, seq if seq % 5 else 1, **changes))
        seen += 1
    assert sum(scene.verifier.counters.values()) == seen
    assert {verdict for verdict, _ in scene.verifier.counters} == {"accept", "reject", "seq-error", "desync"}


def test_did_is_checked_before_anything_is_asked(author: Any) -> None:
    judgement = Verifier().receive(frame(author.first, 1, blocks=b"\x00"), NOW_MS)
    assert (judgement.verdict, judgement.needs) == (
        Verdict.REJECT,
        (),
    )  # nobody's document for a broken archive
    needed = Verifier().receive(frame(author.first, 1), NOW_MS)
    assert needed.verdict is None
    assert [(need.did, need.refresh) for need in needed.needs] == [(Did(author.did), False)]


def test_identity_frames_are_accepted(scene: Scene) -> None:
    raw = encode_identity(seq=11, did=scene.author.did, time=TIME, handle="alice.test")
    assert scene.say(raw) == ("accept", "ok")
