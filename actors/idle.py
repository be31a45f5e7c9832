"""Sleep for leases that nobody uses: their sandboxes become snapshots, and their awake time stops.

Order: the host keeps the files and removes the sandbox, then the ledger says that the lease sleeps. A kill
in between leaves an active lease without a sandbox, which the next turn has made again from the snapshot.
"""

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Final

from actors.faces import HostFace
from leases import Lease, Ledger, SandboxState, Why
from sandboxes import SandboxError

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # after a sandbox was in use, or its files could not be kept


class IdleLeases:
    """Puts them to sleep; `locks` has one lock per lease, which whoever touches its sandbox holds."""

    def __init__(
        self, ledger: Ledger, host_of: Callable[[str], HostFace], locks: MutableMapping[str, asyncio.Lock]
    ) -> None:
        self._ledger, self._host_of, self._locks = ledger, host_of, locks
        self._not_before: dict[str, float] = {}  # lease id → monotonic seconds

    async def sweep(self) -> None:
        """Put every lease to sleep that has been idle for its time.

        Raises:
            SandboxError: the files of one could not be kept (the first; the others were tried all the same).
        """
        now = time.monotonic()
        due = [lease for lease in self._ledger.idle() if self._not_before.get(lease.id, 0.0) <= now]
        ids = {lease.id for lease in due}
        self._not_before = {key: at for key, at in self._not_before.items() if at > now or key in ids}
        failed: SandboxError | None = None
        for lease in due:
            try:
                slept = await self._put_to_sleep(lease)
            except SandboxError as error:
                failed = failed or error
                slept = False
            if slept:
                self._not_before.pop(lease.id, None)
            else:
                self._not_before[lease.id] = time.monotonic() + RETRY_S
        if failed is not None:
            raise failed

    async def _put_to_sleep(self, lease: Lease) -> bool:
        async with self._locks[lease.id]:
            # Asked again under the lock: it may have been used, or have ended, while we waited for it.
            if not self._ledger.is_idle(lease.id, lease.epoch):
                return False
            assert lease.node_id is not None  # `idle` gives placed leases only
            if not await self._host_of(lease.node_id).suspend(lease.sandbox_id, lease.sleep_after_ms):
                return False
            with self._ledger.atomic():
                self._ledger.sandbox_state(lease.sandbox_id, SandboxState.COLD, epoch=lease.epoch)
                self._ledger.sleep(lease.id, lease.epoch, why=Why.IDLE)
        log.info("asleep", extra={"lease": lease.id, "sandbox": lease.sandbox_id})
        return True
