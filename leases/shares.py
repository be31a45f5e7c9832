"""Leases in another's sandbox: a sub-agent's in its parent's. All of it runs inside the caller's transaction.

The host is the lease that the sandbox was made for. A guest has terms and an end of its own, and no sandbox:
it is placed on no node. The host's sandbox is destroyed when the last of them has ended. Its awake time is
billed once: to the host while that is live, then to the guest that came first; other guests' is SHARED.
"""

from typing import Final

from leases import history, usage
from leases.errors import FieldInvalid, LeaseEnded, StaleEpoch
from leases.lease import Lease, LeaseStatus
from leases.rows import find_leases, get_lease
from leases.store import Store
from leases.usage import SHARED

_GUESTS: Final = """
    WHERE status IN ('active', 'sleeping') AND (id, epoch) IN
        (SELECT lease_id, epoch FROM shares WHERE host_id = ? AND host_epoch = ?)
    ORDER BY leased_at, id
"""


def check_host(store: Store, host_id: str, host_epoch: int, guest_id: str) -> Lease:
    """Give the lease whose sandbox a guest of this one would share: itself, or the host that it visits.

    Raises: UnknownLease. StaleEpoch: the guest was told of an older one. LeaseEnded: it has no sandbox to
    share. FieldInvalid: nobody is its own guest.
    """
    host = get_lease(store, host_id)
    if host.epoch != host_epoch:
        raise StaleEpoch(host_id, host_epoch, host.epoch)
    above = host_of(store, host)
    host = above or host
    if host.id == guest_id:
        raise FieldInvalid("share_with", host_id, "a lease cannot share its own sandbox")
    if not host.is_live or host.node_id is None:
        raise LeaseEnded(host.id, host.status, host.ended_by)
    return host


def note(store: Store, guest: Lease, host: Lease) -> None:
    """Write whose sandbox a lease that was just made is in."""
    store.run(
        "INSERT OR REPLACE INTO shares (lease_id, epoch, host_id, host_epoch) VALUES (?, ?, ?, ?)",
        *(guest.id, guest.epoch, host.id, host.epoch),
    )


def host_of(store: Store, lease: Lease) -> Lease | None:
    """Give the lease whose sandbox this one is in, live or not; None: it has its own.

    Raises: StaleEpoch: the host is another by now, and its sandbox is gone.
    """
    row = store.row("SELECT * FROM shares WHERE lease_id = ? AND epoch = ?", lease.id, lease.epoch)
    if row is None:
        return None
    host = get_lease(store, row["host_id"])
    if host.epoch != row["host_epoch"]:
        raise StaleEpoch(host.id, row["host_epoch"], host.epoch)
    return host


def guests_of(store: Store, host: Lease) -> list[Lease]:
    """Give the live leases in this one's sandbox, those that came first at first."""
    return find_leases(store, _GUESTS, host.id, host.epoch)


def pass_on(store: Store, ended: Lease, *, at: int) -> None:
    """After a lease has ended: if its awake time was the sandbox's, that is now the first guest's."""
    host = host_of(store, ended) or ended
    if host.is_live and host.id != ended.id:
        return  # a guest goes; the host pays on
    heirs = guests_of(store, host)
    if not heirs or any(heir.tier != SHARED for heir in heirs):
        return
    heir = heirs[0]
    store.run("UPDATE leases SET tier = ? WHERE id = ?", host.tier, heir.id)
    if heir.status is LeaseStatus.ACTIVE:
        then = history.last_moment(store, heir.id, at)
        usage.end(store, heir.id, at=then)
        usage.begin(store, get_lease(store, heir.id), at=then)
