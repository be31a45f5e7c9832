"""What a #commit or #sync must prove on its own: pure checks of one event's blocks.

Source: atproto.com/specs/sync, "Commit Validation". Each check raises `FrameInvalid` with a stable word for
the rule that was broken; nothing here knows of accounts, keys in documents, or of any other event.
"""

from dataclasses import dataclass
from typing import Any, Final

from firehose import compiled
from firehose.car import split_car
from firehose.cid import Cid
from firehose.commit import Commit, parse_commit
from firehose.drisl import decode, is_sparse
from firehose.errors import (
    CarInvalid,
    DrislInvalid,
    FrameInvalid,
    MissingBlock,
    MstInvalid,
    RepoInvalid,
    SyntaxInvalid,
)
from firehose.frames import Action, CommitEvent, RepoOp, SyncEvent
from firehose.mst import Mst
from firehose.repo import MAX_RECORD_BYTES
from firehose.syntax import Did, Nsid, RecordKey, Tid, parse_path
from firehose.verify.inversion import check_inversion
from firehose.verify.splice import undo_create, undo_ops, undo_update

REVISION_TOLERANCE_MS: Final = 300_000  # how far ahead of our clock a rev may be; specs/sync: "a few minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRecord:
    """One record's change, signed by the account."""

    did: Did
    collection: Nsid
    rkey: RecordKey
    action: Action
    cid: Cid | None  # None for a delete
    record: dict[str, Any] | None
    seq: int
    rev: Tid
    live: bool = True  # False: found in the whole repository after events were missed (`firehose.resync`)

    @property
    def uri(self) -> str:
        """at://did/collection/rkey"""
        return f"at://{self.did}/{self.collection}/{self.rkey}"


def open_commit(event: CommitEvent | SyncEvent) -> tuple[Commit, dict[bytes, bytes]]:
    """The commit that an event carries, and all of its blocks by their CID's bytes: each hashed.

    The rev of a #sync is not compared: after an import @atproto/pds 0.4 names a newer one than that of the
    commit it sends, and only the signed one counts anyway.

    Raises: FrameInvalid: the archive or the commit breaks a rule, or they do not say what the event says.
    """
    try:
        roots, blocks = split_car(event.blocks)
    except CarInvalid as error:
        raise FrameInvalid(f"car-{error.reason}", str(error)) from None
    root = roots[0]
    if isinstance(event, CommitEvent) and root != event.commit.bytes:
        raise FrameInvalid("commit-root", "the archive's root is not the commit that the event names")
    block = blocks.get(root)
    if block is None:
        raise FrameInvalid("commit-missing", "the commit is not in the archive")
    try:
        commit = parse_commit(block)
    except RepoInvalid as error:
        raise FrameInvalid(error.reason, error.detail) from None
    if commit.did != event.did:
        raise FrameInvalid("commit-did", f"the commit is {commit.did}'s")
    if commit.rev != event.rev and isinstance(event, CommitEvent):
        raise FrameInvalid("commit-rev", f"the commit's rev is {commit.rev}")
    return commit, blocks


def check_ops(event: CommitEvent) -> list[tuple[Nsid, RecordKey]]:
    """The collection and key of every op; their form is checked, not what they claim.

    Raises: FrameInvalid: an op is malformed, or two change the same path.
    """
    if len({op.path for op in event.ops}) != len(event.ops):
        raise FrameInvalid("op-duplicate", "two ops change the same path")
    places = []
    for op in event.ops:
        if (op.cid is None) is not (op.action is Action.DELETE):
            raise FrameInvalid("op-cid", f"{op.action} {op.path}")
        if op.prev is not None and op.action is Action.CREATE:
            raise FrameInvalid("op-prev", f"a create of {op.path} that had something before")
        try:
            places.append(parse_path(op.path))
        except SyntaxInvalid as error:
            raise FrameInvalid("op-path", str(error)) from None
    return places


