"""The words of the judge: verdicts, policies, and what is said of one frame."""

from dataclasses import dataclass
from enum import StrEnum

from firehose.frames import Frame
from firehose.verify.key_book import ResolveDid
from firehose.verify.proof import VerifiedRecord


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
