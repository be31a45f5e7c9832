"""What was missed: a repository read whole, compared with what was known, and said again as one commit.

A commit that carries all missed changes at once is one that the account itself could have made: its commit
object is signed, and undoing its ops gives the tree that was known. So whoever reads a healed stream checks
it like any other, and needs no archive.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from firehose.car import MAX_BLOCKS_BYTES, Car, read_car, write_car
from firehose.cid import Cid
from firehose.errors import FrameInvalid
from firehose.frames import MAX_COMMIT_OPS, Action, CommitEvent, RepoOp, encode_commit
from firehose.keys import VerifyingKey
from firehose.mst import Mst
from firehose.repo import RepoContents, check_repo
from firehose.syntax import Did, parse_path
from firehose.verify.accounts import RepoState
from firehose.verify.inversion import check_inversion
from firehose.verify.proof import VerifiedRecord

MAX_KNOWN_PATHS: Final = 200_000  # ours: of all accounts together, about 60 MB
MAX_ARCHIVE_BYTES: Final = 128 * 1024 * 1024  # ours: of one repository, in memory while it is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A whole repository that proved itself."""

    car: Car
    contents: RepoContents

    @property
    def state(self) -> RepoState:
        """Where the repository stands."""
        return RepoState(self.contents.rev, self.contents.data)


def open_archive(data: bytes, did: Did, key: VerifyingKey) -> Archive:
    """The repository in a CAR; every block, node, path, and the signature is checked.

    Raises: FirehoseError: it breaks a rule, or is not this account's.
    """
    car = read_car(data, max_bytes=MAX_ARCHIVE_BYTES)
    return Archive(car=car, contents=check_repo(car, key=key, did=did))


class KnownRecords:
    """Which record is where, of the accounts that were followed from their beginning, within a bound."""

    def __init__(self, *, max_paths: int = MAX_KNOWN_PATHS) -> None:
        """Keep `max_paths` paths; the account that changed least recently goes first."""
        self._tables: OrderedDict[Did, dict[str, Cid]] = OrderedDict()
        self._max_paths = max_paths
        self._paths = 0

    def __len__(self) -> int:
        return self._paths

    def table(self, did: Did) -> Mapping[str, Cid] | None:
        """All of an account's records, or None if they are not all known."""
        return self._tables.get(did)

    def follow(self, event: CommitEvent) -> None:
        """Take up a commit that was accepted."""
        if event.since is None:
            self._drop(event.did)
            self._tables[event.did] = {}
        table = self._tables.get(event.did)
        if table is None:
            return
        self._tables.move_to_end(event.did)
        before = len(table)
        for op in event.ops:
            if op.cid is None:
                table.pop(op.path, None)
            else:
                table[op.path] = op.cid
        self._paths += len(table) - before
        self._trim()

    def replace(self, did: Did, records: Iterable[tuple[str, Cid]]) -> None:
        """Take up a whole repository."""
        self._drop(did)
        self._tables[did] = table = dict(records)
        self._paths += len(table)
        self._trim()

    def _drop(self, did: Did) -> None:
        self._paths -= len(self._tables.pop(did, ()))

    def _trim(self) -> None:
        while self._paths > self._max_paths:
            self._paths -= len(self._tables.popitem(last=False)[1])


def differences(known: Mapping[str, Cid], contents: RepoContents) -> tuple[RepoOp, ...]:
    """The ops that lead from the records that were known to those that are there."""
    ops = []
    for path, (cid, _) in contents.records.items():
        before = known.get(path)
        if before is None:
            ops.append(RepoOp(action=Action.CREATE, path=path, cid=cid))
        elif before != cid:
            ops.append(RepoOp(action=Action.UPDATE, path=path, cid=cid, prev=before))
    for path in known:
        if path not in contents.records:
            ops.append(RepoOp(action=Action.DELETE, path=path, cid=None, prev=known[path]))
    return tuple(ops)


def missed_records(contents: RepoContents, ops: Sequence[RepoOp], seq: int) -> tuple[VerifiedRecord, ...]:
    """The records that `ops` are about, marked as not live; `seq` is of the frame that showed the gap."""
    records = []
    for op in ops:
        collection, rkey = parse_path(op.path)
        record = None if op.cid is None else contents.records[op.path][1]
        records.append(
            VerifiedRecord(
                did=contents.did,
                collection=collection,
                rkey=rkey,
                action=op.action,
                cid=op.cid,
                record=record,
                seq=seq,
                rev=contents.rev,
                live=False,
            )
        )
    return tuple(records)


def healing_commit(
    archive: Archive, known: RepoState, ops: Sequence[RepoOp], *, seq: int, time: str
) -> bytes | None:
    """One #commit frame that leads from `known` to the archive, or None if there is none.

    There is none if it would be larger than a frame may be, or if undoing `ops` does not give the tree that
    was known.
    """
    contents, blocks = archive.contents, archive.car.blocks
    if len(ops) > MAX_COMMIT_OPS:
        return None
    tree = Mst.load(contents.data, blocks.get)
    records = {op.cid: blocks[op.cid] for op in ops if op.cid is not None}
    base = {contents.commit: blocks[contents.commit], contents.data: tree.root_block}
    # Undoing many ops one after the other may touch a node that no single one needs: then all of them go in.
    for nodes in (tree.covering_proof(op.path for op in ops), tree.all_blocks()):
        car = write_car([contents.commit], base | nodes | records)
        if len(car) > MAX_BLOCKS_BYTES:
            return None
        try:
            check_inversion(Mst.load(contents.data, (base | nodes).get), ops, known.data)
        except FrameInvalid:
            continue
        return encode_commit(
            seq=seq,
            repo=contents.did,
            commit=contents.commit,
            rev=contents.rev,
            since=known.rev,
            time=time,
            blocks=car,
            ops=ops,
            prev_data=known.data,
        )
    return None
