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
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnavailable(str(ledger), f"cannot lock it: {error.strerror}") from error
        try:
            self._take(time.monotonic() + wait_s)
            self._sign()
        except BaseException:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Let the next writer in; twice is as good as once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _take(self, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    raise LedgerUnavailable(str(self._ledger), f"cannot lock it: {error.strerror}") from error
                if time.monotonic() >= deadline:
                    raise LedgerLocked(str(self._ledger), self._holder_pid()) from None
            time.sleep(POLL_S)

    def _sign(self) -> None:
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except OSError:
            return  # a full disk: the lock holds all the same, only a refused writer will not learn our pid

    def _holder_pid(self) -> int | None:
        text = os.pread(self._fd, 32, 0).strip()
        return int(text) if text.isdigit() else None
