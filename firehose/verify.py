"""The judge of the firehose: frames in, verdicts out; no socket, no clock, no resolver.

Source: atproto.com/specs/sync and /specs/event-stream. What one event proves by itself is checked in
`firehose.proof`; here it meets what we know of its account: key, last rev, status; and of the stream: its
seq.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, assert_never

from firehose.cid import Cid
from firehose.commit import Commit
from firehose.errors import FrameInvalid
from firehose.frames import (
    AccountEvent,
    CommitEvent,
    ErrorFrame,
    Frame,
    IdentityEvent,
    InfoEvent,
    SyncEvent,
    UnknownFrame,
    parse_frame,
)
from firehose.key_book import KeyBook, KeyState, ResolveDid
from firehose.proof import (
    REVISION_TOLERANCE_MS,
    VerifiedRecord,
    check_ops,
    check_tree,
    open_commit,
    read_records,
)
from firehose.syntax import Did, Tid
from firehose.tid import tid_micros

SUPPORTED_METHODS: Final = ("did:plc:", "did:web:")  # specs/did, "Blessed DID Methods"


class Verdict(StrEnum):
    """What becomes of a frame. Each frame gets exactly one."""

    ACCEPT = "accept"  # true, and new
    NOOP = "noop"  # true, and says what we knew
    IGNORE = "ignore"  # not for us: an inactive account, an old rev, an unknown kind, a document out of reach
    DESYNC = "desync"  # true, but does not follow from what we knew: events are missing
    REJECT = "reject"  # not true, or malformed
    FATAL = "fatal"  # the server ends the stream
    INFO = "info"  # the server tells us something
    SEQ_ERROR = "seq-error"  # not after the frame before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the verifier says of a frame.

    While `needs` is not empty there is no verdict yet (None): carry out the needs, then ask again.
    """

    verdict: Verdict | None
    reason: str  # a stable word; "ok" for what is accepted and proven
    event: Frame | None = None  # None if the frame is malformed
    records: tuple[VerifiedRecord, ...] = ()  # of an accepted commit
    needs: tuple[ResolveDid, ...] = ()
    detail: str = ""  # for a person; not stable


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoState:
    """What was last accepted of a repository."""

    rev: Tid
    data: Cid


