"""Where sandboxes are: the intent before one exists, then what its host reports.

Everything here runs inside the caller's transaction.
"""

from leases.errors import FieldInvalid, StaleEpoch, UnknownSandbox
from leases.history import Happening
from leases.lease import Lease, LeaseStatus, Placement, SandboxState
from leases.lifecycle import happen
from leases.rows import get_lease, placement_of
from leases.store import Store
from leases.transitions import Cause


def place(store: Store, lease: Lease, *, sandbox_id: str, node_id: str, now_ms: int) -> None:
    """Write that a live lease's sandbox is about to be created on a node (again, if it was lost).

    Raises: FieldInvalid: the sandbox id belongs to another lease.
    """
    other = store.row(
        "SELECT lease_id FROM sandboxes WHERE sandbox_id = ? AND lease_id <> ?", sandbox_id, lease.id
    )
    if other is not None:
        raise FieldInvalid("sandbox_id", sandbox_id, f"it belongs to {other['lease_id']}")
    what = Happening(
        cause=Cause.PLACED,
        epoch=lease.epoch,
        sandbox_id=sandbox_id,
        sandbox_state=SandboxState.WARMING,
        node_id=node_id,
    )
    at = happen(store, lease, what, now_ms=now_ms)
    store.run("UPDATE leases SET sandbox_id = ?, node_id = ? WHERE id = ?", sandbox_id, node_id, lease.id)
    store.run(
        """
        INSERT INTO sandboxes
            (sandbox_id, epoch, lease_id, node_id, tier, image, state, placed_at, changed_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
        ON CONFLICT (sandbox_id, epoch) DO UPDATE
        SET node_id = excluded.node_id, state = excluded.state, changed_at = excluded.changed_at
        """,
        *(sandbox_id, lease.epoch, lease.id, node_id, lease.tier, lease.image, SandboxState.WARMING, at),
    )


def move(store: Store, lease: Lease, node_id: str, *, now_ms: int) -> None:
    """Write that a lease's sandbox belongs to another node from now on; it need not exist."""
    what = Happening(
        cause=Cause.REPAIRED,
        epoch=lease.epoch,
        sandbox_id=lease.sandbox_id,
        node_id=node_id,
        detail={"from_node": lease.node_id},
    )
    happen(store, lease, what, now_ms=now_ms)
    store.run("UPDATE leases SET node_id = ? WHERE id = ?", node_id, lease.id)
    store.run(
        "UPDATE sandboxes SET node_id = ? WHERE sandbox_id = ? AND epoch = ?",
        *(node_id, lease.sandbox_id, lease.epoch),
    )


def report(store: Store, sandbox_id: str, state: SandboxState, *, epoch: int | None, now_ms: int) -> bool:
    """Write what a host reports of the sandbox placed last under this id. Returns: False if nothing changed.

    Raises: UnknownSandbox. StaleEpoch: the report is about an older sandbox than the lease's.
    """
    placed = _newest(store, sandbox_id)
    lease = get_lease(store, placed.lease_id)
    about = placed.epoch if epoch is None else epoch
    if about != lease.epoch:
        raise StaleEpoch(lease.id, about, lease.epoch)
    if about != placed.epoch:
        raise UnknownSandbox(sandbox_id)
    if placed.state in (state, SandboxState.DELETED) or lease.status is LeaseStatus.DESTROYED:
        return False
    what = Happening(
        cause=Cause.SANDBOX,
        epoch=lease.epoch,
        sandbox_id=sandbox_id,
        sandbox_state=state,
        node_id=placed.node_id,
    )
    at = happen(store, lease, what, now_ms=now_ms)
    store.run(
        "UPDATE sandboxes SET state = ?, changed_at = ? WHERE sandbox_id = ? AND epoch = ?",
        *(state, at, sandbox_id, placed.epoch),
    )
    return True


def _newest(store: Store, sandbox_id: str) -> Placement:
    row = store.row("SELECT * FROM sandboxes WHERE sandbox_id = ? ORDER BY epoch DESC LIMIT 1", sandbox_id)
    if row is None:
        raise UnknownSandbox(sandbox_id)
    return placement_of(row)
