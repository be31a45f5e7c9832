"""Frames of `com.atproto.sync.subscribeRepos`: bytes to events and back.

Source: atproto.com/specs/event-stream, "Wire Framing", and /specs/sync. A frame is two CBOR maps, one after
the other: a header that names the kind, and the body. Parsing checks form and limits only; whether an event
is *true* is for `firehose.verify` to say. Frames are not hashed or signed themselves, so their CBOR need
not be canonical; unknown fields are left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import cbor2
import libipld

from firehose import compiled
from firehose.car import MAX_BLOCKS_BYTES
from firehose.cid import Cid
from firehose.drisl import decode_first, is_sparse
from firehose.errors import DrislInvalid, FrameInvalid, SyntaxInvalid
from firehose.syntax import Did, Tid, parse_did, parse_tid

MAX_FRAME_BYTES: Final = 5_000_000  # specs/event-stream, "Streaming Endpoints"
MAX_COMMIT_OPS: Final = 200  # specs/sync, "#commit"
MAX_SEQ: Final = (1 << 53) - 1  # what every JSON reader can hold


class FrameType(StrEnum):
    """What kind of frame: the header's `t`, or a word for those that have none."""

    COMMIT = "#commit"
    SYNC = "#sync"
    IDENTITY = "#identity"
    ACCOUNT = "#account"
    INFO = "#info"
    ERROR = "error"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What happens to a record."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoOp:
    """One record's change in a commit."""

    action: Action
    path: str  # collection/rkey; checked by the verifier
    cid: Cid | None  # None for a delete
    prev: Cid | None = None  # what was there before; None for a create, and from old servers


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEvent:
    """An account's repository has a new commit. Only what `blocks` proves is signed."""

    seq: int
    repo: Did
    commit: Cid
    rev: Tid
    since: Tid | None  # the rev before
    time: str
    blocks: bytes  # a CAR: the commit, tree nodes, records
    ops: tuple[RepoOp, ...]
    prev_data: Cid | None  # the tree's root before; None in an account's first commit
    blobs: tuple[Cid, ...] = ()

    @property
    def did(self) -> Did:
        """The account, under the name that the other events use."""
        return self.repo


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEvent:
    """What an account's repository is now, without saying how it came about."""

    seq: int
    did: Did
    rev: Tid
    time: str
    blocks: bytes  # a CAR with the commit


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityEvent:
    """An account's DID document or handle may have changed."""

    seq: int
    did: Did
    time: str
    handle: str | None = None  # a hint, not verified


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountEvent:
    """Whether the server that we hear this from still serves the account."""

    seq: int
    did: Did
    time: str
    active: bool
    status: str | None = None  # an open vocabulary: takendown, suspended, deleted, deactivated, …


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoEvent:
    """The server tells us something, such as `OutdatedCursor`."""

    name: str
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFrame:
    """The server ends the stream, such as with `FutureCursor` or `ConsumerTooSlow`."""

    name: str
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFrame:
    """A kind of frame that this version does not know: to be passed over."""

    op: int
    type: str | None


Frame = CommitEvent | SyncEvent | IdentityEvent | AccountEvent | InfoEvent | ErrorFrame | UnknownFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePeek:
    """The little of a frame that routing needs."""

    type: FrameType
    seq: int | None = None
    did: str | None = None  # not checked


def parse_frame(data: bytes) -> Frame:
    """The event in a frame.

    Raises: FrameInvalid: the frame is malformed or over a limit; the reason is a stable word.
    """
    header, body, as_cid = _read(data)
    op, kind = header.get("op"), header.get("t")
    if op == -1:
        return ErrorFrame(name=_text(body, "error"), message=_optional_text(body, "message"))
    if type(op) is not int:
        raise FrameInvalid("frame-header", "op is no integer")
    parse = _PARSERS.get(kind) if op == 1 and isinstance(kind, str) else None
    if parse is None:
        return UnknownFrame(op=op, type=kind if isinstance(kind, str) else None)
    if kind == FrameType.INFO:
        return parse(body, 0, as_cid)
    seq = body.get("seq")
    if type(seq) is not int or not 0 < seq <= MAX_SEQ:
        raise FrameInvalid("field-seq", f"{seq!r:.40}")
    try:
        return parse(body, seq, as_cid)
    except FrameInvalid as error:
        raise FrameInvalid(error.reason, error.detail, seq) from None


def peek(data: bytes) -> FramePeek:
    """The kind, seq and DID of a frame, without the rest of the checks.

    Raises: FrameInvalid: it is not a frame at all.
    """
    header, body = _split(data)
    if header.get("op") == -1:
        return FramePeek(type=FrameType.ERROR)
    kind = _TYPES.get(str(header.get("t")), FrameType.UNKNOWN)
    seq, did = body.get("seq"), body.get("repo" if kind is FrameType.COMMIT else "did")
    return FramePeek(
        type=kind,
        seq=seq if type(seq) is int and 0 < seq <= MAX_SEQ else None,
        did=did if isinstance(did, str) else None,
    )