class Verifier:
    """Judges the frames of one stream, one after the other.

    The contract of the caller:
    - Give each frame to `receive`, in the order of the stream, with the time at which it was received.
    - If the judgement has `needs`, resolve each of them, past every cache where it says `refresh`, tell
    `learn` the
      outcome, and give the *same* frame to `receive` again, before any other. At most two rounds are needed.
    - When an `IdentityEvent` is accepted, drop what your resolver has cached of its DID.

    The same frames, times and answers give the same judgements, always.
    """

    def __init__(self, *, last_seq: int | None = None) -> None:
        """`last_seq` is where the stream stood: no frame at or before it is taken."""
        self.counters: Counter[tuple[Verdict, str]] = Counter()
        self.last_seq = last_seq
        self._keys = KeyBook()
        self._repos: dict[Did, RepoState] = {}
        self._inactive: dict[Did, str] = {}  # the status of every account that is not active

    def receive(self, data: bytes, now_ms: int) -> Judgement:
        """Judge one frame; `now_ms` is when it was received, in milliseconds since 1970."""
        try:
            event = parse_frame(data)
        except FrameInvalid as error:
            return self._close(None, error.seq, Verdict.REJECT, error.reason, error.detail)
        seq = getattr(event, "seq", None)
        if seq is not None and self.last_seq is not None and seq <= self.last_seq:
            return self._close(event, None, Verdict.SEQ_ERROR, "seq-not-increasing")
        try:
            return self._judge(event, now_ms)
        except FrameInvalid as error:
            return self._close(event, seq, Verdict.REJECT, error.reason, error.detail)

    def learn(self, did: Did, document: Mapping[str, Any] | None) -> None:
        """Note what a need's resolution gave: the DID document, or None if it could not be had."""
        self._keys.learn(did, document)

    def restore(
        self, did: Did, *, rev: Tid | None = None, data: Cid | None = None, active: bool = True
    ) -> None:
        """Take up what an earlier run knew of an account."""
        if rev is not None and data is not None:
            self._repos[did] = RepoState(rev=rev, data=data)
        if active:
            self._inactive.pop(did, None)
        else:
            self._inactive[did] = "inactive"

    def trust(self, data: bytes) -> Frame:
        """Take up a frame that an earlier run accepted: like `receive`, without proving it again.

        Returns: its event. Raises: FirehoseError: it cannot have been accepted.
        """
        event = parse_frame(data)
        match event:
            case CommitEvent() | SyncEvent():
                commit, _ = open_commit(event)
                self._repos[event.did] = RepoState(rev=commit.rev, data=commit.data)
            case AccountEvent():
                self._note_account(event)
            case _:
                pass
        self.last_seq = getattr(event, "seq", self.last_seq)
        return event

    def repos(self) -> dict[Did, RepoState]:
        """What was last accepted, of every repository."""
        return dict(self._repos)

    def is_active(self, did: Did) -> bool:
        """Whether the account is not known to be inactive."""
        return did not in self._inactive

    def _judge(self, event: Frame, now_ms: int) -> Judgement:
        match event:
            case CommitEvent():
                return self._commit(event, now_ms)
            case SyncEvent():
                return self._sync(event, now_ms)
            case IdentityEvent():
                self._keys.forget(event.did)
                return self._close(event, event.seq, Verdict.ACCEPT, "ok")
            case AccountEvent():
                self._note_account(event)
                return self._close(event, event.seq, Verdict.ACCEPT, "ok")
            case InfoEvent():
                return self._close(event, None, Verdict.INFO, "info", event.name)
            case ErrorFrame():
                return self._close(event, None, Verdict.FATAL, "error-frame", event.name)
            case UnknownFrame():
                return self._close(event, None, Verdict.IGNORE, "unknown-type", event.type or "")
        assert_never(event)

    def _commit(self, event: CommitEvent, now_ms: int) -> Judgement:
        known = self._repos.get(event.repo)
        refused = self._refuse_early(event, now_ms)
        if refused:
            return self._close(event, event.seq, Verdict.IGNORE, refused)
        if known is not None and event.rev <= known.rev:
            return self._close(event, event.seq, Verdict.IGNORE, "rev-old")
        places = check_ops(event)
        commit, blocks = open_commit(event)
        pending = self._check_signature(event, commit, now_ms)
        if pending is not None:
            return pending
        check_tree(event, commit, blocks)
        records = read_records(event, places, blocks)
        self._repos[event.repo] = RepoState(rev=commit.rev, data=commit.data)
        # Old servers do not say what was before: their ops are true, but there may have been others.
        is_proven = event.prev_data is not None or event.since is None
        reason = "ok" if is_proven else "unproven"
        return self._close(event, event.seq, Verdict.ACCEPT, reason, records=records)

    def _sync(self, event: SyncEvent, now_ms: int) -> Judgement:
        known = self._repos.get(event.did)
        refused = self._refuse_early(event, now_ms)
        if refused:
            return self._close(event, event.seq, Verdict.IGNORE, refused)
        commit, _ = open_commit(event)
        if known is not None and commit.rev < known.rev:
            return self._close(event, event.seq, Verdict.IGNORE, "rev-old")
        pending = self._check_signature(event, commit, now_ms)
        if pending is not None:
            return pending
        if known is not None and commit.data != known.data:
            return self._close(event, event.seq, Verdict.DESYNC, "sync-data")
        if known is None and commit.rev != event.rev:
            raise FrameInvalid("commit-rev", f"the commit's rev is {commit.rev}")
        self._repos[event.did] = RepoState(rev=commit.rev, data=commit.data)
        verdict = Verdict.ACCEPT if known is None else Verdict.NOOP
        return self._close(event, event.seq, verdict, "ok")

    def _refuse_early(self, event: CommitEvent | SyncEvent, now_ms: int) -> str | None:
        """Why an event is not for us, judged by what it says before anything is proved.

        Raises: FrameInvalid: it says something that cannot be.
        """
        if not event.did.startswith(SUPPORTED_METHODS):
            return "did-method"
        if tid_micros(event.rev) > (now_ms + REVISION_TOLERANCE_MS) * 1000:
            raise FrameInvalid("rev-future", event.rev)  # accepted, it would shut out every later commit
        return "account-inactive" if event.did in self._inactive else None

    def _check_signature(
        self, event: CommitEvent | SyncEvent, commit: Commit, now_ms: int
    ) -> Judgement | None:
        """None if the commit is signed by the account; otherwise what is to be said or done.

        Raises: FrameInvalid: the account did not sign it, also by its refreshed document.
        """
        state, need, detail = self._keys.check(event.did, event.seq, commit.is_signed_by, now_ms)
        match state:
            case KeyState.SIGNED:
                return None
            case KeyState.NEEDED:
                assert need is not None
                return Judgement(verdict=None, reason="pending", event=event, needs=(need,))
            case KeyState.OUT_OF_REACH:
                return self._close(event, event.seq, Verdict.IGNORE, "identity-unresolved", detail)
            case KeyState.NO_KEY:
                raise FrameInvalid("identity-invalid", detail)
            case KeyState.NOT_SIGNED:
                raise FrameInvalid("signature", f"not signed by the key of {event.did}")
        assert_never(state)

    def _note_account(self, event: AccountEvent) -> None:
        if event.active:
            self._inactive.pop(event.did, None)
        else:
            self._inactive[event.did] = event.status or "inactive"

    def _close(
        self,
        event: Frame | None,
        seq: int | None,
        verdict: Verdict,
        reason: str,
        detail: str = "",
        *,
        records: tuple[VerifiedRecord, ...] = (),
    ) -> Judgement:
        """The final word on a frame; it is counted, and the stream has come to its seq."""
        self.counters[verdict, reason] += 1
        if seq is not None and (self.last_seq is None or seq > self.last_seq):
            self.last_seq = seq
        return Judgement(verdict=verdict, reason=reason, event=event, records=records, detail=detail)
