"""A recorded trace through the whole pipeline, with the trace's clock: each time the same ledger."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
    SyncEvent,
    SyntaxInvalid,
    TraceInvalid,
    VerifiedRecord,
)
from firehose.cid import Cid
from firehose.frames import route
from firehose.notes import GivenDocuments, Notes, RecordedDocuments, delivered, load_notes
from firehose.provers import Provers
from firehose.syntax import Did, Tid, parse_did, parse_tid
from firehose.trace import TraceFrame, read_trace
from firehose.verify import AccountState, Judgement, Policy, RepoState, Verdict, Verifier
from leases import Ledger

CURSOR: Final = "replay"
TURN_FRAMES: Final = 64  # between two turns of the event loop, so that Ctrl-C is heard
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where in a trace to begin."""

    seq: int | None = None  # with the first frame of this seq or a higher one
    received_us: int | None = None  # with the first frame that came at this time or later

    @property
    def where(self) -> dict[str, Any]:
        """As `firehose.trace.open_trace` takes it; empty: from the beginning."""
        after_seq = None if self.seq is None else self.seq - 1
        given = {"after_seq": after_seq, "from_us": self.received_us}
        return {name: value for name, value in given.items() if value is not None}

    def __str__(self) -> str:
        if self.seq is not None:
            return f"seq {self.seq}"
        when = datetime.fromtimestamp((self.received_us or 0) / 1e6, tz=UTC)
        return when.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A trace and what its signatures are checked with."""

    trace: Path
    notes: Notes
    documents: Documents | None  # None: those that the tap noted when it recorded the trace

    def answers(self) -> GivenDocuments | RecordedDocuments:
        """The documents, from the beginning."""
        return RecordedDocuments(self.notes) if self.documents is None else GivenDocuments(self.documents)


def load_material(trace: Path, given: Path | None) -> Material:
    """A trace with its documents: those given, else those in `{trace}.did_docs.json` beside it, else those
    that were noted in it.

    Raises:
        NotThere: there is no such file, or there are no documents.
        WrongUse: the documents are not a JSON object.
        TraceDamaged: a note in the trace is malformed.
    """
    if not trace.exists():
        raise NotThere(f"there is no trace {trace}: name an .fht file or a directory of segments")
    try:
        notes = load_notes(trace)
    except TraceInvalid as error:
        raise TraceDamaged(f"{error}: name another trace") from None
    path = given or trace.with_suffix(".did_docs.json")
    if given is None and not path.is_file() and (notes.has_documents or _is_damaged(trace)):
        return Material(trace=trace, notes=notes, documents=None)
    return Material(trace=trace, notes=notes, documents=load_documents(trace, given))


def _is_damaged(trace: Path) -> bool:
    """Whether it has no frame at all: that is said first, by whoever reads them."""
    try:
        return next(read_trace(trace, tolerate_torn_tail=True), None) is None
    except TraceInvalid:
        return True


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
    processes: int = 1  # that verify; the verdicts are the same
    start: Start = Start()
    speed: float | None = None  # times as fast as it was recorded; None: as fast as possible


async def judge_trace(material: Material, spec: JudgeSpec | None = None) -> AsyncIterator[Judged]:
    """Every frame with its verdict: those of the tap that recorded it, if one did.

    Raises:
        TraceDamaged: the file is no whole trace; the frames before the damage have been judged.
        NotThere: no frame is where it should begin.
    """
    spec = spec or JudgeSpec()
    async for judged in _judge(material, spec):
        yield judged


def _known(material: Material, spec: JudgeSpec) -> dict[Did, AccountState]:
    """What was known of accounts before the first frame."""
    known = {} if spec.start.where else dict(material.notes.accounts)
    for did, given in spec.state.items():
        repo = None if given.rev is None or given.data is None else RepoState(given.rev, given.data)
        status = None if given.active else "inactive"
        known[did] = AccountState(repo=repo, active=given.active, status=status)
    return known


def _adoptions(material: Material, frame: bytes) -> list[tuple[Did, RepoState]]:
    """Where the tap went on after this frame, if events had been missed."""
    found = route(frame) if material.notes.adoptions else None
    return [] if found is None else material.notes.adoptions.get(found[0], [])


async def _judge(material: Material, spec: JudgeSpec) -> AsyncIterator[Judged]:
    answers, verifier, present = material.answers(), Verifier(policy=spec.policy), 0
    pace = _Pace(spec.speed)
    for did, state in _known(material, spec).items():
        verifier.take(did, state)
    frames = (((life, found), found.frame) for life, found in _whole_frames(material, spec.start))
    with Provers(spec.processes, verifier.key_of) as provers:
        for (life, recorded), proved in provers.ahead(frames):
            await pace.wait(recorded)
            if life != present:
                present = life
                answers.begin(life)
                verifier.resume(material.notes.lives[life].after_seq)
            at = recorded.received_us // 1000 if spec.now_ms is None else spec.now_ms
            judgement = verifier.receive(recorded.frame, at, proved)
            while judgement.needs:
                for need in judgement.needs:
                    verifier.learn(need.did, answers.resolve(need.did, need.refresh))
                judgement = verifier.receive(recorded.frame, at, proved)
            yield Judged(recorded=recorded, judgement=judgement)
            for did, repo in _adoptions(material, recorded.frame):
                verifier.adopt(did, rev=repo.rev, data=repo.data)


class _Pace:
    """Gives frames their time: as they came, or so many times faster."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._began: tuple[float, int] | None = None
        self._count = 0

    def _wait_s(self, recorded: TraceFrame) -> float:
        now = asyncio.get_running_loop().time()
        if self._speed is None:
            return 0.0
        if self._began is None:
            self._began = now, recorded.received_us
        began_s, began_us = self._began
        return began_s + (recorded.received_us - began_us) / 1e6 / self._speed - now

    async def wait(self, recorded: TraceFrame) -> None:
        """Until it is time for this frame; now and then for everybody else as well."""
        wait_s = self._wait_s(recorded)
        self._count += 1
        if wait_s > 0 or self._count % TURN_FRAMES == 0:
            await asyncio.sleep(max(0.0, wait_s))


