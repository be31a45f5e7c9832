"""One writer per ledger: a lock file that the kernel releases when its holder dies."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from leases.errors import LedgerLocked, LedgerUnavailable

POLL_S: Final = 0.01


class WriterLock:
    """The right to write one ledger; `<ledger>.lock` beside it names the holder's pid.

    The file stays when the lock is released: removing it would race with the next holder's open.
    """

    def __init__(self, ledger: Path, *, wait_s: float) -> None:
        """Take the lock, waiting at most `wait_s` seconds for a holder that is about to leave.

        Raises: LedgerLocked: somebody still holds it. LedgerUnavailable: the lock file cannot be made.
        """
        self._ledger = ledger
        path = ledger.with_name(ledger.name + ".lock")
        try:
            # a file object, not a bare descriptor: a ledger that is dropped without close lets go as well
            self._file = open(path, "a+b", buffering=0, opener=_open_private)  # noqa: SIM115
        except OSError as error:
            raise LedgerUnavailable(str(ledger), f"cannot lock it: {error.strerror}") from error
        try:
            self._take(time.monotonic() + wait_s)
            self._sign()
        except BaseException:
            self._file.close()
            raise

    def release(self) -> None:
        """Let the next writer in; twice is as good as once."""
        self._file.close()

    def _take(self, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    raise LedgerUnavailable(str(self._ledger), f"cannot lock it: {error.strerror}") from error
                if time.monotonic() >= deadline:
                    raise LedgerLocked(str(self._ledger), self._holder_pid()) from None
            time.sleep(POLL_S)

    def _sign(self) -> None:
        try:
            self._file.truncate(0)
            self._file.write(b"%d\n" % os.getpid())
        except OSError:
            return  # a full disk: the lock holds all the same, only a refused writer will not learn our pid

    def _holder_pid(self) -> int | None:
        self._file.seek(0)
        text = self._file.read(32).strip()
        return int(text) if text.isdigit() else None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
