"""Leases in another's sandbox: destroyed with the last of them, billed once."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leases import (
    BudgetExceeded,
    Cause,
    FieldInvalid,
    Lease,
    LeaseEnded,
    LeaseEnding,
    LeaseStatus,
    Ledger,
    SandboxState,
    StaleEpoch,
    UnknownLease,
)

Join = Callable[..., Lease]
HOUR_MS = 3_600_000


@pytest.fixture
def host(ledger: Ledger, join: Join) -> Lease:
    """Alice's lease, with a sandbox."""
    lease = join("alice", tier="docker", image="catan")
    ledger.place(lease.id, lease.epoch, sandbox_id=lease.sandbox_id, node_id="n1")
    return ledger.get(lease.id)


def as_guest(join: Join, host: Lease, agent: str = "bob", environment_id: str = "side-1") -> Lease:
    return join(agent, environment_id, tier="process", share_with=(host.id, host.epoch))


def billed(ledger: Ledger) -> dict[tuple[str, str], int]:
    return {(cost.agent_did[8:], cost.tier): cost.awake_ms for cost in ledger.costs() if cost.cost_usd > 0}


def close(ledger: Ledger, lease: Lease) -> None:
    """Destroy, as the supervisor does."""
    if lease.node_id is not None:
        ledger.sandbox_state(lease.sandbox_id, SandboxState.DELETED, epoch=lease.epoch)
    ledger.destroyed(lease.id, epoch=lease.epoch)


def test_a_guest_has_its_own_lease_in_the_host_s_sandbox(ledger: Ledger, join: Join, host: Lease) -> None:
    guest = as_guest(join, host)
    assert (guest.sandbox_id, guest.node_id, guest.image) == (host.sandbox_id, None, "catan")
    assert ledger.host_of(guest) == host
    assert ledger.host_of(host) is None
    assert ledger.guests_of(host) == [guest]
    assert as_guest(join, host) == guest  # again is the same
    assert ledger.unplaced() == []
    assert ledger.idle(2**60) == [host]  # a guest is on no node: nobody puts it to sleep or repairs it


def test_a_guest_of_a_guest_is_the_host_s(ledger: Ledger, join: Join, host: Lease) -> None:
    grandchild = as_guest(join, as_guest(join, host), "carol", "side-2")
    assert ledger.host_of(grandchild) == host
    assert len(ledger.guests_of(host)) == 2


def test_the_sandbox_goes_with_the_last_of_them(ledger: Ledger, join: Join, host: Lease) -> None:
    bob, carol = as_guest(join, host), as_guest(join, host, "carol")
    ledger.expire(bob.id, Cause.OPERATOR)
    assert [lease.id for lease in ledger.pending_destroy()] == [bob.id]
    close(ledger, ledger.get(bob.id))
    ledger.expire(host.id, Cause.OPERATOR)
    assert ledger.pending_destroy() == []
    with pytest.raises(LeaseEnding):  # alice's next sandbox would have the name of this one
        join("alice")
    with pytest.raises(LeaseEnded):
        as_guest(join, host, "dave")
    ledger.expire(carol.id, Cause.OPERATOR)
    assert {lease.id for lease in ledger.pending_destroy()} == {host.id, carol.id}
    for lease in ledger.pending_destroy():
        close(ledger, lease)
    assert ledger.pending_destroy() == []
    assert join("alice").epoch == 2


def test_its_awake_time_is_billed_once(ledger: Ledger, join: Join, host: Lease, clock: list[int]) -> None:
    bob = as_guest(join, host)
    clock[0] += HOUR_MS
    carol = as_guest(join, host, "carol")
    assert billed(ledger) == {("alice", "docker"): HOUR_MS}
    clock[0] += HOUR_MS
    ledger.expire(host.id, Cause.OPERATOR)  # bob came first: from now on it is his
    clock[0] += HOUR_MS
    assert billed(ledger) == {("alice", "docker"): 2 * HOUR_MS, ("bob", "docker"): HOUR_MS}
    assert (ledger.awake_ms(bob.agent_did), ledger.awake_ms(carol.agent_did)) == (HOUR_MS, 0)
    ledger.check_invariants()
    ledger.expire(bob.id, Cause.OPERATOR)
    clock[0] += HOUR_MS
    ledger.expire(carol.id, Cause.OPERATOR)
    clock[0] += HOUR_MS
    assert billed(ledger) == {
        ("alice", "docker"): 2 * HOUR_MS,
        ("bob", "docker"): HOUR_MS,
        ("carol", "docker"): HOUR_MS,
    }