def route(data: bytes) -> tuple[int, str] | None:
    """Seq and DID ("" if there is none) of a frame that is about an account, or None: a faster `peek`.

    It takes for a frame what `parse_frame` does: a seq that it gives is the stream's.
    """
    try:
        header, body, _ = _read(data)
    except FrameInvalid:
        return None
    kind = header.get("t")
    if header.get("op") != 1 or not isinstance(kind, str) or kind not in _ACCOUNT_TYPES:
        return None
    seq, did = body.get("seq"), body.get("repo" if kind == "#commit" else "did")
    if type(seq) is not int or not 0 < seq <= MAX_SEQ:
        return None
    return seq, did if isinstance(did, str) else ""


def encode_commit(
    *,
    seq: int,
    repo: str,
    commit: Cid,
    rev: str,
    since: str | None,
    time: str,
    blocks: bytes,
    ops: Sequence[RepoOp],
    prev_data: Cid | None,
    blobs: Sequence[Cid] = (),
) -> bytes:
    """A #commit frame. `blocks` is the CAR of `firehose.repo.CommitResult.car`."""
    body: dict[str, Any] = {
        "seq": seq,
        "repo": repo,
        "commit": commit,
        "rev": rev,
        "since": since,
        "time": time,
        "blocks": blocks,
        "ops": [_encode_op(op) for op in ops],
        "blobs": list(blobs),
        "rebase": False,
        "tooBig": False,
    }
    if prev_data is not None:
        body["prevData"] = prev_data
    return _encode(FrameType.COMMIT, body)


def encode_sync(*, seq: int, did: str, rev: str, time: str, blocks: bytes) -> bytes:
    """A #sync frame. `blocks` is a CAR with the commit block alone."""
    return _encode(FrameType.SYNC, {"seq": seq, "did": did, "rev": rev, "time": time, "blocks": blocks})


def encode_identity(*, seq: int, did: str, time: str, handle: str | None = None) -> bytes:
    """An #identity frame."""
    return _encode(FrameType.IDENTITY, _present(seq=seq, did=did, time=time, handle=handle))


def encode_account(*, seq: int, did: str, time: str, active: bool, status: str | None = None) -> bytes:
    """An #account frame."""
    return _encode(FrameType.ACCOUNT, _present(seq=seq, did=did, time=time, active=active, status=status))


def encode_info(name: str, message: str | None = None) -> bytes:
    """An #info frame; it has no seq."""
    return _encode(FrameType.INFO, _present(name=name, message=message))


def encode_error(name: str, message: str | None = None) -> bytes:
    """An error frame; the server closes after it."""
    return _canonical({"op": -1}) + _canonical(_present(error=name, message=message))


def _encode(kind: FrameType, body: dict[str, Any]) -> bytes:
    return _canonical({"op": 1, "t": str(kind)}) + _canonical(body)


def _canonical(value: dict[str, Any]) -> bytes:
    """The DRISL encoding; cbor2's canonical form is the same for all that a frame holds (no floats)."""
    return cbor2.dumps(value, canonical=True, default=_tag_link)


def _tag_link(encoder: cbor2.CBOREncoder, value: object) -> None:
    if not isinstance(value, Cid):
        raise TypeError(f"{type(value).__name__} has no place in a frame")
    encoder.encode(cbor2.CBORTag(42, b"\0" + value.bytes))


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode_op(op: RepoOp) -> dict[str, Any]:
    body: dict[str, Any] = {"action": str(op.action), "path": op.path, "cid": op.cid}
    if op.prev is not None:
        body["prev"] = op.prev
    return body


def _split(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    if len(data) > MAX_FRAME_BYTES:
        raise FrameInvalid("frame-size", f"{len(data)} bytes")
    if not is_sparse(data):
        raise FrameInvalid("frame-values", "more values than a frame has use for")
    try:
        parts = libipld.decode_dag_cbor_multi(data)
    except Exception as error:  # noqa: BLE001 - it raises ValueError, RecursionError, Unicode…
        raise FrameInvalid("frame-cbor", str(error)) from None
    if len(parts) != 2 or not isinstance(parts[0], dict) or not isinstance(parts[1], dict):
        raise FrameInvalid("frame-shape", "not a header map and a body map")
    return parts[0], parts[1]


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Any], "_AsCid"]:
    """Header and body, canonical; and what makes a CID of a link in them."""
    if compiled.fast is not None and len(data) <= MAX_FRAME_BYTES and is_sparse(data):
        parts = compiled.fast.frame(data, Cid)
        if parts is not None:
            return parts[0], parts[1], _strict_cid
    header, body = _split(data)
    try:
        if libipld.encode_dag_cbor(header) + libipld.encode_dag_cbor(body) == data:
            return header, body, _cid
    except Exception:  # noqa: BLE001 S110 - what it read and cannot write is not canonical, or our reader knows
        pass
    # Bytes that look like a CID confuse libipld; our own reader tells them from links, and has the last word.
    try:
        header, end = decode_first(data)
        body, end = decode_first(data, end)
    except DrislInvalid as error:
        raise FrameInvalid("frame-cbor", str(error)) from None
    if end != len(data) or not isinstance(header, dict) or not isinstance(body, dict):
        raise FrameInvalid("frame-shape", "not a header map and a body map")
    return header, body, _strict_cid


