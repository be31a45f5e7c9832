"""The ledger against what is really there, at start and from time to time: nothing leaks, nothing is billed
that is not awake, nobody's sandbox is somebody's.

What lives and belongs to a live lease is adopted; what fell asleep or died without the ledger is noted with
the time it did; what no lease owns is destroyed. Everything is asked again under its lease's lock, since it
may have changed after the list was made; what is being made or destroyed right now is left to the next round.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final

from actors.errors import SkyleaseError
from actors.faces import COLD, HostFace, SandboxSeen
from actors.noticing import adopt, note_rest, rest_of
from leases import Lease, LeaseError, LeaseStatus, Ledger, Repair, UnknownLease, Why
from sandboxes import SandboxError

log = logging.getLogger(__name__)

RECONCILE_EVERY_S: Final = 10.0
SNAPSHOTS_EVERY_S: Final = 600.0  # a store far away is asked for all its names
UNHURT: Final = (SandboxError, LeaseError, SkyleaseError)  # one that cannot be repaired stops no other
HALF_MADE: Final = frozenset({"warming", "suspending"})  # its host is at it, or will clear it away


class Repairs:
    """Compares them; see `Placing` for what it is given.

    Args:
        nodes: those that can be asked. A lease on any other is moved to the one where its sandbox is found.
        clock: wall clock, epoch milliseconds.
        unleased_ms: how long a sandbox may live that was never leased to anybody.
        sees_all: whether `nodes` are all there are, so that what is on none of them is lost.
    """

    def __init__(
        self,
        ledger: Ledger,
        host_of: Callable[[str], HostFace],
        locks: MutableMapping[str, asyncio.Lock],
        nodes: tuple[str, ...],
        *,
        clock: Callable[[], int],
        unleased_ms: int,
        sees_all: bool = True,
    ) -> None:
        self._ledger, self._host_of, self._locks, self._nodes = ledger, host_of, locks, nodes
        self._clock, self._unleased_ms, self._sees_all = clock, unleased_ms, sees_all
        self._is_first = True
        self.done_at = float("-inf")  # monotonic seconds; the next round is due RECONCILE_EVERY_S later
        self._snapshots_at = float("-inf")

    async def reconcile(self) -> None:
        """Repair, if it is time to.

        Raises:
            SandboxError, LeaseError, SkyleaseError: the first of what could not be repaired; all was tried.
        """
        now = time.monotonic()
        if now - self.done_at < RECONCILE_EVERY_S:
            return
        snapshots = now - self._snapshots_at >= SNAPSHOTS_EVERY_S
        await self.round(moves=self._is_first, snapshots=snapshots)
        self._is_first = False
        self.done_at = time.monotonic()
        self._snapshots_at = self.done_at if snapshots else self._snapshots_at

    async def round(
        self, *, moves: bool = True, snapshots: bool = True, dry_run: bool = False
    ) -> list[Repair]:
        """Compare everything once; what was repaired, or (`dry_run`) would be.

        Raises:
            SandboxError, LeaseError, SkyleaseError: as `reconcile`.
        """
        work = Round(self._ledger, self._clock, dry_run=dry_run)
        if moves and self._sees_all:
            await work.each(self._ledger.placed_elsewhere(self._nodes), self._move)
            await work.each(self._ledger.unplaced(), self._note_unplaced)
        for node_id in self._nodes:
            host = self._host_of(node_id)
            async with work.fenced():
                there = await host.list()
                await work.each(there, self._judge, node_id)
                alive = {seen.name for seen in there if seen.alive}
                asleep = [held for held in self._awake_on(node_id) if held.sandbox_id not in alive]
                await work.each(asleep, self._note_rest, node_id)
            if snapshots:
                async with work.fenced():
                    await work.each(await host.kept(), self._judge_snapshot, node_id)
        if work.failed is not None:
            raise work.failed
        return work.repairs

    def _awake_on(self, node_id: str) -> list[Lease]:
        return self._ledger.placed(LeaseStatus.ACTIVE, node_id if self._sees_all else None)

    async def _move(self, work: "Round", lease: Lease) -> None:
        """A lease on a node that is gone: its sandbox is on one of ours, or on none."""
        async with self._locks[lease.id]:
            target = self._nodes[0]
            for node_id in self._nodes:
                seen = await self._host_of(node_id).find(lease.sandbox_id)
                if (seen.alive or seen.state == COLD) and seen.epoch == lease.epoch:
                    target = node_id
            if not work.dry_run:
                self._ledger.move(lease.id, lease.epoch, target)
            work.note("its node is gone", "moved", lease.node_id or "", lease.sandbox_id, lease.id, to=target)

    async def _judge(self, work: "Round", seen: SandboxSeen, node_id: str) -> None:
        """A sandbox that is there: leased, or nobody's; asleep by the ledger, or awake."""
        lock = self._locks[seen.lease_id]
        if lock.locked():  # being made or destroyed now: the next round sees what came of it
            return
        async with lock:
            lease = self._lease(seen.lease_id)
            if lease is None or not _owns(lease, seen):
                await self._remove(work, seen, node_id, lease)
            elif lease.status is LeaseStatus.SLEEPING and seen.alive and seen.state not in HALF_MADE:
                if not work.dry_run:
                    adopt(self._ledger, lease, seen)
                work.note("awake, its lease sleeps", "adopted", node_id, seen.name, lease.id)

    async def _remove(self, work: "Round", seen: SandboxSeen, node_id: str, lease: Lease | None) -> None:
        found = "no lease owns it" if lease is None else f"its lease is {lease.status} at epoch {lease.epoch}"
        if not seen.lease_id:
            age_ms = self._clock() - (seen.since_ms or 0)
            if seen.alive and age_ms < self._unleased_ms:
                return
            found = "never leased, and beyond its lifetime" if seen.alive else "never leased, and dead"
        if not work.dry_run:
            await self._host_of(node_id).destroy(seen.name)
            self._ledger.count("orphan_sandboxes")
        work.note(found, "destroyed", node_id, seen.name, seen.lease_id or None)

    async def _note_unplaced(self, work: "Round", held: Lease) -> None:
        """A lease that was given when somebody was killed: its sandbox was not even begun."""
        lock = self._locks[held.id]
        if lock.locked():
            return
        async with lock:
            lease = self._lease(held.id)
            if lease is None or lease.status is not LeaseStatus.ACTIVE or lease.node_id is not None:
                return
            if not work.dry_run:
                self._ledger.sleep(lease.id, lease.epoch, why=Why.LOST)
            work.note("awake without a sandbox", "put to sleep", "", lease.sandbox_id, lease.id)

    async def _note_rest(self, work: "Round", held: Lease, node_id: str) -> None:
        """A lease that is awake by the ledger, and its sandbox is not."""
        lock = self._locks[held.id]
        if lock.locked():
            return
        async with lock:
            lease = self._lease(held.id)
            if lease is None or (lease.status, lease.epoch) != (LeaseStatus.ACTIVE, held.epoch):
                return
            seen = await self._host_of(node_id).find(lease.sandbox_id)
            if seen.alive:
                return
            is_lost = rest_of(self._ledger, lease, seen) is Why.LOST
            if is_lost and not self._sees_all:  # it may live where we cannot look
                return
            if not work.dry_run:
                note_rest(self._ledger, lease, seen)
            if is_lost or work.dry_run:  # what its node did to make room is no repair
                work.note(f"{seen.state}, its lease is awake", "put to sleep", node_id, seen.name, lease.id)

    async def _judge_snapshot(self, work: "Round", name: str, node_id: str) -> None:
        """A snapshot goes when the lease it was taken for is over; of what we do not know, nothing does."""
        lease = self._ledger.lease_of(name)
        if lease is None or self._locks[lease.id].locked():
            return
        async with self._locks[lease.id]:
            lease = self._ledger.get(lease.id)
            if lease.status is not LeaseStatus.DESTROYED and lease.sandbox_id == name:
                return
            if not work.dry_run:
                await self._host_of(node_id).destroy(name)
            work.note("snapshots of a lease that is over", "forgotten", node_id, name, lease.id)

    def _lease(self, lease_id: str) -> Lease | None:
        try:
            return self._ledger.get(lease_id)
        except UnknownLease:
            return None