def test_who_sleeps_when_the_host_ends_is_billed_when_it_wakes(
    ledger: Ledger, join: Join, host: Lease, clock: list[int]
) -> None:
    bob = as_guest(join, host)
    ledger.sleep(bob.id, bob.epoch)
    ledger.expire(host.id, Cause.OPERATOR)
    clock[0] += HOUR_MS
    assert billed(ledger) == {}
    ledger.wake(bob.id, bob.epoch)
    clock[0] += HOUR_MS
    assert billed(ledger) == {("bob", "docker"): HOUR_MS}


def test_a_guest_is_not_billed_for_its_visit_but_needs_a_budget(
    ledger: Ledger, join: Join, host: Lease, clock: list[int]
) -> None:
    ledger.set_budget("did:plc:bob", 1.0)
    as_guest(join, host)
    clock[0] += 5 * HOUR_MS
    assert ledger.sweep_budgets() == []
    join("bob", "own")
    clock[0] += 2 * HOUR_MS
    with pytest.raises(BudgetExceeded):
        as_guest(join, host, environment_id="side-9")


def test_whom_nobody_can_share_with(ledger: Ledger, join: Join, host: Lease) -> None:
    with pytest.raises(UnknownLease):
        join("bob", share_with=("did:plc:nobody::x", 1))
    with pytest.raises(StaleEpoch):
        join("bob", share_with=(host.id, host.epoch + 1))
    unplaced = join("erin", "x")
    with pytest.raises(LeaseEnded):
        join("bob", share_with=(unplaced.id, 1))
    ledger.expire(unplaced.id, Cause.OPERATOR)
    ledger.destroyed(unplaced.id)
    guest = as_guest(join, host)
    for lease in (host, guest):
        ledger.expire(lease.id, Cause.OPERATOR)
    with pytest.raises(FieldInvalid, match="its own"):
        join("alice", share_with=(host.id, host.epoch))
    assert [lease.status for lease in ledger.list(environment_id="catan-7")] == [LeaseStatus.EXPIRED]


HOST, *VISITORS = ("alice", "bob", "carol", "dave")
STEPS = st.tuples(st.sampled_from(["come", "go", "wait"]), st.sampled_from([HOST, *VISITORS]))


@given(st.lists(STEPS, max_size=30))
def test_whoever_comes_and_goes_every_moment_of_the_sandbox_is_billed_once(
    steps: list[tuple[str, str]],
) -> None:
    now, used_ms = [1_764_547_200_000], 0
    with (
        TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder,
        Ledger(Path(folder) / "ledger.db", clock=lambda: now[0], lock_wait_s=0) as ledger,
    ):
        host = _come(ledger, HOST)
        ledger.place(host.id, host.epoch, sandbox_id=host.sandbox_id, node_id="n1")
        inside = {HOST}
        for what, who in steps:
            if what == "wait":
                now[0] += 1000
                used_ms += 1000 if inside else 0
            elif what == "go" and who in inside:
                ledger.expire(f"did:plc:{who}::x", Cause.OPERATOR)
                inside.remove(who)
            elif what == "come" and who != HOST and who not in inside and HOST in inside:
                _come(ledger, who, share_with=(host.id, host.epoch))
                inside.add(who)
            if not inside:
                break
        ledger.check_invariants()
        assert sum(billed(ledger).values()) == used_ms
        waiting = {lease.id for lease in ledger.pending_destroy()}
        assert (host.id in waiting) == (not inside)


def _come(ledger: Ledger, who: str, **terms: Any) -> Lease:
    return ledger.acquire(f"did:plc:{who}", "x", "catan", authority_did="did:plc:gm", **terms).lease
