"""The words of the judge: verdicts, policies, and what is said of one frame."""

from enum import StrEnum

from firehose.frames import Frame
from firehose.verify.key_book import ResolveDid
from firehose.verify.proof import VerifiedRecord
from firehose.verify.proven import read_proven


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


class Policy(StrEnum):
    """How much a commit must prove beyond hashes, signature, and what the tree says of its ops."""

    STRICT = "strict"  # that the ops are all that changed, and that it follows from the commit before
    FILTERED = "filtered"  # that the ops are all that changed; commits between two may have been left out
    LENIENT = "lenient"  # nothing more; what it could not prove is in the reason


class FirstSight(StrEnum):
    """What to do with a commit in the middle of a history of which nothing is known."""

    ACCEPT = "accept"  # the account's history begins here
    RESYNC = "resync"  # the history before it is wanted as well


class Judgement:
    """What the verifier says of a frame.

    While `needs` is not empty there is no verdict yet (None): carry out the needs, then ask again.
    Event and records of a frame that proved itself are read when they are asked for: who routes frames asks
    for neither, and reading them takes longer than proving them.
    """

    __slots__ = ("_event", "_frame", "_records", "detail", "needs", "reason", "verdict")

    def __init__(
        self,
        *,
        verdict: Verdict | None,
        reason: str,
        event: Frame | None = None,
        records: tuple[VerifiedRecord, ...] = (),
        needs: tuple[ResolveDid, ...] = (),
        detail: str = "",
        frame: bytes | None = None,
    ) -> None:
        """Say it.

        Args:
            verdict: None while there are needs.
            reason: a stable word; "ok" for what is accepted and proven.
            event: None if the frame is malformed.
            records: of an accepted commit.
            needs: to be resolved before the frame can be judged.
            detail: for a person; not stable.
            frame: of an accepted commit, instead of its event and records: they are read out of it.
        """
        self.verdict = verdict
        self.reason = reason
        self.needs = needs
        self.detail = detail
        self._event = event
        self._records = records
        self._frame = frame

    @property
    def event(self) -> Frame | None:
        """What the frame says; None if it is malformed."""
        if self._frame is not None:
            self._read(self._frame)
        return self._event

    @property
    def records(self) -> tuple[VerifiedRecord, ...]:
        """Of an accepted commit."""
        if self._frame is not None:
            self._read(self._frame)
        return self._records

    def _read(self, frame: bytes) -> None:
        self._event, self._records = read_proven(frame)
        self._frame = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Judgement) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash((self.verdict, self.reason, self.detail))

    def __repr__(self) -> str:
        verdict, reason, detail, event, records, needs = self._all()
        return f"Judgement({verdict=!s}, {reason=}, {detail=}, {event=}, {records=}, {needs=})"

    def _all(self) -> tuple[object, ...]:
        return self.verdict, self.reason, self.detail, self.event, self.records, self.needs
