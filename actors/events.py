"""From a frame that the tap has verified to the records of ours in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.records import AUTHORITY
from firehose import (
    CommitEvent,
    FirehoseError,
    LexiconInvalid,
    Lexicons,
    ToldRecord,
    drisl,
    parse_frame,
    read_car,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """A record of ours that its author created or updated; its fields have passed its lexicon.

    `seq` is the firehose position; `record` the decoded fields. `is_verified`: its author has signed it;
    otherwise a server says so (`firehose.jetstream`), and `seq` is that server's.
    """

    seq: int
    author_did: str
    collection: str
    rkey: str
    cid: str
    record: dict[str, Any]
    is_verified: bool = True

    @property
    def uri(self) -> str:
        """at://author/collection/rkey"""
        return f"at://{self.author_did}/{self.collection}/{self.rkey}"


class RecordReader:
    """Reads the records of our lexicons out of frames; counts what does not fit its lexicon."""

    def __init__(self, lexicons: Path) -> None:
        self._lexicons = Lexicons.load(lexicons)
        self.invalid = 0

    def check(self, collection: str, record: dict[str, Any]) -> None:
        """Check a record of ours before it is written; others pass.

        Raises:
            LexiconInvalid: it breaks its schema.
        """
        if collection.startswith(f"{AUTHORITY}."):
            self._lexicons.validate(collection, record)

    def read(self, frame: bytes) -> tuple[int | None, list[RecordEvent]]:
        """The position of a frame (None: it has none) and our records that it creates or updates."""
        event = parse_frame(frame)
        if not isinstance(event, CommitEvent):
            return getattr(event, "seq", None), []
        ours = [op for op in event.ops if op.cid is not None and op.path.startswith(f"{AUTHORITY}.")]
        blocks = read_car(event.blocks).blocks if ours else {}
        found = []
        for op in ours:
            assert op.cid is not None
            collection, _, rkey = op.path.partition("/")
            try:
                record = drisl.decode(blocks[op.cid])
                self._lexicons.validate(collection, record)
            except (LexiconInvalid, FirehoseError, KeyError):
                self.invalid += 1
                continue
            found.append(
                RecordEvent(
                    seq=event.seq,
                    author_did=event.repo,
                    collection=collection,
                    rkey=rkey,
                    cid=str(op.cid),
                    record=record,
                )
            )
        return event.seq, found

    def read_told(self, told: ToldRecord) -> RecordEvent | None:
        """Our record that somebody says was created or updated, marked as unverified; None: it is none."""
        if told.record is None or told.cid is None or not told.collection.startswith(f"{AUTHORITY}."):
            return None
        try:
            self._lexicons.validate(told.collection, told.record)
        except LexiconInvalid:
            self.invalid += 1
            return None
        return RecordEvent(
            seq=told.time_us,
            author_did=told.did,
            collection=told.collection,
            rkey=told.rkey,
            cid=str(told.cid),
            record=told.record,
            is_verified=False,
        )
