"""The judge of the firehose: frames in, verdicts out; no socket, no clock, no resolver.

Source: atproto.com/specs/sync and /specs/event-stream. What one event proves by itself is checked in
`firehose.verify.proof`; here it meets what we know of its account: key, last rev, status; and of the
stream: its seq.
"""

from collections import Counter
from collections.abc import Mapping
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
from firehose.keys import VerifyingKey
from firehose.syntax import Did, Tid
from firehose.tid import tid_micros
from firehose.verify.accounts import (
    MAX_ACCOUNTS,
    AccountBook,
    AccountState,
    AccountStore,
    RepoState,
)
from firehose.verify.chain import judge_commit, judge_sync
from firehose.verify.key_book import KeyBook, KeyState
from firehose.verify.proof import (
    REVISION_TOLERANCE_MS,
    VerifiedRecord,
    check_ops,
    check_tree,
    open_commit,
    read_records,
)
from firehose.verify.proven import SUPPORTED_METHODS, Proof, Proved, prove
from firehose.verify.verdict import FirstSight, Judgement, Policy, Verdict

_ACCEPT: Final = Verdict.ACCEPT  # looking up a member takes longer than one thinks
_PROVEN: Final = (_ACCEPT, "ok")


class Verifier:
    """Judges the frames of one stream, one after the other.

    The contract of the caller:
    - Give each frame to `receive`, in the order of the stream, with the time at which it was received.
    - If the judgement has `needs`, resolve each of them, past every cache where it says `refresh`, tell
    `learn` the outcome, and give the *same* frame to `receive` again, before any other. At most two rounds
    are needed.
    - When an `IdentityEvent` is accepted, drop what your resolver has cached of its DID.
    - After a DESYNC no commit of that account follows from what is known, until the whole repository was read
    and `adopt` was told where it stands (`firehose.resync` does both).

    The same frames, times and answers give the same judgements, always.
    """

    def __init__(
        self,
        *,
        last_seq: int | None = None,
        policy: Policy = Policy.STRICT,
        first_sight: FirstSight = FirstSight.ACCEPT,
        host: str | None = None,
        max_accounts: int = MAX_ACCOUNTS,
        store: AccountStore | None = None,
    ) -> None:
        """Begin a stream.

        Args:
            last_seq: where the stream stood: no frame at or before it is taken.
            policy: how much a commit must prove.
            first_sight: what to do with an account in the middle of its history.
            host: the PDS (host, with `:port` if it has one) that the stream comes from directly: it may speak
                for its own accounts only. None for a relay or a tap, which speak for everybody.
            max_accounts: how many are kept in memory.
            store: where the others are kept; None: they are forgotten, and are first seen again later.
        """
        self.counters: Counter[tuple[Verdict, str]] = Counter()
        self.replayed: Counter[tuple[Verdict, str]] = Counter()  # of `again`: frames that were counted before
        self.last_seq = last_seq
        self.policy = policy
        self._first_sight = first_sight
        self._host = None if host is None else host.lower()
        self._keys = KeyBook(host=self._host)
        self._accounts = AccountBook(max_accounts=max_accounts, store=store)
        self._tally = self.counters

    def receive(self, data: bytes, now_ms: int, proved: Proved | None = None) -> Judgement:
        """Judge one frame.

        Args:
            data: the frame.
            now_ms: when it was received, in milliseconds since 1970.
            proved: what it proves, if that was found out before.
        """
        proof, signer = (prove(data), None) if proved is None else (proved.proof, proved.key)
        judgement = None if proof is None else self._proven(proof, signer, data, now_ms)
        return judgement or self._step_by_step(data, now_ms)

    def _step_by_step(self, data: bytes, now_ms: int) -> Judgement:
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

    def again(self, data: bytes, now_ms: int) -> Judgement:
        """Judge a frame once more that a DESYNC held back: like `receive`, at no place in the stream.

        It is counted in `replayed`, as its first verdict is in `counters` already.
        """
        last_seq, self.last_seq, self._tally = self.last_seq, None, self.replayed
        try:
            return self.receive(data, now_ms)
        finally:
            self.last_seq, self._tally = last_seq, self.counters

    def learn(self, did: Did, document: Mapping[str, Any] | None) -> None:
        """Note what a need's resolution gave: the DID document, or None if it could not be had."""
        self._keys.learn(did, document)

    def adopt(self, did: Did, *, rev: Tid, data: Cid) -> None:
        """Take up where a repository stands: what its archive proved, after a resync."""
        self._accounts.put_repo(did, RepoState(rev, data))

    def rewind(self) -> None:
        """Begin the stream again, knowing only keys: to judge the same frames once more."""
        self.last_seq = None
        self._accounts.clear()

    def resume(self, last_seq: int | None) -> None:
        """Go on after `last_seq` as if started anew with what is known of the accounts: keys are not kept."""
        self.last_seq = last_seq
        self._keys = KeyBook(host=self._host)

    def take(self, did: Did, state: AccountState) -> None:
        """Take up all that another verifier knows of an account, in place of what is known here."""
        self._accounts.put(did, state)
        self._keys.forget(did)

    def restore(
        self,
        did: Did,
        *,
        rev: Tid | None = None,
        data: Cid | None = None,
        active: bool = True,
        status: str | None = None,
        seq: int | None = None,
    ) -> None:
        """Take up what an earlier run knew of an account; what is not given stays as it was."""
        known = self._accounts.get(did)
        repo = known.repo if rev is None or data is None else RepoState(rev, data)
        status = status if active else status or "inactive"
        seq = known.seq if seq is None else seq
        self._accounts.put(did, AccountState(repo=repo, active=active, status=status, seq=seq))

    def follow(self, event: AccountEvent) -> None:
        """Take up an #account event that another verifier of the same stream accepted."""
        self._note_account(event)

    def trust(self, data: bytes) -> Frame:
        """Take up a frame that an earlier run accepted: like `receive`, without proving it again.

        Returns: its event. Raises: FirehoseError: it cannot have been accepted.
        """
        event = parse_frame(data)
        match event:
            case CommitEvent() | SyncEvent():
                commit, _ = open_commit(event)
                self._accounts.put_repo(event.did, RepoState(commit.rev, commit.data))
            case AccountEvent():
                self._note_account(event)
            case _:
                pass
        self.last_seq = getattr(event, "seq", self.last_seq)
        return event

    def repos(self) -> dict[Did, RepoState]:
        """What was last accepted, of every repository in memory."""
        return {did: state.repo for did, state in self._accounts.items() if state.repo is not None}

    def accounts(self) -> list[tuple[Did, AccountState]]:
        """What is known of every account in memory."""
        return self._accounts.items()

    def account(self, did: Did) -> AccountState:
        """What is known of an account."""
        return self._accounts.get(did)

    def is_active(self, did: Did) -> bool:
        """Whether the account is not known to be inactive."""
        return self._accounts.get(did).active

    def key_of(self, did: Did) -> VerifyingKey | None:
        """The key that the account's document named last, or None if it is not known."""
        return self._keys.key_of(did)

    def host_of(self, did: Did) -> str | None:
        """The host of the PDS that the account's document named last, or None if it is not known."""
        return self._keys.host_of(did)

    def flush(self) -> None:
        """Hand what is known of the accounts to the store."""
        self._accounts.flush()

    def _proven(
        self, proof: Proof, signer: VerifyingKey | None, data: bytes, now_ms: int
    ) -> Judgement | None:
        """The judgement of a commit that proves itself and is signed and next in line; None: look closer."""
        seq, did, rev, rev_us, since, prev_data, tree, sig, digest = proof
        account = self._accounts.get(Did(did))
        known = account.repo
        if not account.active or rev_us > (now_ms + REVISION_TOLERANCE_MS) * 1000:
            return None
        if self.last_seq is not None and seq <= self.last_seq:
            return None
        if known is None:
            if since is not None and self._first_sight is FirstSight.RESYNC:
                return None
        elif rev <= known.rev or since != known.rev or prev_data != known.data.bytes:
            return None
        key = self._keys.trusted(Did(did), now_ms)
        if key is None or not (key == signer if signer else key.verify_digest(sig, digest)):
            return None
        repo = RepoState(Tid(rev), Cid(tree))
        self._accounts.put(Did(did), AccountState(repo, True, account.status, account.seq))
        self._tally[_PROVEN] += 1
        self.last_seq = seq
        return Judgement(verdict=_ACCEPT, reason="ok", frame=data)

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
                return self._account(event)
            case InfoEvent():
                return self._close(event, None, Verdict.INFO, "info", event.name)
            case ErrorFrame():
                return self._close(event, None, Verdict.FATAL, "error-frame", event.name)
            case UnknownFrame():
                return self._close(event, None, Verdict.IGNORE, "unknown-type", event.type or "")
        assert_never(event)

    def _commit(self, event: CommitEvent, now_ms: int) -> Judgement:
        account = self._accounts.get(event.repo)
        known = account.repo
        refused = self._refuse_early(event, account, now_ms)
        if refused is None and known is not None and event.rev <= known.rev:
            refused = "rev-old"
        if refused is not None:
            return self._close(event, event.seq, Verdict.IGNORE, refused)
        places = check_ops(event)
        commit, blocks = open_commit(event)
        pending = self._check_signature(event, commit, now_ms)
        if pending is not None:
            return pending
        is_proven = check_tree(
            event,
            commit,
            blocks,
            is_chained=known is not None and event.prev_data == known.data,
            is_lenient=self.policy is Policy.LENIENT,
        )
        records = read_records(event, places, blocks)
        verdict, reason = judge_commit(known, event, self.policy, self._first_sight)
        if verdict is Verdict.DESYNC:
            return self._close(event, event.seq, verdict, reason)
        self._accounts.put_repo(event.repo, RepoState(commit.rev, commit.data))
        reason = reason if is_proven else "unproven-inversion"
        return self._close(event, event.seq, verdict, reason, records=records)

    def _sync(self, event: SyncEvent, now_ms: int) -> Judgement:
        account = self._accounts.get(event.did)
        known = account.repo
        refused = self._refuse_early(event, account, now_ms)
        if refused is not None:
            return self._close(event, event.seq, Verdict.IGNORE, refused)
        commit, _ = open_commit(event)
        if known is not None and commit.rev < known.rev:
            return self._close(event, event.seq, Verdict.IGNORE, "rev-old")
        pending = self._check_signature(event, commit, now_ms)
        if pending is not None:
            return pending
        verdict, reason = judge_sync(known, commit.rev, commit.data, self.policy)
        if known is None and commit.rev != event.rev:
            raise FrameInvalid("commit-rev", f"the commit's rev is {commit.rev}")
        if verdict in (Verdict.ACCEPT, Verdict.NOOP):
            self._accounts.put_repo(event.did, RepoState(commit.rev, commit.data))
        return self._close(event, event.seq, verdict, reason)

    def _account(self, event: AccountEvent) -> Judgement:
        seq = self._accounts.get(event.did).seq
        if seq is not None and event.seq <= seq:
            return self._close(event, event.seq, Verdict.IGNORE, "account-old")
        self._note_account(event)
        return self._close(event, event.seq, Verdict.ACCEPT, "ok")

    def _refuse_early(self, event: CommitEvent | SyncEvent, account: AccountState, now_ms: int) -> str | None:
        """Why an event is not for us, judged by what it says before anything is proved.

        Raises: FrameInvalid: it says something that cannot be.
        """
        if not event.did.startswith(SUPPORTED_METHODS):
            return "did-method"
        if tid_micros(event.rev) > (now_ms + REVISION_TOLERANCE_MS) * 1000:
            raise FrameInvalid("rev-future", event.rev)  # accepted, it would shut out every later commit
        return None if account.active else "account-inactive"

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
            case KeyState.OTHER_HOST:
                raise FrameInvalid("host-authority", detail)
        assert_never(state)

    def _note_account(self, event: AccountEvent) -> None:
        known = self._accounts.get(event.did)
        # A deleted repository has no rev any more; should the account come back, its history begins anew.
        repo = None if event.status == "deleted" and not event.active else known.repo
        status = event.status if event.active else event.status or "inactive"
        state = AccountState(repo=repo, active=event.active, status=status, seq=event.seq)
        self._accounts.put(event.did, state)

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
        self._tally[verdict, reason] += 1
        if seq is not None and (self.last_seq is None or seq > self.last_seq):
            self.last_seq = seq
        return Judgement(verdict=verdict, reason=reason, event=event, records=records, detail=detail)
