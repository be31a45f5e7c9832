"""What is done about agents that have used up their month: what they have awake is put to sleep, or ends."""

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from enum import StrEnum
from typing import Final

from actors.faces import HostFace
from actors.noticing import note_rest
from leases import Cause, Lease, LeaseStatus, Ledger, Why
from sandboxes import SandboxError

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # after the files of a sandbox could not be kept


class AtLimit(StrEnum):
    """What happens to an agent's leases when its budget is spent."""

    SLEEP = "sleep"  # and stay asleep until the month turns or the budget is raised
    END = "end"


class Budgets:
    """Carries it out.

    Args:
        ledger: says whose budget is spent.
        host_of: gives the host of a node.
        locks: one per lease; whoever touches its sandbox holds it.
        at_limit: what to do.
        wake: is called when leases have ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        host_of: Callable[[str], HostFace],
        locks: MutableMapping[str, asyncio.Lock],
        at_limit: AtLimit,
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._host_of, self._locks = ledger, host_of, locks
        self._at_limit, self._wake = at_limit, wake
        self._not_before: dict[str, float] = {}  # lease id → monotonic seconds

    async def sweep(self) -> None:
        """Warn of budgets that are nearly used up, and do what is to be done about those that are spent.

        Raises:
            SandboxError: the files of a sandbox could not be kept: it stays awake (the first; the others were
                put to sleep all the same).
        """
        failed: SandboxError | None = None
        now = time.monotonic()
        self._not_before = {lease_id: at for lease_id, at in self._not_before.items() if at > now}
        for use in self._ledger.sweep_budgets():
            for lease in use.leases:
                if self._at_limit is AtLimit.END:
                    self._ledger.expire(lease.id, Cause.BUDGET)
                    self._wake()
                elif lease.id not in self._not_before:
                    try:
                        await self._put_to_sleep(lease)
                    except SandboxError as error:
                        self._not_before[lease.id] = time.monotonic() + RETRY_S
                        failed = failed or error
        if failed is not None:
            raise failed

    async def _put_to_sleep(self, held: Lease) -> None:
        """Have it sleep now, unless a turn runs in it: then the next sweep tries again."""
        async with self._locks[held.id]:
            lease = self._ledger.get(held.id)
            if lease.status is not LeaseStatus.ACTIVE or lease.epoch != held.epoch:
                return
            if lease.node_id is None:
                self._ledger.sleep(lease.id, lease.epoch, why=Why.BUDGET)
                return
            host = self._host_of(lease.node_id)
            slept = await host.suspend(lease.sandbox_id, 0)
            seen = await host.find(lease.sandbox_id)
            if not slept and seen.alive:
                return
            note_rest(self._ledger, lease, seen, why=Why.BUDGET)
        log.info("asleep: its budget is spent", extra={"lease": lease.id, "agent": lease.agent_did})
