"""What a tap says itself in the trace that it records, so that a replay can decide what the tap decided.

    start     {after_seq}                    the tap began (again) after this seq, knowing no keys
    account   {did, rev, data, active, …}    what it knew of an account before the trace begins
    document  {did, document}                what it was told when it asked for a DID document; null: nothing
    adopt     {after_seq, did, rev, data}    after this frame, it went on from there: events had been missed
    gap       {count, first_seq, last_seq, reason}   frames that came while the disk refused; in a plain
                                             `.fht`, which has no notes, an #info frame with that as message

Frames that a killed tap had recorded and not yet passed on come again after its next start; only the second
time counts.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from firehose.cid import Cid
from firehose.errors import FrameInvalid, SyntaxInvalid, TraceInvalid
from firehose.frames import InfoEvent, parse_frame, route
from firehose.syntax import Did, parse_did, parse_tid
from firehose.trace import TraceFrame, TraceNote, open_trace
from firehose.verify.accounts import AccountState, RepoState

GAP: Final = "TraceGap"  # the name of that #info
MAX_GAP_BYTES: Final = 1000
Document = dict[str, Any]


@dataclass(slots=True)
class Life:
    """What a tap was told between two of its starts."""

    after_seq: int | None = None
    first_seq: int | None = None  # of its frames
    documents: dict[str, list[Document | None]] = field(default_factory=dict)


@dataclass(slots=True)
class Notes:
    """Everything that was noted in a trace."""

    lives: list[Life] = field(default_factory=lambda: [Life()])
    accounts: dict[Did, AccountState] = field(default_factory=dict)
    adoptions: dict[int, list[tuple[Did, RepoState]]] = field(default_factory=dict)  # by the seq before
    gaps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_documents(self) -> bool:
        """Whether signatures can be checked with what is in the trace."""
        return any(life.documents for life in self.lives)

    @property
    def lost(self) -> int:
        """Frames that were not recorded."""
        return sum(gap["count"] for gap in self.gaps if isinstance(gap.get("count"), int))


def load_notes(path: Path) -> Notes:
    """All notes of a trace, whole or torn. Raises: TraceInvalid: a note is malformed. OSError."""
    notes = Notes()
    try:
        for record in open_trace(path, tolerate_torn_tail=True):
            if isinstance(record, TraceNote):
                _take(notes, record.fields, str(path))
            elif (gap := _gap_in(record.frame)) is not None:
                _take(notes, gap, str(path))
            elif notes.lives[-1].first_seq is None:
                found = route(record.frame)
                notes.lives[-1].first_seq = None if found is None else found[0]
    except TraceInvalid as error:
        if "note" in error.reason:
            raise  # other damage is told by whoever reads the frames
    return notes


def _take(notes: Notes, fields: dict[str, Any], path: str) -> None:
    try:
        match fields.get("kind"):
            case "start":
                notes.lives.append(Life(after_seq=fields["after_seq"]))
            case "account":
                repo = None if fields["rev"] is None else _repo(fields)
                notes.accounts[parse_did(fields["did"])] = AccountState(
                    repo=repo,
                    active=bool(fields["active"]),
                    status=fields["status"],
                    seq=fields["seq"],
                )
            case "document":
                notes.lives[-1].documents.setdefault(str(fields["did"]), []).append(fields["document"])
            case "adopt":
                known = notes.adoptions.setdefault(int(fields["after_seq"]), [])
                known.append((parse_did(fields["did"]), _repo(fields)))
            case "gap":
                notes.gaps.append({**fields, "count": int(fields["count"])})
            case _:
                pass  # of a newer version, or of a tap's window
    except (LookupError, TypeError, ValueError, SyntaxInvalid) as error:
        raise TraceInvalid(path, 0, f"a note that says nothing: {fields!s:.80} ({error})") from None


def _gap_in(frame: bytes) -> dict[str, Any] | None:
    """What the #info frame of a gap says, or None if it is another frame."""
    if GAP.encode() not in frame[:MAX_GAP_BYTES] or len(frame) > MAX_GAP_BYTES:
        return None
    try:
        event = parse_frame(frame)
        fields = json.loads(event.message or "") if isinstance(event, InfoEvent) else None
    except (FrameInvalid, ValueError, RecursionError):
        return None
    return {**fields, "kind": "gap"} if isinstance(fields, dict) and "count" in fields else None


def _repo(fields: dict[str, Any]) -> RepoState:
    return RepoState(parse_tid(fields["rev"]), Cid.parse(fields["data"]))


def account_note(did: Did, state: AccountState) -> dict[str, Any]:
    """The fields of an `account` note."""
    repo = state.repo
    return {
        "did": did,
        "rev": None if repo is None else repo.rev,
        "data": None if repo is None else str(repo.data),
        "active": state.active,
        "status": state.status,
        "seq": state.seq,
    }


class RecordedDocuments:
    """Answers what a tap was answered, in the same order for each account; the last one stays."""

    def __init__(self, notes: Notes) -> None:
        self._lives = notes.lives
        self._life = 0
        self._given: Counter[str] = Counter()
        self._last: dict[str, Document | None] = {}

    def begin(self, life: int) -> None:
        """Go on to another start of the tap."""
        for skipped in self._lives[self._life : life]:
            self._last |= {did: answers[-1] for did, answers in skipped.documents.items()}
        self._life = life
        self._given.clear()

    def resolve(self, did: str, is_refresh: bool) -> Document | None:
        """The next answer about an account."""
        answers = self._lives[self._life].documents.get(did, [])
        if self._given[did] < len(answers):
            self._last[did] = answers[self._given[did]]
            self._given[did] += 1
        return self._last.get(did)


class GivenDocuments:
    """Documents from a file: one for each account, or a list that each refresh goes on in."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self._documents = documents
        self._position: Counter[str] = Counter()

    def begin(self, life: int) -> None:
        """Nothing: they stay as they are."""

    def resolve(self, did: str, is_refresh: bool) -> Document | None:
        """The present document of an account."""
        known = self._documents.get(did) or []
        versions = known if isinstance(known, list) else [known]
        self._position[did] = min(self._position[did] + is_refresh, max(len(versions) - 1, 0))
        return versions[self._position[did]] if versions else None


def delivered(path: Path, notes: Notes, **where: Any) -> Iterator[tuple[int, TraceFrame]]:
    """Each frame that counts, with the number of the life in which it came. Args and errors: `open_trace`."""
    life = 0
    starts = iter(range(1, len(notes.lives)))
    skip_notes = bool(where)
    for record in open_trace(path, **where):
        if isinstance(record, TraceNote):
            if record.fields.get("kind") == "start":
                life = next(starts, life)
            continue
        if _gap_in(record.frame) is not None:
            continue
        found = route(record.frame) if life + 1 < len(notes.lives) or skip_notes else None
        if skip_notes:  # it begins in the middle: where, the first frame tells
            life = _life_of(notes, None if found is None else found[0])
            starts = iter(range(life + 1, len(notes.lives)))
            skip_notes = False
        if found is not None and any(
            later.first_seq is not None and found[0] >= later.first_seq for later in notes.lives[life + 1 :]
        ):
            continue
        yield life, record


def _life_of(notes: Notes, seq: int | None) -> int:
    if seq is None:
        return 0
    return max(
        (
            number
            for number, life in enumerate(notes.lives)
            if life.first_seq is not None and life.first_seq <= seq
        ),
        default=0,
    )
