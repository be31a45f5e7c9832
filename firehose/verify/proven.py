"""What a #commit proves by itself, in one go: the facts that its verdict hangs on, out of the frame's bytes.

Where the package was built with a C compiler, `firehose/_proof.h` does it without making a value on the way.
What does not prove itself, or not as simply as nearly every commit, has no `Proof`: then `Verifier` looks at
it step by step and says what is wrong, so nothing is ever refused here. A proof is as good in another
process as in this one, and it depends on no other frame.
"""

from hashlib import sha256
from typing import Final, Protocol

from firehose import compiled
from firehose.car import split_car
from firehose.cid import Cid
from firehose.drisl import is_sparse
from firehose.errors import FrameInvalid
from firehose.frames import MAX_FRAME_BYTES, CommitEvent, parse_frame
from firehose.keys import SIGNATURE_BYTES, VerifyingKey
from firehose.syntax import Nsid, RecordKey
from firehose.tid import tid_micros
from firehose.verify.proof import (
    VerifiedRecord,
    check_ops,
    check_tree,
    open_commit,
    read_records,
    records_of,
)

SUPPORTED_METHODS: Final = ("did:plc:", "did:web:")  # specs/did, "Blessed DID Methods"


# Of a commit whose blocks, ops, tree and records are right; plain, so that it crosses to another process:
# seq, DID, rev, the time in the rev (µs since 1970), since, the CIDs of the tree before (which undoing the
# ops gave) and after, the signature, and the SHA-256 that it should sign (both empty once it was checked).
Proof = tuple[int, str, str, int, str | None, bytes, bytes, bytes, bytes]


class Proved(Protocol):
    """What was found out of a frame before its turn came."""

    @property
    def proof(self) -> Proof | None:
        """None: there is none, or none was looked for."""

    @property
    def key(self) -> VerifyingKey | None:
        """Whose signature the proof has; None: that is yet to be checked."""


def prove(frame: bytes) -> Proof | None:
    """The proof in a frame, if there is one and it can be had the compiled way."""
    if compiled.fast is None or len(frame) > MAX_FRAME_BYTES or not is_sparse(frame):
        return None
    proof: Proof | None = compiled.fast.prove(frame)
    return proof


def prove_slowly(frame: bytes) -> Proof | None:
    """The proof in a frame, if there is one: the twin of `prove` in Python."""
    try:
        event = parse_frame(frame)
        if not isinstance(event, CommitEvent) or event.prev_data is None:
            return None
        if not event.did.startswith(SUPPORTED_METHODS):
            return None
        places = check_ops(event)
        commit, blocks = open_commit(event)
        check_tree(event, commit, blocks)
        read_records(event, places, blocks)
    except FrameInvalid:
        return None
    if len(commit.sig) != SIGNATURE_BYTES:
        return None
    return (
        event.seq,
        event.did,
        event.rev,
        tid_micros(event.rev),
        event.since,
        event.prev_data.bytes,
        commit.data.bytes,
        commit.sig,
        sha256(commit.signed_bytes).digest(),
    )


def read_proven(frame: bytes) -> tuple[CommitEvent, tuple[VerifiedRecord, ...]]:
    """Event and records of a frame that has a proof: what was checked is not checked again."""
    event = parse_frame(frame)
    assert isinstance(event, CommitEvent), "only a commit proves itself"
    values = None
    if compiled.fast is not None:
        cids = [op.cid.bytes for op in event.ops if op.cid is not None]
        values = compiled.fast.records(event.blocks, cids, Cid)
    if values is None:
        return event, read_records(event, check_ops(event), split_car(event.blocks)[1])
    found = iter(values)
    contents = [None if op.cid is None else next(found) for op in event.ops]
    places = [op.path.split("/") for op in event.ops]
    return event, records_of(event, [(Nsid(nsid), RecordKey(rkey)) for nsid, rkey in places], contents)
