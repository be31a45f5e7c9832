"""Frames: a server's own bytes come back from our writer, and nothing malformed gets in."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose import frames
from firehose.cid import Cid
from firehose.drisl import encode
from firehose.errors import FrameInvalid
from firehose.frames import (
    MAX_COMMIT_OPS,
    AccountEvent,
    Action,
    CommitEvent,
    ErrorFrame,
    FrameType,
    IdentityEvent,
    InfoEvent,
    RepoOp,
    SyncEvent,
    UnknownFrame,
    encode_account,
    encode_commit,
    encode_error,
    encode_identity,
    encode_info,
    encode_sync,
    parse_frame,
    peek,
)

pytestmark = pytest.mark.usefixtures("twin")

DID = "did:plc:abc"
TID = "3jzfcijpj2z2a"
CID = Cid.for_dag_cbor(b"\xa0")
COMMIT: dict[str, Any] = {
    "seq": 7,
    "repo": DID,
    "commit": CID,
    "rev": TID,
    "since": None,
    "time": "2026-01-01T00:00:00Z",
    "blocks": b"x",
    "ops": [{"action": "create", "path": "com.example.note/a", "cid": CID}],
    "blobs": [],
    "rebase": False,
    "tooBig": False,
}


def frame(kind: str, body: Any, op: Any = 1) -> bytes:
    return encode({"op": op, "t": kind}) + encode(body)


def commit(**changes: Any) -> bytes:
    return frame("#commit", COMMIT | changes)


def without(field: str) -> bytes:
    return frame("#commit", {name: value for name, value in COMMIT.items() if name != field})


def test_a_servers_frames_come_back_byte_for_byte(pds_frames: list[tuple[int, bytes]]) -> None:
    for _, raw in pds_frames:
        match parse_frame(raw):
            case CommitEvent() as e:
                again = encode_commit(
                    seq=e.seq,
                    repo=e.repo,
                    commit=e.commit,
                    rev=e.rev,
                    since=e.since,
                    time=e.time,
                    blocks=e.blocks,
                    ops=e.ops,
                    prev_data=e.prev_data,
                    blobs=e.blobs,
                )
            case SyncEvent() as e:
                again = encode_sync(seq=e.seq, did=e.did, rev=e.rev, time=e.time, blocks=e.blocks)
            case IdentityEvent() as e:
                again = encode_identity(seq=e.seq, did=e.did, time=e.time, handle=e.handle)
            case AccountEvent() as e:
                again = encode_account(seq=e.seq, did=e.did, time=e.time, active=e.active, status=e.status)
            case other:
                raise AssertionError(other)
        assert again == raw


def test_info_and_error_frames() -> None:
    assert parse_frame(encode_info("OutdatedCursor", "late")) == InfoEvent(
        name="OutdatedCursor", message="late"
    )
    assert parse_frame(encode_error("FutureCursor")) == ErrorFrame(name="FutureCursor")
    assert peek(encode_error("FutureCursor")).type is FrameType.ERROR
    assert peek(encode_info("OutdatedCursor")).type is FrameType.INFO


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(frame("#handle", {"seq": 1}), UnknownFrame(op=1, type="#handle"), id="old-kind"),
        pytest.param(frame("#commit", {}, op=2), UnknownFrame(op=2, type="#commit"), id="new-op"),
        pytest.param(encode({"op": 1}) + encode({}), UnknownFrame(op=1, type=None), id="no-kind"),
        pytest.param(
            encode({"op": 1, "t": 7}) + encode({}), UnknownFrame(op=1, type=None), id="kind-of-number"
        ),
    ],
)
def test_what_a_later_version_may_send_is_passed_over(raw: bytes, expected: UnknownFrame) -> None:
    assert parse_frame(raw) == expected
    assert peek(raw).did is None


ACCOUNT = {
    "did": "did:plc:alice2222222222222222222",
    "seq": 7,
    "time": "2026-01-01T00:00:00Z",
    "active": True,
}
GOOD = frame("#account", ACCOUNT)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x63seq\x18\x07"), id="longer-number"),
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x78\x03seq\x07"), id="longer-length"),
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x63seq\xfb" + bytes(8)), id="float"),
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x63seq\xf9\x47\x00"), id="half-float"),
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x63did\x07"), id="a-key-twice"),
        pytest.param(GOOD.replace(b"\xf5", b"\xf7"), id="undefined"),
        pytest.param(GOOD.replace(b"\x63seq\x07", b"\x63seq\xc1\x07"), id="a-tag"),
        pytest.param(GOOD.replace(b"\xa4\x63did", b"\xbf\x63did") + b"\xff", id="indefinite"),
        pytest.param(GOOD.replace(b"did:plc:alice2", b"did:plc:alic\xff2"), id="no-utf-8"),
        pytest.param(encode({"op": 1, "t": "#account"})[:-1] + b"t" + encode(ACCOUNT), id="cut-header"),
        pytest.param(GOOD + b"\x00", id="bytes-after"),
        pytest.param(b"\xa2\x62op\x01\x61t\x68#account" + encode(ACCOUNT), id="header-keys-in-another-order"),
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_no_frame(raw: bytes) -> None:
    assert parse_frame(GOOD)
    with pytest.raises(FrameInvalid) as caught:
        parse_frame(raw)
    assert caught.value.reason in ("frame-cbor", "frame-shape", "field-seq", "field-active")


def test_bytes_that_look_like_a_cid_are_no_link() -> None:
    with pytest.raises(FrameInvalid) as caught:
        parse_frame(commit(commit=CID.bytes))
    assert caught.value.reason == "field-commit"
    odd = frame("#commit", COMMIT | {"unknown": CID.bytes})
    assert parse_frame(odd) == parse_frame(commit())


def test_unknown_fields_are_left_alone() -> None:
    extended = encode({"op": 1, "t": "#commit", "x": 1}) + encode(COMMIT | {"new": [1, {"a": CID}]})
    assert parse_frame(extended) == parse_frame(commit())


@pytest.mark.parametrize(
    ("raw", "reason", "seq"),
    [
        pytest.param(b"", "frame-shape", None, id="empty"),
        pytest.param(b"\xff", "frame-cbor", None, id="noise"),
        pytest.param(encode({"op": 1, "t": "#commit"}), "frame-shape", None, id="one-part"),
        pytest.param(commit() + b"\xa0", "frame-shape", None, id="three-parts"),
        pytest.param(encode([1]) + encode({}), "frame-shape", None, id="header-of-list"),
        pytest.param(frame("#commit", [1]), "frame-shape", None, id="body-of-list"),
        pytest.param(commit()[:-1], "frame-cbor", None, id="cut"),
        pytest.param(frame("#commit", COMMIT, op="1"), "frame-header", None, id="op-of-text"),
        pytest.param(encode({"t": "#commit"}) + encode(COMMIT), "frame-header", None, id="no-op"),
        pytest.param(commit(seq=0), "field-seq", None, id="seq-0"),
        pytest.param(commit(seq=-1), "field-seq", None, id="seq-negative"),
        pytest.param(commit(seq=1 << 53), "field-seq", None, id="seq-too-large"),
        pytest.param(commit(seq=True), "field-seq", None, id="seq-true"),
        pytest.param(without("seq"), "field-seq", None, id="no-seq"),
        pytest.param(commit(repo="alice.test"), "did-syntax", 7, id="repo-no-did"),
        pytest.param(commit(rev="x"), "rev-syntax", 7, id="rev-no-tid"),
        pytest.param(commit(since="x"), "since-syntax", 7, id="since-no-tid"),
        pytest.param(commit(commit=b"x"), "field-commit", 7, id="commit-no-cid"),
        pytest.param(commit(commit=None), "field-commit", 7, id="commit-null"),
        pytest.param(commit(blocks=b""), "field-blocks", 7, id="blocks-empty"),
        pytest.param(commit(blocks="x"), "field-blocks", 7, id="blocks-of-text"),
        pytest.param(commit(blocks=bytes(2_000_001)), "blocks-size", 7, id="blocks-too-large"),
        pytest.param(commit(time=None), "field-time", 7, id="no-time"),
        pytest.param(commit(ops={}), "field-ops", 7, id="ops-no-list"),
        pytest.param(commit(ops=[1]), "field-ops", 7, id="op-no-map"),
        pytest.param(commit(ops=[{}]), "op-action", 7, id="op-without-action"),
        pytest.param(commit(ops=[{"action": "move", "path": "a"}]), "op-action", 7, id="op-of-another-kind"),
        pytest.param(commit(ops=[{"action": ["create"], "path": "a"}]), "op-action", 7, id="action-of-list"),
        pytest.param(commit(ops=[{"action": "create", "path": 7}]), "op-path", 7, id="op-path-of-number"),
        pytest.param(
            commit(ops=[{"action": "create", "path": "a", "cid": b"x"}]), "field-ops", 7, id="op-cid"
        ),
        pytest.param(commit(ops=[{}] * (MAX_COMMIT_OPS + 1)), "too-many-ops", 7, id="too-many-ops"),
        pytest.param(commit(prevData="x"), "field-prevData", 7, id="prev-data"),
        pytest.param(commit(blobs=[1]), "field-blobs", 7, id="blobs"),
        pytest.param(
            frame("#account", {"seq": 7, "did": DID, "time": "t"}), "field-active", 7, id="no-active"
        ),
        pytest.param(encode({"op": -1}) + encode({}), "field-error", None, id="error-without-name"),
        pytest.param(frame("#info", {}), "field-name", None, id="info-without-name"),
        pytest.param(b"\xa0" + bytes(5_000_000), "frame-size", None, id="too-large"),
    ],
)
def test_a_malformed_frame_is_refused_with_its_reason(raw: bytes, reason: str, seq: int | None) -> None:
    with pytest.raises(FrameInvalid) as caught:
        parse_frame(raw)
    assert (caught.value.reason, caught.value.seq) == (reason, seq)


@given(st.binary(max_size=80))
def test_noise_is_refused_or_read_and_never_crashes(noise: bytes) -> None:
    for read in (parse_frame, peek):
        with suppress(FrameInvalid):
            read(noise)


@given(st.data())
def test_one_changed_byte_never_crashes(data: st.DataObject) -> None:
    raw = bytearray(commit())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FrameInvalid):
        parse_frame(bytes(raw))


def test_a_peek_sees_what_the_parse_sees(pds_frames: list[tuple[int, bytes]]) -> None:
    for _, raw in pds_frames:
        event, seen = parse_frame(raw), peek(raw)
        assert not isinstance(event, InfoEvent | ErrorFrame | UnknownFrame)
        assert (seen.seq, seen.did) == (event.seq, event.did)
        assert seen.type == f"#{type(event).__name__.removesuffix('Event').lower()}"


def test_an_op_without_prev_is_written_without_it() -> None:
    op = RepoOp(action=Action.DELETE, path="a", cid=None)
    assert frames._encode_op(op) == {"action": "delete", "path": "a", "cid": None}