def load_state(path: Path) -> State:
    """What was known of accounts: a JSON object, DID to `{rev, data, active}`.

    Raises: NotThere: there is no such file. WrongUse: it says something else.
    """
    if not path.is_file():
        raise NotThere(f"there is no file {path}: --state names a JSON object, DID to {{rev, data, active}}")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {parse_did(did): _known_account(entry) for did, entry in entries.items()}
    except (ValueError, TypeError, AttributeError, SyntaxInvalid) as error:
        raise WrongUse(
            f"{path} is no state ({error}): it has to be an object, DID to {{rev, data, active}}"
        ) from None


def _known_account(entry: dict[str, Any]) -> KnownAccount:
    rev, data, active = entry.get("rev"), entry.get("data"), entry.get("active", True)
    if not isinstance(active, bool):
        raise TypeError(f"active is {active!r:.20}")
    return KnownAccount(
        rev=None if rev is None else parse_tid(rev),
        data=None if data is None else Cid.parse(data),
        active=active,
    )


def _whole_frames(material: Material, start: Start) -> Iterator[tuple[int, TraceFrame]]:
    """The frames that count, each with the life of the tap in which it came."""
    count = 0
    try:
        for found in delivered(material.trace, material.notes, **start.where):
            count += 1
            yield found
    except TraceInvalid as error:
        if "not a trace" in error.reason:
            raise TraceDamaged(f"{error}: name an .fht file or a directory of segments") from None
        raise TraceDamaged(
            f"{error} ({count} whole frames before it): "
            "copy it again, or record on to it, which cuts the torn end off"
        ) from None
    if count == 0 and start.where:
        raise NotThere(f"{material.trace} has no frame at or after {start}: {_extent(material.trace)}")


def _extent(trace: Path) -> str:
    """What seqs a trace has, for somebody who asked for another one."""
    seqs = [found[0] for record in read_trace(trace) if (found := route(record.frame)) is not None]
    return f"its seqs go from {min(seqs)} to {max(seqs)}" if seqs else "it has none"


async def replay(
    material: Material,
    ledger_path: Path,
    lexicons: Path,
    on_progress: Callable[[int], None],
    spec: JudgeSpec | None = None,
) -> Report:
    """Run a trace into a ledger, with the trace's clock.

    Accounts follow #account, #identity and commits; leases follow the supervisor's `lease.acquired` and the
    endings of each environment's authority. Every hundredth frame `on_progress` gets the count.

    Returns:
        `{frames, verdicts{verdict: n}, rejected, lost, leases{…}, accounts, ledger_digest}`.
    """
    now = [0]
    verdicts: Counter[str] = Counter()
    frames = 0
    with Ledger(ledger_path, clock=lambda: now[0]) as ledger:
        follower = LedgerFollower(ledger, Lexicons.load(lexicons))
        async for judged in judge_trace(material, spec):
            now[0] = judged.recorded.received_us // 1000
            frames += 1
            assert judged.judgement.verdict is not None
            verdicts[judged.judgement.verdict] += 1
            follower.follow(judged.judgement)
            if frames % 100 == 0:
                on_progress(frames)
        statuses = Counter(str(lease.status) for lease in ledger.list())
        return {
            "trace": str(material.trace),
            "frames": frames,
            "verdicts": dict(sorted(verdicts.items())),
            "rejected": sum(verdicts[verdict] for verdict in (Verdict.REJECT, Verdict.FATAL)),
            "lost": material.notes.lost,  # frames that could not be recorded
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