def check_tree(
    event: CommitEvent,
    commit: Commit,
    blocks: dict[bytes, bytes],
    *,
    is_chained: bool = False,
    is_lenient: bool = False,
) -> bool:
    """Check that the tree that the commit signs says of every op's path what the op says.

    Where the event says what was before, undoing the ops must give just that. Older servers do not say it.

    Args:
        event: the #commit.
        commit: what it carries.
        blocks: its blocks, hashed.
        is_chained: the tree that it says was before is one that we know: then only what is rewritten has to
            be checked.
        is_lenient: let an undoing pass that gives something else or lacks a node.

    Returns: False if the event says what was before, and it is not proven. Raises: FrameInvalid: the tree
    says something else, a node is missing, or one breaks a rule.
    """
    if event.prev_data is not None:
        root, before = commit.data.bytes, event.prev_data.bytes
        if undo_ops(root, blocks, event.ops) == before or (is_chained and _is_spliced(event, commit, blocks)):
            return True
    tree = Mst.load_raw(commit.data.bytes, blocks.get)
    if event.prev_data is not None:
        try:
            check_inversion(tree, event.ops, event.prev_data)
            return True
        except FrameInvalid as error:
            if not is_lenient or error.reason not in ("inversion", "mst-missing", "op-prev"):
                raise
    _check_paths(tree, event)
    return event.prev_data is None


def _is_spliced(event: CommitEvent, commit: Commit, blocks: dict[bytes, bytes]) -> bool:
    """Whether undoing the one op, the fast way, gives the tree before; False says nothing."""
    if len(event.ops) != 1 or event.prev_data is None:
        return False
    op = event.ops[0]
    path = op.path.encode()
    before = None
    if op.cid is not None:
        if op.action is Action.CREATE:
            before = undo_create(commit.data.bytes, blocks, path, op.cid.bytes)
        elif op.prev is not None:
            before = undo_update(commit.data.bytes, blocks, path, op.cid.bytes, op.prev.bytes)
    return before == event.prev_data.bytes


def _check_paths(tree: Mst, event: CommitEvent) -> None:
    try:
        for op in event.ops:
            if tree.get_raw(op.path.encode()) != (None if op.cid is None else op.cid.bytes):
                raise FrameInvalid("op-tree", f"the tree says otherwise of {op.path}")
    except MissingBlock as error:
        raise FrameInvalid("mst-missing", str(error)) from None
    except MstInvalid as error:
        raise FrameInvalid(f"mst-{error.reason}", str(error)) from None


def read_records(
    event: CommitEvent, places: list[tuple[Nsid, RecordKey]], blocks: dict[bytes, bytes]
) -> tuple[VerifiedRecord, ...]:
    """The records of a commit that was checked; `places` is what `check_ops` returned.

    Raises: FrameInvalid: a record is missing, too large, or no record.
    """
    values = [None if op.cid is None else _record(op, op.cid, blocks) for op in event.ops]
    return records_of(event, places, values)


def records_of(
    event: CommitEvent, places: list[tuple[Nsid, RecordKey]], values: list[dict[str, Any] | None]
) -> tuple[VerifiedRecord, ...]:
    """The records of a commit, in the order of its ops."""
    did, seq, rev = event.repo, event.seq, event.rev
    return tuple(
        [
            compiled.make(VerifiedRecord, did, collection, rkey, op.action, op.cid, value, seq, rev, True)
            for op, (collection, rkey), value in zip(event.ops, places, values, strict=True)
        ]
    )


def _record(op: RepoOp, cid: Cid, blocks: dict[bytes, bytes]) -> dict[str, Any]:
    block = blocks.get(cid.bytes)
    if block is None:
        raise FrameInvalid("record-missing", op.path)
    if len(block) > MAX_RECORD_BYTES:
        raise FrameInvalid("record-size", f"{op.path}: {len(block)} bytes")
    if not is_sparse(block):
        raise FrameInvalid("record-values", f"{op.path}: more values than bytes for them")
    try:
        value = decode(block)
    except DrislInvalid as error:
        raise FrameInvalid("record-form", f"{op.path}: {error}") from None
    if not isinstance(value, dict):
        raise FrameInvalid("record-form", f"{op.path}: not a map")
    return value