def _parse_commit(body: dict[str, Any], seq: int, as_cid: "_AsCid") -> CommitEvent:
    ops = body.get("ops")
    if not isinstance(ops, list):
        raise FrameInvalid("field-ops", "no list")
    if len(ops) > MAX_COMMIT_OPS:
        raise FrameInvalid("too-many-ops", f"{len(ops)}")
    blobs = body.get("blobs")
    since = body.get("since")
    return compiled.make(
        CommitEvent,
        seq,
        _did(body, "repo"),
        as_cid(body.get("commit"), "commit"),
        _tid(body.get("rev"), "rev"),
        None if since is None else _tid(since, "since"),
        _text(body, "time"),
        _blocks(body),
        tuple([_parse_op(op, as_cid) for op in ops]),
        None if body.get("prevData") is None else as_cid(body["prevData"], "prevData"),
        tuple([as_cid(blob, "blobs") for blob in blobs]) if isinstance(blobs, list) else (),
    )


def _parse_op(op: Any, as_cid: "_AsCid") -> RepoOp:
    if not isinstance(op, dict):
        raise FrameInvalid("field-ops", "an op that is no map")
    action = _ACTIONS.get(str(op.get("action")))
    path = op.get("path")
    if action is None:
        raise FrameInvalid("op-action", f"{op.get('action')!r:.40}")
    if not isinstance(path, str):
        raise FrameInvalid("op-path", f"{path!r:.40}")
    cid, prev = op.get("cid"), op.get("prev")
    return compiled.make(
        RepoOp,
        action,
        path,
        None if cid is None else as_cid(cid, "ops"),
        None if prev is None else as_cid(prev, "ops"),
    )


def _parse_sync(body: dict[str, Any], seq: int, as_cid: "_AsCid") -> SyncEvent:
    return SyncEvent(
        seq=seq,
        did=_did(body, "did"),
        rev=_tid(body.get("rev"), "rev"),
        time=_text(body, "time"),
        blocks=_blocks(body),
    )


def _parse_identity(body: dict[str, Any], seq: int, as_cid: "_AsCid") -> IdentityEvent:
    return IdentityEvent(
        seq=seq, did=_did(body, "did"), time=_text(body, "time"), handle=_optional_text(body, "handle")
    )


def _parse_account(body: dict[str, Any], seq: int, as_cid: "_AsCid") -> AccountEvent:
    active = body.get("active")
    if not isinstance(active, bool):
        raise FrameInvalid("field-active", f"{active!r:.40}")
    return AccountEvent(
        seq=seq,
        did=_did(body, "did"),
        time=_text(body, "time"),
        active=active,
        status=_optional_text(body, "status"),
    )


def _parse_info(body: dict[str, Any], seq: int, as_cid: "_AsCid") -> InfoEvent:
    return InfoEvent(name=_text(body, "name"), message=_optional_text(body, "message"))


_AsCid = Callable[[Any, str], Cid]
_PARSERS: Final[dict[str, Callable[[dict[str, Any], int, _AsCid], Frame]]] = {
    FrameType.COMMIT: _parse_commit,
    FrameType.SYNC: _parse_sync,
    FrameType.IDENTITY: _parse_identity,
    FrameType.ACCOUNT: _parse_account,
    FrameType.INFO: _parse_info,
}
_TYPES: Final = {str(kind): kind for kind in FrameType if kind.startswith("#")}
_ACCOUNT_TYPES: Final = frozenset(_TYPES) - {str(FrameType.INFO)}
_ACTIONS: Final = {str(action): action for action in Action}


def _did(body: dict[str, Any], field: str) -> Did:
    try:
        return parse_did(body.get(field))
    except SyntaxInvalid as error:
        raise FrameInvalid("did-syntax", str(error)) from None


def _tid(value: Any, field: str) -> Tid:
    try:
        return parse_tid(value)
    except SyntaxInvalid as error:
        raise FrameInvalid(f"{field}-syntax", str(error)) from None


def _cid(value: Any, field: str) -> Cid:
    if isinstance(value, bytes):
        try:
            return Cid.from_bytes(value)
        except SyntaxInvalid:
            pass
    raise FrameInvalid(f"field-{field}", "not a CID")


def _strict_cid(value: Any, field: str) -> Cid:
    if type(value) is Cid:
        return value
    raise FrameInvalid(f"field-{field}", "not a CID")


def _blocks(body: dict[str, Any]) -> bytes:
    blocks = body.get("blocks")
    if not isinstance(blocks, bytes) or not blocks:
        raise FrameInvalid("field-blocks", "no bytes")
    if len(blocks) > MAX_BLOCKS_BYTES:
        raise FrameInvalid("blocks-size", f"{len(blocks)} bytes")
    return blocks


def _text(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if isinstance(value, str):
        return value
    raise FrameInvalid(f"field-{field}", "no text")


def _optional_text(body: dict[str, Any], field: str) -> str | None:
    value = body.get(field)
    return value if isinstance(value, str) else None
