"""Repos of the embedded network, hot in memory; each commit is saved together with its event."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from firehose import drisl
from firehose.car import write_car
from firehose.cid import Cid
from firehose.errors import WriteRefused
from firehose.frames import encode_commit, encode_sync
from firehose.json_form import to_json
from firehose.mst import GetBlock, Mst
from firehose.network.accounts import Account, Accounts
from firehose.network.blobs import blob_references
from firehose.network.refusals import Refusal, invalid_request
from firehose.network.sequencer import Batch, Sequencer
from firehose.network.store import Store
from firehose.repo import CommitResult, Repo, Write
from firehose.syntax import Tid
from firehose.tid import TidClock

MAX_HOT_REPOS: Final = 1024  # kept parsed in memory; the least recently written goes first
SWEEP_COMMITS: Final = 1000  # commits of one repo between two deletions of what they left behind


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record in its JSON form."""

    uri: str
    cid: str
    value: Any

    def to_json(self) -> dict[str, Any]:
        """As getRecord and listRecords give it."""
        return {"uri": self.uri, "cid": self.cid, "value": self.value}


class Repos:
    """Writes and reads of all repos; every write is one transaction with its #commit event."""

    def __init__(
        self,
        store: Store,
        accounts: Accounts,
        sequencer: Sequencer,
        *,
        clock: Callable[[], int],
        tids: TidClock,
    ) -> None:
        """Keep repos in `store`; `clock` gives epoch milliseconds for the events, `tids` the revs."""
        self._store = store
        self._accounts = accounts
        self._sequencer = sequencer
        self._clock = clock
        self._tids = tids
        self._hot: OrderedDict[str, Repo] = OrderedDict()
        self._unswept: Counter[str] = Counter()  # commits since the last sweep, by DID

    def create(self, account: Account, batch: Batch) -> CommitResult:
        """The first, empty commit of a new account and its event, in the caller's transaction."""
        result = Repo.create(account.did, account.signing_key, self._tids, self._get_block(account.did))
        self._save(result, batch)
        return result

    def announce(self, account: Account, batch: Batch) -> None:
        """Say where a repo stands with a #sync event, in the caller's transaction."""
        if account.head is None or account.rev is None:
            return
        block = self._get_block(account.did)(account.head)
        blocks = write_car([account.head], {account.head: block or b""})
        rev, time = str(account.rev), self._now()
        batch.add(
            account.did, lambda seq: encode_sync(seq=seq, did=account.did, rev=rev, time=time, blocks=blocks)
        )

    def open(self, account: Account) -> Repo:
        """The repo at its latest commit."""
        repo = self._hot.get(account.did)
        if repo is None:
            if account.head is None:
                raise Refusal("RepoNotFound", f"{account.did} has no repo")
            repo = Repo.load(
                account.head, self._get_block(account.did), key=account.signing_key, tids=self._tids
            )
            self._keep(repo)
        self._hot.move_to_end(account.did)
        return repo

    def write(
        self, account: Account, writes: Sequence[Write], swap_commit: str | None = None
    ) -> CommitResult:
        """Make one commit, save it and announce it.

        Raises:
            Refusal: InvalidSwap, or InvalidRequest when a write does not fit.
            StoreUnavailable: the disk failed; nothing was written.
        """
        repo = self.open(account)
        if swap_commit is not None and swap_commit != str(repo.commit):
            raise Refusal("InvalidSwap", f"the present commit is {repo.commit}")
        try:
            result = repo.apply(writes)
        except WriteRefused as error:
            raise invalid_request(str(error)) from None
        try:
            with self._sequencer.transaction() as batch:
                self._save(result, batch)
        except BaseException:
            self.forget(account.did)
            raise
        self._unswept[account.did] += 1
        if self._unswept[account.did] >= SWEEP_COMMITS:
            self.sweep(self._accounts.get(account.did))
        return result

    def sweep(self, account: Account) -> int:
        """Delete the blocks that the latest commit no longer reaches: old nodes, old records; how many."""
        repo = self.open(account)
        tree = Mst.load(repo.data, self._get_block(account.did))
        live = {cid.bytes for cid in tree.all_blocks()} | {cid.bytes for _, cid in tree.items()}
        rows = self._store.rows("SELECT cid FROM blocks WHERE did = ?", account.did)
        head = b"" if repo.commit is None else repo.commit.bytes
        dead = [(account.did, row[0]) for row in rows if row[0] not in live and row[0] != head]
        with self._store.transaction():
            self._store.execute_many("DELETE FROM blocks WHERE did = ? AND cid = ?", dead)
        self._unswept[account.did] = 0
        return len(dead)

    def forget(self, did: str) -> None:
        """Drop what is in memory of a repo: the transaction that changed it has failed."""
        self._hot.pop(did, None)
        self._accounts.forget(did)

    def next_key(self) -> Tid:
        """A record key for a new record: later than every one before."""
        return self._tids.next()

    def current_cid(self, account: Account, path: str) -> Cid | None:
        """The CID of the record at collection/rkey, None if there is none."""
        return self.open(account).get(path)

    def get_record(self, did: str, collection: str, rkey: str) -> StoredRecord | None:
        """One record, None if there is none."""
        rows = self._records(did, "collection = ? AND rkey = ?", (collection, rkey), "LIMIT 1")
        return rows[0] if rows else None

    def list_records(
        self, did: str, collection: str, *, limit: int, cursor: str | None, is_reverse: bool
    ) -> list[StoredRecord]:
        """At most `limit` records, the newest key first unless `is_reverse`."""
        condition, values = "collection = ?", [collection]
        if cursor:
            condition += " AND rkey > ?" if is_reverse else " AND rkey < ?"
            values.append(cursor)
        order = f"ORDER BY rkey {'ASC' if is_reverse else 'DESC'} LIMIT {limit}"
        return self._records(did, condition, values, order)

    def collections(self, did: str) -> list[str]:
        """The collections that have a record."""
        rows = self._store.rows(
            "SELECT DISTINCT collection FROM records WHERE did = ? ORDER BY collection", did
        )
        return [row[0] for row in rows]

    def export(self, account: Account) -> bytes:
        """The whole repo as a CAR."""
        return self.open(account).car()

    def _records(self, did: str, condition: str, values: Sequence[str], order: str) -> list[StoredRecord]:
        rows = self._store.rows(
            "SELECT collection, rkey, cid, block FROM records JOIN blocks USING (did, cid) "
            f"WHERE did = ? AND {condition} {order}",
            did,
            *values,
        )
        return [
            StoredRecord(
                uri=f"at://{did}/{collection}/{rkey}",
                cid=str(Cid.from_bytes(cid)),
                value=to_json(drisl.decode(block)),
            )
            for collection, rkey, cid, block in rows
        ]

    def _save(self, result: CommitResult, batch: Batch) -> None:
        did = result.repo.did
        self._store.execute_many(
            "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, ?)",
            [(did, cid.bytes, result.rev, block) for cid, block in result.new_blocks.items()],
        )
        for op in result.ops:
            collection, _, rkey = op.path.partition("/")
            if op.cid is None:
                self._store.execute(
                    "DELETE FROM records WHERE did = ? AND collection = ? AND rkey = ?", did, collection, rkey
                )
            else:
                self._store.execute(
                    "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", did, collection, rkey, op.cid.bytes
                )
        self._accounts.set_head(did, result.commit, result.rev)
        time = self._now()
        batch.add(did, lambda seq: _commit_frame(seq, result, time))
        self._keep(result.repo)

    def _keep(self, repo: Repo) -> None:
        self._hot[repo.did] = repo
        self._hot.move_to_end(repo.did)
        while len(self._hot) > MAX_HOT_REPOS:
            self._hot.popitem(last=False)

    def _get_block(self, did: str) -> GetBlock:
        def get_block(cid: Cid) -> bytes | None:
            row = self._store.row("SELECT block FROM blocks WHERE did = ? AND cid = ?", did, cid.bytes)
            return None if row is None else bytes(row[0])

        return get_block

    def _now(self) -> str:
        return rfc3339(self._clock())


def rfc3339(epoch_ms: int) -> str:
    """A moment as events carry it: UTC, milliseconds, Z."""
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{epoch_ms % 1000:03d}Z"


def _commit_frame(seq: int, result: CommitResult, time: str) -> bytes:
    blobs: Mapping[str, None] = dict.fromkeys(
        reference for _, record in result.records.values() for reference in blob_references(record)
    )
    return encode_commit(
        seq=seq,
        repo=result.repo.did,
        commit=result.commit,
        rev=result.rev,
        since=result.since,
        time=time,
        blocks=result.car,
        ops=result.ops,
        prev_data=result.prev_data,
        blobs=[Cid.parse(reference) for reference in blobs],
    )
