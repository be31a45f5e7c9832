"""A repository that we hold the key of: writes in, signed commits out; others' repositories, read whole.

Source: atproto.com/specs/repository and /specs/sync. A `Repo` is a value: `apply` changes nothing and
returns the next one, so a store that fails to save a commit simply keeps the old one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from firehose.car import MAX_BLOCKS_BYTES, Car, read_car, write_car
from firehose.cid import Cid
from firehose.commit import parse_commit, sign_commit
from firehose.drisl import decode, encode
from firehose.errors import DrislInvalid, MissingBlock, RepoInvalid, WriteRefused
from firehose.frames import MAX_COMMIT_OPS, Action, RepoOp
from firehose.json_form import check_record
from firehose.keys import SigningKey, VerifyingKey
from firehose.mst import GetBlock, Mst
from firehose.syntax import Did, Nsid, RecordKey, Tid, parse_nsid, parse_path, parse_record_key
from firehose.tid import TidClock

MAX_RECORD_BYTES: Final = 1_000_000  # specs/sync, "#commit": each record block
MAX_REPO_BYTES: Final = 512 * 1024 * 1024  # ours: of a whole repository that is read into memory

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A wish to change one record; `record` is None for a delete."""

    action: Action
    collection: Nsid
    rkey: RecordKey
    record: Record | None = None

    @property
    def path(self) -> str:
        """Where in the repository: collection/rkey."""
        return f"{self.collection}/{self.rkey}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A commit that was made: everything a store must save, and everything a #commit frame says."""

    repo: "Repo"  # the repository after it
    commit: Cid
    rev: Tid
    since: Tid | None  # the rev before; None in a first commit
    data: Cid
    prev_data: Cid | None  # the tree's root before; None in a first commit
    ops: tuple[RepoOp, ...]
    new_blocks: dict[Cid, bytes]  # commit, tree nodes and records that the store may not have yet
    car: bytes  # for the frame: commit, records, and the nodes that prove and undo every op
    records: dict[str, tuple[Cid, Record]]  # by path: what was created or updated
    commit_block: bytes

    @property
    def sync_car(self) -> bytes:
        """For a #sync frame: the commit alone."""
        return write_car([self.commit], {self.commit: self.commit_block})


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoContents:
    """A whole repository of anybody's, every block checked against its hash and every node too."""

    did: Did
    rev: Tid
    data: Cid
    commit: Cid
    records: dict[str, tuple[Cid, Record]]  # by path


class Repo:
    """One account's repository at one commit."""

    __slots__ = ("_get_block", "_key", "_tids", "_tree", "commit", "did", "rev")

    def __init__(
        self,
        *,
        did: Did,
        key: SigningKey,
        tids: TidClock,
        get_block: GetBlock,
        tree: Mst,
        commit: Cid | None,
        rev: Tid | None,
    ) -> None:
        """Not for callers: use `create` or `load`."""
        self.did = did
        self.commit = commit  # None only before the first commit
        self.rev = rev
        self._key = key
        self._tids = tids
        self._tree = tree
        self._get_block = get_block

    @classmethod
    def create(
        cls,
        did: Did,
        key: SigningKey,
        tids: TidClock,
        get_block: GetBlock | None = None,
        writes: Sequence[Write] = (),
    ) -> CommitResult:
        """A new repository: its first commit, and in `.repo` the repository.

        Args:
            did: the account.
            key: signs every commit.
            tids: where revs come from.
            get_block: the store that the results' `new_blocks` are saved in; needed to read records.
            writes: what the first commit holds, usually nothing.

        Raises: WriteRefused: as `apply`.
        """
        blocks = get_block or (lambda cid: None)
        tree = Mst.empty()
        empty = cls(did=did, key=key, tids=tids, get_block=blocks, tree=tree, commit=None, rev=None)
        return empty.apply(writes)

    @classmethod
    def load(cls, head: Cid, get_block: GetBlock, *, key: SigningKey, tids: TidClock) -> "Repo":
        """The repository at the commit `head`; its tree is read from the store as it is needed.

        Raises: MissingBlock: the store does not have the commit. RepoInvalid: it is no commit.
        """
        commit = parse_commit(_block(get_block, head))
        return cls(
            did=commit.did,
            key=key,
            tids=tids,
            get_block=get_block,
            tree=Mst.load(commit.data, get_block),
            commit=head,
            rev=commit.rev,
        )

    @property
    def data(self) -> Cid:
        """The root of the tree."""
        return self._tree.root

    def get(self, path: str) -> Cid | None:
        """The CID of the record at `collection/rkey`, or None."""
        return self._tree.get(path)

    def record(self, path: str) -> Record | None:
        """The record at `collection/rkey`, or None.

        Raises: MissingBlock: the store has lost it.
        """
        cid = self._tree.get(path)
        return None if cid is None else _record(cid, _block(self._get_block, cid))

    def items(self) -> Iterator[tuple[str, Cid]]:
        """Every path and its record's CID, in order."""
        return self._tree.items()

    def car(self) -> bytes:
        """The whole repository as a CAR: the commit, every node, every record.

        Raises: MissingBlock: the store has lost one.
        """
        if self.commit is None:
            raise RepoInvalid("no-commit", "a repository has no archive before its first commit")
        blocks = {self.commit: _block(self._get_block, self.commit), **self._tree.all_blocks()}
        for _, cid in self._tree.items():
            blocks[cid] = _block(self._get_block, cid)
        return write_car([self.commit], blocks)

    def apply(self, writes: Sequence[Write]) -> CommitResult:
        """Make one commit of `writes`; this repository stays as it is, the next one is in the result.

        Raises: WriteRefused: a write does not fit: a create of what is there, an update or delete of what is
            not, two writes to one path, too many or too large ones, or a record that cannot be stored. None
            of them is applied.
        """
        if len(writes) > MAX_COMMIT_OPS:
            raise WriteRefused("*", f"{len(writes)} writes in one commit, and {MAX_COMMIT_OPS} are allowed")
        tree = self._tree
        ops: dict[str, RepoOp] = {}
        records: dict[str, tuple[Cid, Record]] = {}
        blocks: dict[Cid, bytes] = {}
        for write in writes:
            op, record_block = _plan(write, tree)
            if op.path in ops:
                raise WriteRefused(op.path, "two writes in one commit")
            if op.cid is None:
                tree = tree.delete(op.path)
            else:
                tree = tree.put(op.path, op.cid)
                blocks[op.cid] = record_block
                records[op.path] = (op.cid, write.record or {})
            ops[op.path] = op
        return self._seal(tree, tuple(ops.values()), records, blocks)

    def _seal(
        self,
        tree: Mst,
        ops: tuple[RepoOp, ...],
        records: dict[str, tuple[Cid, Record]],
        record_blocks: dict[Cid, bytes],
    ) -> CommitResult:
        rev, data = self._tids.next(self.rev), tree.root
        _, commit_block = sign_commit(self._key, did=self.did, rev=rev, data=data)
        commit = Cid.for_dag_cbor(commit_block)
        new_blocks = {commit: commit_block, **tree.new_blocks(), **record_blocks}
        proof = tree.covering_proof(op.path for op in ops)
        car = write_car([commit], {**new_blocks, data: tree.root_block, **proof})
        if len(car) > MAX_BLOCKS_BYTES:
            raise WriteRefused("*", f"a commit of {len(car)} bytes is too large for one event")
        tree.settle()
        following = Repo(
            did=self.did,
            key=self._key,
            tids=self._tids,
            get_block=self._get_block,
            tree=tree,
            commit=commit,
            rev=rev,
        )
        return CommitResult(
            repo=following,
            commit=commit,
            rev=rev,
            since=self.rev,
            data=data,
            prev_data=None if self.commit is None else self.data,
            ops=ops,
            new_blocks=new_blocks,
            car=car,
            records=records,
            commit_block=commit_block,
        )


