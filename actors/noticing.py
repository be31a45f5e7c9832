"""What the ledger learns of sandboxes that changed without it: put away by their node, dead, found awake."""

from actors.faces import COLD, SandboxSeen
from leases import Lease, Ledger, SandboxState, Why


def adopt(ledger: Ledger, lease: Lease, seen: SandboxSeen) -> None:
    """Note that a sleeping lease's sandbox is awake, since it was made."""
    with ledger.atomic():
        ledger.sandbox_state(lease.sandbox_id, SandboxState.RUNNING, epoch=lease.epoch, at_ms=seen.since_ms)
        ledger.wake(lease.id, lease.epoch, why=Why.FOUND, at_ms=seen.since_ms)


def rest_of(ledger: Ledger, lease: Lease, seen: SandboxSeen) -> Why:
    """Why an active lease's sandbox is not awake: it was put away with its files, or it has died."""
    since_ms = ledger.awake_since(lease.id)
    was_kept = seen.state == COLD and seen.epoch == lease.epoch and seen.since_ms is not None
    return Why.EVICTED if was_kept and (seen.since_ms or 0) >= (since_ms or 0) else Why.LOST


def note_rest(ledger: Ledger, lease: Lease, seen: SandboxSeen, *, why: Why | None = None) -> None:
    """Note that an active lease's sandbox is not awake, since when it is not if its host can tell.

    Args:
        ledger: the lease's.
        lease: an active one.
        seen: what its host has of it.
        why: what is known; None: what can be told from that.
    """
    told = rest_of(ledger, lease, seen)
    at_ms = seen.since_ms if told is Why.EVICTED else None
    state = SandboxState.COLD if seen.state == COLD else SandboxState.FAILED
    with ledger.atomic():
        if lease.node_id is not None:
            ledger.sandbox_state(lease.sandbox_id, state, epoch=lease.epoch, at_ms=at_ms)
        ledger.sleep(lease.id, lease.epoch, why=why or told, at_ms=at_ms)
