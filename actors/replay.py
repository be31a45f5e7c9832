"""A recorded trace through the whole pipeline, with the trace's clock: each time the same ledger."""

import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from actors import records
from actors.errors import NotThere, TraceDamaged, WrongUse
from actors.faces import Report
from firehose import (
    AccountEvent,
    CommitEvent,
    IdentityEvent,
    LexiconInvalid,
    Lexicons,
    StaticDirectory,
    SyncEvent,
    SyntaxInvalid,
    TraceInvalid,
    VerifiedRecord,
)
from firehose.cid import Cid
from firehose.shards import VerifyShards
from firehose.syntax import Did, Tid, parse_did, parse_tid
from firehose.trace import TraceFrame, read_trace
from firehose.verify import Judgement, Policy, Verdict, Verifier
from leases import Ledger

CURSOR: Final = "replay"
Documents = dict[str, Any]  # DID → document, or a list of documents that a refresh goes through


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A frame of a trace and what was said of it."""

    recorded: TraceFrame
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAccount:
    """What was known of an account before a trace begins."""

    rev: Tid | None = None
    data: Cid | None = None
    active: bool = True


State = dict[Did, KnownAccount]


def load_documents(trace: Path, given: Path | None) -> Documents:
    """The DID documents that belong to a trace: those given, else the file `{trace}.did_docs.json` beside it.

    Raises:
        NotThere: there is no such file.
        WrongUse: it is not a JSON object.
    """
    path = given or trace.with_suffix(".did_docs.json")
    if not path.is_file():
        raise NotThere(
            f"there are no DID documents for {trace.name}, and no signature can be checked without: "
            "name them with --did-docs"
        )
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WrongUse(f"{path} is not JSON ({error}): it has to be an object, DID to document") from None
    if not isinstance(documents, dict):
        raise WrongUse(f"{path} is not a JSON object: it has to be DID to document")
    return documents


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec:
    """How a trace is judged, where the defaults do not fit."""

    now_ms: int | None = None  # epoch milliseconds; None: when each frame was received
    policy: Policy = Policy.STRICT
    state: State = field(default_factory=dict)  # what was known of accounts before the trace begins
    processes: int = 1  # that verify, each its share of the accounts; the verdicts are the same


async def judge_trace(
    trace: Path, documents: Documents, spec: JudgeSpec | None = None
) -> AsyncIterator[Judged]:
    """Every frame with its verdict.

    Raises:
        TraceDamaged: the file is no whole trace; the frames before the damage have been judged.
    """
    spec = spec or JudgeSpec()
    if spec.processes > 1:
        for judged in _judge_in_shards(trace, documents, spec):
            yield judged
        return
    directory, verifier = StaticDirectory(documents), Verifier(policy=spec.policy)
    for did, known in spec.state.items():
        verifier.restore(did, rev=known.rev, data=known.data, active=known.active)
    for recorded in _whole_frames(trace):
        at = recorded.received_us // 1000 if spec.now_ms is None else spec.now_ms
        judgement = verifier.receive(recorded.frame, at)
        while judgement.needs:
            for need in judgement.needs:
                if need.refresh:
                    directory.refresh(need.did)
                verifier.learn(need.did, await directory.resolve(need.did))
            judgement = verifier.receive(recorded.frame, at)
        yield Judged(recorded=recorded, judgement=judgement)


def _judge_in_shards(trace: Path, documents: Documents, spec: JudgeSpec) -> Iterator[Judged]:
    positions: Counter[str] = Counter()

    def resolve(did: str, is_refresh: bool) -> Any:
        known = documents.get(did) or []
        versions = known if isinstance(known, list) else [known]
        positions[did] = min(positions[did] + is_refresh, max(len(versions) - 1, 0))
        return versions[positions[did]] if versions else None

    waiting: deque[TraceFrame] = deque()

    def frames() -> Iterator[tuple[int, bytes]]:
        for recorded in _whole_frames(trace):
            waiting.append(recorded)
            at = recorded.received_us // 1000 if spec.now_ms is None else spec.now_ms
            yield at, recorded.frame

    with VerifyShards(spec.processes, resolve, policy=spec.policy) as shards:
        for did, known in spec.state.items():
            shards.restore(did, rev=known.rev, data=known.data, active=known.active)
        for judged in shards.judge(frames()):
            yield Judged(recorded=waiting.popleft(), judgement=judged.judgement())


def load_state(path: Path) -> State:
    """What was known of accounts: a JSON object, DID to `{rev, data, active}`.

    Raises: NotThere: there is no such file. WrongUse: it says something else.
    """
    if not path.is_file():
        raise NotThere(f"there is no file {path}: --state names a JSON object, DID to {{rev, data, active}}")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {parse_did(did): _known(entry) for did, entry in entries.items()}
    except (ValueError, TypeError, AttributeError, SyntaxInvalid) as error:
        raise WrongUse(
            f"{path} is no state ({error}): it has to be an object, DID to {{rev, data, active}}"
        ) from None


def _known(entry: dict[str, Any]) -> KnownAccount:
    rev, data, active = entry.get("rev"), entry.get("data"), entry.get("active", True)
    if not isinstance(active, bool):
        raise TypeError(f"active is {active!r:.20}")
    return KnownAccount(
        rev=None if rev is None else parse_tid(rev),
        data=None if data is None else Cid.parse(data),
        active=active,
    )


def _whole_frames(trace: Path) -> Iterator[TraceFrame]:
    count = 0
    try:
        for recorded in read_trace(trace):
            count += 1
            yield recorded
    except TraceInvalid as error:
        remedy = (
            "copy it again, or record on to it, which cuts the torn end off" if count else "name a .fht file"
        )
        raise TraceDamaged(f"{error} ({count} whole frames before it): {remedy}") from None


async def replay(
    trace: Path,
    documents: Documents,
    ledger_path: Path,
    lexicons: Path,
    on_progress: Callable[[int], None],
) -> Report:
    """Run a trace into a ledger, with the trace's clock.

    Accounts follow #account, #identity and commits; leases follow the supervisor's `lease.acquired` and the
    endings of each environment's authority. Every hundredth frame `on_progress` gets the count.

    Returns:
        `{frames, verdicts{verdict: n}, rejected, leases{…}, accounts, ledger_digest}`.
    """
    now = [0]
    verdicts: Counter[str] = Counter()
    frames = 0
    with Ledger(ledger_path, clock=lambda: now[0]) as ledger:
        follower = LedgerFollower(ledger, Lexicons.load(lexicons))
        async for judged in judge_trace(trace, documents):
            now[0] = judged.recorded.received_us // 1000
            frames += 1
            assert judged.judgement.verdict is not None
            verdicts[judged.judgement.verdict] += 1
            follower.follow(judged.judgement)
            if frames % 100 == 0:
                on_progress(frames)
        statuses = Counter(str(lease.status) for lease in ledger.list())
        return {
            "trace": str(trace),
            "frames": frames,
            "verdicts": dict(sorted(verdicts.items())),
            "rejected": sum(verdicts[verdict] for verdict in (Verdict.REJECT, Verdict.FATAL)),
            "leases": dict(sorted(statuses.items())),
            "accounts": len(ledger.accounts()),
            "ledger_digest": ledger.digest(),
        }


class LedgerFollower:
    """Writes into a ledger what the verified firehose says."""

    def __init__(self, ledger: Ledger, lexicons: Lexicons) -> None:
        self._ledger, self._lexicons = ledger, lexicons
        self._supervisors: dict[str, str] = {}  # lease id → who said that it began

    def follow(self, judgement: Judgement) -> None:
        """Take up one judged frame, in one transaction with its position."""
        if judgement.verdict not in (Verdict.ACCEPT, Verdict.NOOP):
            return
        event = judgement.event
        with self._ledger.atomic():
            match event:
                case AccountEvent():
                    self._ledger.upsert_account(
                        event.did, active=event.active, status=event.status, seq=event.seq
                    )
                case IdentityEvent():
                    self._ledger.upsert_account(event.did, handle=event.handle, seq=event.seq)
                case CommitEvent() | SyncEvent():
                    self._ledger.upsert_account(event.did, rev=event.rev, seq=event.seq)
                case _:
                    return
            for record in judgement.records:
                self._take(record)
            self._ledger.save_cursor(CURSOR, event.seq)

    def _take(self, record: VerifiedRecord) -> None:
        collection, fields = record.collection, record.record
        if fields is None or collection not in (
            *records.ENDINGS,
            records.LEASE_ACQUIRED,
            records.LEASE_ENDED,
        ):
            return
        try:
            self._lexicons.validate(collection, fields)
        except LexiconInvalid:
            self._ledger.count("invalid_record")
            return
        if collection == records.LEASE_ACQUIRED:
            self._began(record.did, fields)
        elif collection == records.LEASE_ENDED:
            self._ended(record.did, fields)
        else:
            self._ledger.expire_by_condition(
                fields["environment"],
                records.condition_of(collection),
                author_did=record.did,
                subject_did=fields.get("subject"),
                event=f"at://{record.did}/{collection}/{record.rkey}",
            )

    def _began(self, supervisor_did: str, fields: dict[str, Any]) -> None:
        lease = self._ledger.acquire(
            fields["subject"],
            fields["environment"],
            fields["environmentType"],
            authority_did=fields["authority"],
            ttl_ms=fields["ttlMs"],
            expiry_conditions=fields["conditions"],
            tier=fields["tier"],
        ).lease
        self._supervisors.setdefault(lease.id, supervisor_did)

    def _ended(self, supervisor_did: str, fields: dict[str, Any]) -> None:
        lease_id = f"{fields['subject']}::{fields['environment']}"
        if self._supervisors.get(lease_id) != supervisor_did:
            self._ledger.count("lease_end_from_stranger")
            return
        self._ledger.expire(lease_id, fields["condition"])  # changes nothing if its condition was heard
        self._ledger.destroyed(lease_id)
