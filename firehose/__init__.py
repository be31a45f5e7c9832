"""The AT Protocol, without Ray: bytes off a firehose come in, verified events and signed commits go out.

Names load on first use: an agent that only reads frames and writes records does not pay for keys, stores
and servers (cryptography alone is 10 MB in each agent's process).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firehose.car import Car, read_car, write_car
    from firehose.cid import Cid
    from firehose.commit import Commit, parse_commit, sign_commit
    from firehose.document import handle, pds_url, signing_key
    from firehose.errors import (
        CarInvalid,
        CursorInFuture,
        DirectoryUnavailable,
        DocumentInvalid,
        DrislInvalid,
        FirehoseError,
        FrameInvalid,
        KeyInvalid,
        LexiconInvalid,
        LexiconUnknown,
        ListenFailed,
        MissingBlock,
        MstInvalid,
        PlcOperationInvalid,
        PortInUse,
        RepoInvalid,
        SubscriptionError,
        SubscriptionRefused,
        SyntaxInvalid,
        TraceInvalid,
        UpstreamUnreachable,
        WindowUnavailable,
        WriteRefused,
        XrpcError,
    )
    from firehose.frames import (
        AccountEvent,
        Action,
        CommitEvent,
        ErrorFrame,
        Frame,
        FramePeek,
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
    from firehose.identity import DidDirectory, DidResolver, StaticDirectory
    from firehose.jetstream import Jetstream, Proof, ToldAccount, ToldIdentity, ToldRecord
    from firehose.json_form import from_json, to_json
    from firehose.keys import Curve, SigningKey, VerifyingKey
    from firehose.lexicon import Lexicons
    from firehose.mst import Mst
    from firehose.relays import Relays
    from firehose.repo import CommitResult, Repo, RepoContents, Write, read_repo_car
    from firehose.serve import FrameServer
    from firehose.subscribe import Subscriber, SubscriberState
    from firehose.syntax import (
        AtUri,
        Did,
        Handle,
        Nsid,
        RecordKey,
        Tid,
        parse_at_identifier,
        parse_at_uri,
        parse_datetime,
        parse_did,
        parse_handle,
        parse_nsid,
        parse_path,
        parse_record_key,
        parse_tid,
        split_at_uri,
    )
    from firehose.tid import TidClock, tid_micros
    from firehose.trace import TraceFrame, TraceWriter, read_trace
    from firehose.verify import (
        FirstSight,
        Judgement,
        Policy,
        RepoState,
        ResolveDid,
        Verdict,
        VerifiedRecord,
        Verifier,
    )
    from firehose.xrpc import RecordRef, Session, XrpcClient

__all__ = [
    "AccountEvent",
    "Action",
    "AtUri",
    "Car",
    "CarInvalid",
    "Cid",
    "Commit",
    "CommitEvent",
    "CommitResult",
    "CursorInFuture",
    "Curve",
    "Did",
    "DidDirectory",
    "DidResolver",
    "DirectoryUnavailable",
    "DocumentInvalid",
    "DrislInvalid",
    "ErrorFrame",
    "FirehoseError",
    "FirstSight",
    "Frame",
    "FrameInvalid",
    "FramePeek",
    "FrameServer",
    "FrameType",
    "Handle",
    "IdentityEvent",
    "InfoEvent",
    "Jetstream",
    "Judgement",
    "KeyInvalid",
    "LexiconInvalid",
    "LexiconUnknown",
    "Lexicons",
    "ListenFailed",
    "MissingBlock",
    "Mst",
    "MstInvalid",
    "Nsid",
    "PlcOperationInvalid",
    "Policy",
    "PortInUse",
    "Proof",
    "RecordKey",
    "RecordRef",
    "Relays",
    "Repo",
    "RepoContents",
    "RepoInvalid",
    "RepoOp",
    "RepoState",
    "ResolveDid",
    "Session",
    "SigningKey",
    "StaticDirectory",
    "Subscriber",
    "SubscriberState",
    "SubscriptionError",
    "SubscriptionRefused",
    "SyncEvent",
    "SyntaxInvalid",
    "Tid",
    "TidClock",
    "ToldAccount",
    "ToldIdentity",
    "ToldRecord",
    "TraceFrame",
    "TraceInvalid",
    "TraceWriter",
    "UnknownFrame",
    "UpstreamUnreachable",
    "Verdict",
    "VerifiedRecord",
    "Verifier",
    "VerifyingKey",
    "WindowUnavailable",
    "Write",
    "WriteRefused",
    "XrpcClient",
    "XrpcError",
    "encode_account",
    "encode_commit",
    "encode_error",
    "encode_identity",
    "encode_info",
    "encode_sync",
    "from_json",
    "handle",
    "parse_at_identifier",
    "parse_at_uri",
    "parse_commit",
    "parse_datetime",
    "parse_did",
    "parse_frame",
    "parse_handle",
    "parse_nsid",
    "parse_path",
    "parse_record_key",
    "parse_tid",
    "pds_url",
    "peek",
    "read_car",
    "read_repo_car",
    "read_trace",
    "sign_commit",
    "signing_key",
    "split_at_uri",
    "tid_micros",
    "to_json",
    "write_car",
]

_HOMES = {
    "car": "Car read_car write_car",
    "cid": "Cid",
    "commit": "Commit parse_commit sign_commit",
    "document": "handle pds_url signing_key",
    "errors": (
        "CarInvalid CursorInFuture DirectoryUnavailable DocumentInvalid DrislInvalid FirehoseError "
        "FrameInvalid KeyInvalid LexiconInvalid LexiconUnknown ListenFailed MissingBlock MstInvalid "
        "PlcOperationInvalid PortInUse RepoInvalid SubscriptionError SubscriptionRefused "
        "SyntaxInvalid TraceInvalid UpstreamUnreachable WindowUnavailable WriteRefused XrpcError"
    ),
    "frames": (
        "AccountEvent Action CommitEvent ErrorFrame Frame FramePeek FrameType IdentityEvent "
        "InfoEvent RepoOp SyncEvent UnknownFrame encode_account encode_commit encode_error "
        "encode_identity encode_info encode_sync parse_frame peek"
    ),
    "identity": "DidDirectory DidResolver StaticDirectory",
    "jetstream": "Jetstream Proof ToldAccount ToldIdentity ToldRecord",
    "json_form": "from_json to_json",
    "keys": "Curve SigningKey VerifyingKey",
    "lexicon": "Lexicons",
    "mst": "Mst",
    "relays": "Relays",
    "repo": "CommitResult Repo RepoContents Write read_repo_car",
    "serve": "FrameServer",
    "subscribe": "Subscriber SubscriberState",
    "syntax": (
        "AtUri Did Handle Nsid RecordKey Tid parse_at_identifier parse_at_uri parse_datetime "
        "parse_did parse_handle parse_nsid parse_path parse_record_key parse_tid split_at_uri"
    ),
    "tid": "TidClock tid_micros",
    "trace": "TraceFrame TraceWriter read_trace",
    "verify": "FirstSight Judgement Policy RepoState ResolveDid Verdict VerifiedRecord Verifier",
    "xrpc": "RecordRef Session XrpcClient",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