def read_repo_car(
    data: bytes, *, key: VerifyingKey | None = None, max_bytes: int = MAX_REPO_BYTES
) -> RepoContents:
    """The repository in a CAR, read whole: every hash, every node and every path is checked.

    Args:
        data: the archive, as `com.atproto.sync.getRepo` returns it.
        key: if given, the commit must be signed by it.
        max_bytes: a longer archive is refused.

    Raises:
        CarInvalid, MstInvalid, DrislInvalid, SyntaxInvalid: a part of it breaks a rule.
        MissingBlock: a node or a record is not in it.
        RepoInvalid: the commit breaks a rule, is of an older version, or is not signed by `key`.
    """
    return check_repo(read_car(data, max_bytes=max_bytes), key=key)


def check_repo(car: Car, *, key: VerifyingKey | None = None, did: Did | None = None) -> RepoContents:
    """Like `read_repo_car`, of an archive whose blocks were hashed; of the account if one is given.

    Raises: as `read_repo_car`.
    """
    commit = parse_commit(_block(car.blocks.get, car.root))
    if did is not None and commit.did != did:
        raise RepoInvalid("commit-did", f"the commit is {commit.did}'s")
    if key is not None and not commit.is_signed_by(key):
        raise RepoInvalid("signature", f"not of {key.did_key}")
    records = {}
    for path, cid in Mst.load(commit.data, car.blocks.get).items():
        parse_path(path)
        records[path] = (cid, _record(cid, _block(car.blocks.get, cid)))
    return RepoContents(did=commit.did, rev=commit.rev, data=commit.data, commit=car.root, records=records)


def _plan(write: Write, tree: Mst) -> tuple[RepoOp, bytes]:
    """What one write does to the tree, and the record's block (empty for a delete)."""
    path = f"{parse_nsid(write.collection)}/{parse_record_key(write.rkey)}"
    prev = tree.get(path)
    if write.action is Action.CREATE and prev is not None:
        raise WriteRefused(path, "there is a record already")
    if write.action is not Action.CREATE and prev is None:
        raise WriteRefused(path, f"there is no record to {write.action}")
    if write.action is Action.DELETE:
        return RepoOp(action=write.action, path=path, cid=None, prev=prev), b""
    try:
        check_record(write.record)
        block = encode(write.record)
    except DrislInvalid as error:
        raise WriteRefused(path, f"the record cannot be stored: {error}") from None
    if not isinstance(write.record, dict) or len(block) > MAX_RECORD_BYTES:
        raise WriteRefused(path, f"not a record of at most {MAX_RECORD_BYTES} bytes")
    return RepoOp(action=write.action, path=path, cid=Cid.for_dag_cbor(block), prev=prev), block


def _block(get_block: GetBlock, cid: Cid) -> bytes:
    try:
        block = get_block(cid)
    except KeyError:
        block = None
    if block is None:
        raise MissingBlock(str(cid))
    return block


def _record(cid: Cid, block: bytes) -> Record:
    value = decode(block)
    if not isinstance(value, dict):
        raise RepoInvalid("record-form", f"{cid} is no map")
    return value
