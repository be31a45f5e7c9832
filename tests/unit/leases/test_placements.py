"""Where sandboxes are: the intent before, the reports after."""

from collections.abc import Callable

import pytest

from leases import Cause, FieldInvalid, Lease, LeaseStatus, Ledger, SandboxState, StaleEpoch, UnknownSandbox


def test_the_intent_is_written_before_the_sandbox_exists(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join(image="catan")
    clock[0] += 5
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node-1")
    (placed,) = ledger.sandboxes()
    assert (placed.sandbox_id, placed.lease_id, placed.epoch) == ("box", lease.id, 1)
    assert (placed.node_id, placed.tier, placed.image) == ("node-1", "process", "catan")
    assert (placed.state, placed.placed_at, placed.changed_at) == (SandboxState.WARMING, clock[0], clock[0])
    assert (ledger.get(lease.id).sandbox_id, ledger.get(lease.id).node_id) == ("box", "node-1")
    last = ledger.history(lease.id)[-1]
    assert (last.cause, last.sandbox_id, last.sandbox_state, last.node_id) == (
        Cause.PLACED,
        "box",
        SandboxState.WARMING,
        "node-1",
    )


def test_reports_are_kept_with_history_and_only_when_they_change_something(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    assert ledger.sandbox_state("box", "warm") is True
    assert ledger.sandbox_state("box", SandboxState.WARM) is False
    assert ledger.sandbox_state("box", SandboxState.RUNNING, epoch=1) is True
    states = [event.sandbox_state for event in ledger.history(lease.id) if event.cause is Cause.SANDBOX]
    assert states == [SandboxState.WARM, SandboxState.RUNNING]
    assert ledger.get(lease.id).status is LeaseStatus.ACTIVE
    with pytest.raises(ValueError, match="asleep"):
        ledger.sandbox_state("box", "asleep")


def test_a_deleted_sandbox_stays_deleted_until_it_is_placed_again(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node-1")
    ledger.sandbox_state("box", SandboxState.DELETED)
    assert ledger.sandbox_state("box", SandboxState.WARM) is False  # a late report of a dead host
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node-2")
    assert [(one.state, one.node_id) for one in ledger.sandboxes()] == [(SandboxState.WARMING, "node-2")]


def test_destroyed_leaves_no_sandbox_on_the_books(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    ledger.place(lease.id, 1, sandbox_id="box-2", node_id="node")
    ledger.expire(lease.id, Cause.OPERATOR)
    assert ledger.sandbox_state("box", SandboxState.FAILED) is True
    ledger.destroyed(lease.id)
    assert {one.state for one in ledger.sandboxes()} == {SandboxState.DELETED}
    assert ledger.sandbox_state("box-2", SandboxState.WARM) is False


def test_every_epoch_has_its_own_row(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    ledger.expire(lease.id, Cause.OPERATOR)
    ledger.destroyed(lease.id)
    join()
    with pytest.raises(StaleEpoch):  # not placed in this epoch yet: the report is about the old one
        ledger.sandbox_state("box", SandboxState.WARM)
    with pytest.raises(UnknownSandbox):
        ledger.sandbox_state("box", SandboxState.WARM, epoch=2)
    ledger.place(lease.id, 2, sandbox_id="box", node_id="node")
    assert [(one.epoch, one.state) for one in ledger.sandboxes()] == [
        (1, SandboxState.DELETED),
        (2, SandboxState.WARMING),
    ]


def test_a_sandbox_belongs_to_one_lease(ledger: Ledger, join: Callable[..., Lease]) -> None:
    alice, bob = join("alice"), join("bob")
    ledger.place(alice.id, 1, sandbox_id="box", node_id="node")
    with pytest.raises(FieldInvalid, match="belongs to did:plc:alice"):
        ledger.place(bob.id, 1, sandbox_id="box", node_id="node")
    with pytest.raises(UnknownSandbox, match="no lease ever had"):
        ledger.sandbox_state("another", SandboxState.WARM)


def test_sandboxes_are_listed_by_state_and_node(ledger: Ledger, join: Callable[..., Lease]) -> None:
    for agent, node in (("alice", "node-1"), ("bob", "node-2"), ("carol", "node-2")):
        ledger.place(join(agent).id, 1, sandbox_id=agent, node_id=node)
    ledger.sandbox_state("bob", SandboxState.WARM)
    assert [one.sandbox_id for one in ledger.sandboxes(node_id="node-2")] == ["bob", "carol"]
    assert [one.sandbox_id for one in ledger.sandboxes(state="warming")] == ["alice", "carol"]
    assert [one.sandbox_id for one in ledger.sandboxes(state=SandboxState.WARM, node_id="node-1")] == []