class Round:
    """What one comparison has come to."""

    def __init__(self, ledger: Ledger, clock: Callable[[], int], *, dry_run: bool) -> None:
        self._ledger, self._clock, self.dry_run = ledger, clock, dry_run
        self.repairs: list[Repair] = []
        self.failed: Exception | None = None

    async def each(self, items: Iterable[Any], judge: Callable[..., Any], *rest: Any) -> None:
        """Judge all of them, also when one cannot be."""
        for item in items:
            async with self.fenced():
                await judge(self, item, *rest)

    @asynccontextmanager
    async def fenced(self) -> AsyncIterator[None]:
        """Remember the first failure, and go on."""
        try:
            yield
        except UNHURT as error:
            log.warning("not repaired", extra={"reason": str(error)})
            self.failed = self.failed or error

    def note(
        self, found: str, done: str, node_id: str, name: str, lease_id: str | None, **detail: Any
    ) -> None:
        """Write a repair down, after it was done: what a kill leaves half done is found again."""
        repair = Repair(
            at=self._clock(),
            found=found,
            done=done,
            node_id=node_id,
            name=name,
            lease_id=lease_id,
            detail=detail,
        )
        self.repairs.append(repair)
        if not self.dry_run:
            log.info("repair", extra={"sandbox": name, "found": found, "done": done})
            self._ledger.note_repair(repair)


def _owns(lease: Lease, seen: SandboxSeen) -> bool:
    """Whether a lease answers for this sandbox; one that has ended does until it is destroyed."""
    ours = (lease.sandbox_id, lease.epoch) == (seen.name, seen.epoch)
    return ours and lease.status is not LeaseStatus.DESTROYED
