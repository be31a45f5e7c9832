"""What a tap does about a gap: read the repository, and say the missed changes in place of what showed it.

The stream waits for the archive, but not for long, and not too often (`_Credit`). If it comes in time, one
commit with all missed changes takes the place of the frame that showed the gap. If not, that frame goes on
as it is, true but unchained, and the missed records are told later, to `on_records` only.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from firehose.frames import AccountEvent, CommitEvent, Frame, RepoOp, SyncEvent
from firehose.healing import Archive, KnownRecords, differences, healing_commit, missed_records
from firehose.resync import Resync
from firehose.resync_journal import ResyncJournal
from firehose.resync_shell import RepoFetcher, ResyncShell
from firehose.syntax import Did
from firehose.verify import Judgement, RepoState, Verdict, VerifiedRecord, Verifier
from firehose.verify.proof import open_commit

HOLD_S: Final = 5.0  # how long the stream waits for one archive
HOLD_SHARE: Final = 0.2  # of all time: hostile accounts must not stand in the way of the others

OnRecords = Callable[[tuple[VerifiedRecord, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Healed:
    archive: Archive
    ops: tuple[RepoOp, ...] | None  # what was missed; None if it is not known what there was before
    follows: bool  # whether the frame that showed the gap is newer than the archive, and follows from it


class Healer:
    """Brings the repositories of one stream back in step; a context manager."""

    def __init__(
        self,
        verifier: Verifier,
        fetcher: RepoFetcher,
        *,
        clock: Callable[[], int],
        rng: random.Random,
        hold_s: float = HOLD_S,
        on_records: OnRecords | None = None,
        journal: ResyncJournal | None = None,
    ) -> None:
        """Prepare.

        Args:
            verifier: of the stream.
            fetcher: gets archives.
            clock: epoch milliseconds.
            rng: draws the pauses between attempts.
            hold_s: seconds that the stream may wait for one archive.
            on_records: gets every record that was missed, in time or late; each with `live` False.
            journal: keeps over a restart which repositories are out of step; entered and left with us.
        """
        self._verifier = verifier
        self._journal = journal
        self._resync = Resync(rng) if journal is None else Resync(rng, journal.note)
        self._known = KnownRecords()
        self._shell = ResyncShell(
            self._resync, fetcher, clock=clock, on_archive=self._adopt, on_gone=self._gone
        )
        self._credit = _Credit(hold_s)
        self._on_records = on_records
        self._held: Did | None = None  # the account that the stream waits for
        self._healed: _Healed | None = None
        self.counters: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        """Begin; what an earlier run left out of step is read at once, or when its time comes.

        Raises: WindowUnavailable: the journal cannot be read.
        """
        if self._journal is not None:
            self._journal.__enter__()
            for did, pending in list(self._journal.pending.items()):
                self._resync.restore(did, pending)
        await self._shell.__aenter__()
        self._shell.pump()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._shell.__aexit__(kind, error, trace)
        finally:
            if self._journal is not None:
                self._journal.__exit__(kind, error, trace)

    def stats(self) -> dict[str, Any]:
        """Gaps seen, healed in place, released unhealed; and what is under way."""
        phases = {phase.value: count for phase, count in self._resync.phases().items()}
        return {**self.counters, **self._resync.counters, "phases": phases}

    def follow(self, event: Frame | None) -> None:
        """Take up an event that was accepted."""
        if isinstance(event, CommitEvent):
            self._known.follow(event)
        elif isinstance(event, AccountEvent) and not event.active:
            self._resync.gone(event.did)

    async def heal(
        self, judgement: Judgement, frame: bytes, received_ms: int, last_seq: int | None
    ) -> tuple[bytes, ...]:
        """The frames to pass on in place of one whose verdict is DESYNC.

        Args:
            judgement: the verdict.
            frame: as it was received at `received_ms`.
            received_ms: epoch milliseconds.
            last_seq: of the last frame that was passed on.
        """
        event = judgement.event
        assert isinstance(event, CommitEvent | SyncEvent)
        did = event.did
        self.counters["gaps"] += 1
        known = self._verifier.account(did).repo
        self._resync.gap(did, frame, received_ms, host=self._verifier.host_of(did))
        self._held, self._healed = did, None
        try:
            self._shell.pump()
            await self._credit.spend(lambda seconds: self._shell.settled(did, seconds))
        finally:
            self._held, healed, self._healed = None, self._healed, None
        frames = None if healed is None else self._in_place(healed, known, event, frame, last_seq)
        if frames is not None:
            self.counters["healed"] += 1
            return frames
        return self._release(event, frame)

    def _in_place(
        self,
        healed: _Healed,
        known: RepoState | None,
        event: CommitEvent | SyncEvent,
        frame: bytes,
        last_seq: int | None,
    ) -> tuple[bytes, ...] | None:
        """The healing commit, and after it the frame itself if that is newer; None: there is none."""
        seq = event.seq - 1 if healed.follows else event.seq
        if known is None or healed.ops is None or (last_seq is not None and seq <= last_seq) or seq < 1:
            return None
        commit = healing_commit(healed.archive, known, healed.ops, seq=seq, time=event.time)
        if commit is None:
            return None
        return (commit, frame) if healed.follows else (commit,)

    def _release(self, event: CommitEvent | SyncEvent, frame: bytes) -> tuple[bytes, ...]:
        """Let the frame go on as it is: what comes after it shall follow from it."""
        commit, _ = open_commit(event)
        self._verifier.adopt(event.did, rev=commit.rev, data=commit.data)
        if isinstance(event, CommitEvent):
            self._known.follow(event)
        self.counters["released"] += 1
        return (frame,)

    def _adopt(self, did: Did, archive: Archive) -> None:
        """Take up an archive. Raises: RepoInvalid: it cannot be what became of the repository."""
        self._resync.check(self._verifier.account(did).repo, archive.state)
        contents = archive.contents
        table = self._known.table(did)
        ops = differences(table or {}, contents)
        self._tell(missed_records(contents, ops, self._verifier.last_seq or 0))
        self._known.replace(did, ((path, cid) for path, (cid, _) in contents.records.items()))
        held = self._resync.adopted(did)
        if did != self._held:
            # What came meanwhile went on unchained, and the stream is where it is: nothing is taken back.
            self.counters["healed-late"] += 1
            return
        self._verifier.adopt(did, rev=contents.rev, data=contents.data)
        follows = False
        for waiting in held:
            judgement = self._verifier.again(waiting.frame, waiting.received_ms)
            follows = judgement.verdict is Verdict.ACCEPT
            if follows:
                self.follow(judgement.event)
        self._healed = _Healed(archive=archive, ops=None if table is None else ops, follows=follows)

    def _gone(self, did: Did, status: str) -> None:
        """An account's own PDS says that it is not active: nothing of it is for us until that changes."""
        self.counters["gone"] += 1
        self._verifier.restore(did, active=False, status=status)

    def _tell(self, records: tuple[VerifiedRecord, ...]) -> None:
        self.counters["missed-records"] += len(records)
        if records and self._on_records is not None:
            self._on_records(records)


class _Credit:
    """How long the stream may still wait: a share of the time that passes, up to two whole waits."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._credit_s = 2 * hold_s
        self._since_s: float | None = None

    async def spend(self, wait: Callable[[float], Any]) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        if self._since_s is not None:
            earned_s = (start_s - self._since_s) * HOLD_SHARE
            self._credit_s = min(2 * self._hold_s, self._credit_s + earned_s)
        await wait(min(self._hold_s, self._credit_s))
        self._since_s = loop.time()
        self._credit_s = max(0.0, self._credit_s - (self._since_s - start_s))
