"""What was known of each account, as bytes: what stands beside a segment of a tap's window."""

from collections.abc import Iterable
from zlib import crc32

import cbor2

from firehose.cid import Cid
from firehose.syntax import Did, Tid
from firehose.verify.accounts import AccountState, RepoState


def pack_accounts(accounts: Iterable[tuple[Did, AccountState]]) -> bytes:
    """The bytes, with a checksum before them."""
    rows = [
        (
            did,
            None if state.repo is None else state.repo.rev,
            None if state.repo is None else state.repo.data.bytes,
            state.active,
            state.status,
            state.seq,
        )
        for did, state in accounts
    ]
    body = cbor2.dumps(rows)
    return crc32(body).to_bytes(4, "big") + body


def unpack_accounts(packed: bytes) -> list[tuple[Did, AccountState]] | None:
    """What was packed, or None if it is damaged."""
    body = packed[4:]
    if not body or crc32(body) != int.from_bytes(packed[:4], "big"):
        return None
    return [
        (
            Did(did),
            AccountState(
                repo=None if rev is None else RepoState(Tid(rev), Cid(data)),
                active=active,
                status=status,
                seq=seq,
            ),
        )
        for did, rev, data, active, status, seq in cbor2.loads(body)
    ]
