"""A guard in the ledger's file: one holder per key at a time, for every process of this node that opens it.

A latch as `sandboxes.sharing.Guard` wants one, which waits, renews and fences. It works beside the ledger's
one writer: its table is its own, and its transactions begin by taking SQLite's write lock.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leases.errors import LedgerLocked, LedgerUnavailable
from leases.store import Access, Store

UPGRADE_WAIT_S: Final = 5.0  # for another process that is making the file right now


class LedgerLatch:
    """See the module. Synchronous and safe from several threads.

    Args:
        path: the ledger; made if it is not there.
        clock: wall clock, epoch milliseconds. If it goes back, holders keep what they hold for longer; if it
            jumps ahead, they lose it, and are refused when they write.
    """

    reach: Final = "node"  # who meets here, in the words of sandboxes.sharing.Reach

    def __init__(self, path: Path, *, clock: Callable[[], int] | None = None) -> None:
        self.where = f"the ledger {path}"
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._store = _open(path)

    def try_enter(self, key: str, holder: str, ttl_ms: int, floor: int) -> int | None:
        """Give a token that is larger than all before it, and at least `floor`; None: held by another.

        Raises: LedgerUnavailable.
        """
        now = self._clock()
        with self._store.atomic():
            row = self._store.row("SELECT * FROM guards WHERE key = ?", key)
            if row is not None and row["holder"] is not None and row["until"] > now:
                return None
            token = max(1, floor, 0 if row is None else row["token"] + 1)
            self._store.run(
                "INSERT INTO guards (key, token, holder, until) VALUES (?1, ?2, ?3, ?4)"
                " ON CONFLICT (key) DO UPDATE SET token = ?2, holder = ?3, until = ?4",
                *(key, token, holder, now + ttl_ms),
            )
            return token

    def renew(self, key: str, holder: str, ttl_ms: int) -> bool:
        """Hold it for another `ttl_ms`. False: the time was over, or another holds it; nothing is changed.

        Raises: LedgerUnavailable.
        """
        now = self._clock()
        touched = self._store.run(
            "UPDATE guards SET until = max(until, ?1) WHERE key = ?2 AND holder = ?3 AND until > ?4",
            *(now + ttl_ms, key, holder, now),
        )
        return touched > 0

    def leave(self, key: str, holder: str) -> bool:
        """Let go. False: another holds it, or nobody; nothing is changed.

        Raises: LedgerUnavailable.
        """
        touched = self._store.run(
            "UPDATE guards SET holder = NULL WHERE key = ?1 AND holder = ?2", *(key, holder)
        )
        return touched > 0

    def close(self) -> None:
        """Close the file; twice is as good as once."""
        self._store.close()


def _open(path: Path) -> Store:
    """The ledger beside its writer. Where there is none yet, or an older one, it is made or upgraded first.

    Raises: LedgerUnavailable.
    """
    try:
        return Store(path, Access.BESIDE)
    except LedgerUnavailable:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(LedgerLocked):  # its writer has upgraded it, or what is wrong is said below
            Store(path, Access.WRITE, lock_wait_s=UPGRADE_WAIT_S).close()
    return Store(path, Access.BESIDE)
