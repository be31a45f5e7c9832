"""What the ledger remembers of the firehose: accounts, cursors, counters."""

from typing import Final

from leases.lease import Account, check_key, check_range, check_word
from leases.store import Store

MAX_SEQ: Final = 2**63 - 1  # SQLite's integer; relays count far below
MAX_HANDLE_CHARS: Final = 253  # atproto.com/specs/handle
MAX_STATUS_CHARS: Final = 64  # an open vocabulary of short words
MAX_REV_CHARS: Final = 13  # atproto.com/specs/tid


def upsert(
    store: Store,
    did: str,
    *,
    handle: str | None,
    active: bool | None,
    status: str | None,
    rev: str | None,
    seq: int | None,
) -> bool:
    """Note what the firehose said about an identity; None leaves a field as it was (a new account is active).

    `active=True` clears the status. What is too long is cut. An older `seq` than the one noted changes
    nothing: frames may come twice.

    Returns: False if it was older.
    """
    if seq is not None:
        check_range("seq", seq, 0, MAX_SEQ)
    row = store.row("SELECT seq FROM accounts WHERE did = ?", did)
    if row is not None and seq is not None and row["seq"] is not None and seq < row["seq"]:
        return False
    store.run("INSERT INTO accounts (did, active) VALUES (?, 1) ON CONFLICT (did) DO NOTHING", did)
    store.run(
        """
        UPDATE accounts SET handle = coalesce(?2, handle), active = coalesce(?3, active),
            status = CASE WHEN ?3 = 1 THEN ?4 ELSE coalesce(?4, status) END,
            rev = CASE WHEN rev IS NULL OR ?5 > rev THEN coalesce(?5, rev) ELSE rev END,
            seq = coalesce(?6, seq)
        WHERE did = ?1
        """,
        *(did, _cut(handle, MAX_HANDLE_CHARS), active),
        *(_cut(status, MAX_STATUS_CHARS), _cut(rev, MAX_REV_CHARS), seq),
    )
    return True


def read(store: Store) -> list[Account]:
    """Give every account, by DID."""
    return [
        Account(
            did=row["did"],
            handle=row["handle"],
            active=bool(row["active"]),
            status=row["status"],
            rev=row["rev"],
            seq=row["seq"],
        )
        for row in store.rows("SELECT * FROM accounts ORDER BY did")
    ]


def save_cursor(store: Store, name: str, seq: int) -> None:
    """Note how far a stream has been dealt with; it never moves back: calls may overtake each other."""
    check_key("cursor", name)
    check_range("seq", seq, 0, MAX_SEQ)
    store.run(
        "INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name)"
        " DO UPDATE SET seq = max(seq, excluded.seq)",
        *(name, seq),
    )


def forget_cursor(store: Store, name: str) -> None:
    """Start a stream anew: its server counts differently now."""
    store.run("DELETE FROM cursors WHERE name = ?", name)


def count(store: Store, name: str, n: int) -> None:
    """Add to a counter."""
    check_word("counter", name)
    check_range("n", n, 0, MAX_SEQ)
    store.run(
        "INSERT INTO counters (name, n) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n",
        name,
        n,
    )


def _cut(text: str | None, most: int) -> str | None:
    return None if text is None else text[:most].encode(errors="replace").decode()
