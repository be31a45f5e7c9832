"""After a lease has ended: its sandbox is destroyed; only the host's word that nothing is left closes it."""

import asyncio
from collections.abc import Callable, MutableMapping

from actors import farewell
from actors.faces import HostFace
from actors.placing import DESTROY_TIMEOUT_S
from actors.steps import Steps
from leases import Lease, Ledger, SandboxState


class Endings:
    """Finishes them; see `Placing` for what it is given. `clock` gives epoch milliseconds."""

    def __init__(
        self,
        ledger: Ledger,
        host_of: Callable[[str], HostFace],
        locks: MutableMapping[str, asyncio.Lock],
        steps: Steps,
        *,
        clock: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._host_of, self._locks = ledger, host_of, locks
        self._steps, self._clock, self._wake = steps, clock, wake

    async def finish(self) -> None:
        """Destroy what has ended; a lease is `destroyed` only once its host says that nothing is left."""
        async with asyncio.TaskGroup() as tasks:
            for lease in self._ledger.pending_destroy():
                if not self._said_farewell(lease):
                    continue
                tasks.create_task(self._steps.run(f"destroy {lease.id}", self._destroy(lease)))

    def _said_farewell(self, lease: Lease) -> bool:
        """Whether an agent that was told of its end has had the time to note it in its sandbox."""
        condition_ended = lease.ended_by in lease.expiry_conditions
        if lease.environment_type not in farewell.ENVIRONMENT_TYPES or not condition_ended:
            return True
        left_s = farewell.GRACE_S - (self._clock() - (lease.ended_at or 0)) / 1000
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._wake)
        return left_s <= 0

    async def _destroy(self, lease: Lease) -> None:
        async with self._locks[lease.id], asyncio.timeout(DESTROY_TIMEOUT_S):
            if lease.node_id is not None:
                await self._host_of(lease.node_id).destroy(lease.sandbox_id)
                self._ledger.sandbox_state(lease.sandbox_id, SandboxState.DELETED, epoch=lease.epoch)
            self._ledger.destroyed(lease.id, epoch=lease.epoch)
        self._locks.pop(lease.id, None)
