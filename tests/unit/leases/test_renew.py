"""Renew, sleep, wake, TTL and the fencing epoch."""

from collections.abc import Callable

import pytest

from leases import Cause, FieldInvalid, Lease, LeaseEnded, LeaseStatus, Ledger, StaleEpoch


def test_renew_slides_the_expiry_from_now(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join(ttl_ms=1000)
    clock[0] += 600
    assert ledger.renew(lease.id, 1) is True
    renewed = ledger.get(lease.id)
    assert (renewed.expires_at, renewed.last_activity) == (clock[0] + 1000, clock[0])
    assert renewed.leased_at == lease.leased_at


def test_the_absolute_cap_still_ends_it(ledger: Ledger, join: Callable[..., Lease], clock: list[int]) -> None:
    lease = join(ttl_ms=1000, max_ttl_ms=1500)
    for _ in range(4):
        clock[0] += 400
        ledger.renew(lease.id, 1)
    assert ledger.get(lease.id).expires_at == lease.leased_at + 1500
    assert [late.id for late in ledger.expired()] == [lease.id]


def test_a_lease_is_listed_as_expired_from_its_very_millisecond(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    late, later = join("alice", ttl_ms=1000), join("bob", ttl_ms=2000)
    assert ledger.expired(late.expires_at - 1) == []
    assert [lease.id for lease in ledger.expired(late.expires_at)] == [late.id]
    clock[0] += 5000
    ledger.sleep(later.id, 1)
    assert [lease.id for lease in ledger.expired()] == [late.id, later.id]
    ledger.expire(late.id, Cause.TTL)
    assert [lease.id for lease in ledger.expired()] == [later.id]


@pytest.mark.parametrize("is_destroyed", [False, True], ids=["expired", "destroyed"])
def test_renewing_an_ended_lease_changes_nothing_and_says_so(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int], is_destroyed: bool
) -> None:
    lease = join()
    ledger.expire(lease.id, Cause.OPERATOR)
    if is_destroyed:
        ledger.destroyed(lease.id)
    before = ledger.digest()
    clock[0] += 100
    assert ledger.renew(lease.id, 1, last_turn=4, cursor=("alice", 7)) is False
    assert ledger.sleep(lease.id, 1) is False
    assert ledger.wake(lease.id, 1) is False
    assert ledger.expire(lease.id, Cause.TTL) is False
    assert ledger.digest() == before


def test_renew_notes_turn_and_cursor_and_neither_moves_back(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    ledger.renew(lease.id, 1, last_turn=5, cursor=("alice", 50))
    ledger.renew(lease.id, 1, last_turn=4, cursor=("alice", 40))
    ledger.renew(lease.id, 1)
    assert ledger.get(lease.id).last_turn == 5
    assert ledger.cursor("alice") == 50


def test_a_bad_cursor_rolls_the_renewal_back(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join()
    clock[0] += 9
    with pytest.raises(FieldInvalid):
        ledger.renew(lease.id, 1, cursor=("alice", -1))
    assert ledger.get(lease.id) == lease


def test_a_sleeping_lease_can_be_renewed(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join(ttl_ms=1000)
    ledger.sleep(lease.id, 1)
    clock[0] += 10
    assert ledger.renew(lease.id, 1) is True
    assert ledger.get(lease.id).expires_at == clock[0] + 1000
    assert ledger.get(lease.id).status is LeaseStatus.SLEEPING


def test_sleep_and_wake_move_the_status_once(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    assert ledger.wake(lease.id, 1) is False
    assert ledger.sleep(lease.id, 1) is True
    assert ledger.sleep(lease.id, 1) is False
    assert ledger.wake(lease.id, 1) is True
    causes = [event.cause for event in ledger.history(lease.id)]
    assert causes == [Cause.ACQUIRED, Cause.SLEPT, Cause.WOKEN]


@pytest.mark.parametrize("epoch", [1, 3], ids=["old", "never-given-out"])
def test_every_fenced_call_refuses_another_epoch(
    ledger: Ledger, join: Callable[..., Lease], epoch: int
) -> None:
    lease = join()
    ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    ledger.expire(lease.id, Cause.LOST)
    ledger.destroyed(lease.id)
    assert join().epoch == 2
    ledger.place(lease.id, 2, sandbox_id="box", node_id="node")
    before = ledger.digest()
    for call in (
        lambda: ledger.renew(lease.id, epoch, last_turn=1),
        lambda: ledger.place(lease.id, epoch, sandbox_id="box", node_id="other"),
        lambda: ledger.sandbox_state("box", "warm", epoch=epoch),
        lambda: ledger.sleep(lease.id, epoch),
        lambda: ledger.wake(lease.id, epoch),
        lambda: ledger.expire(lease.id, Cause.RELEASED, epoch=epoch),
        lambda: ledger.destroyed(lease.id, epoch=epoch),
    ):
        with pytest.raises(StaleEpoch) as refused:
            call()
        assert (refused.value.epoch, refused.value.current) == (epoch, 2)
    assert ledger.digest() == before


def test_nothing_is_placed_once_the_lease_has_ended(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    ledger.expire(lease.id, Cause.TTL)
    with pytest.raises(LeaseEnded, match="ttl"):
        ledger.place(lease.id, 1, sandbox_id="box", node_id="node")
    assert ledger.sandboxes() == []


def test_a_clock_that_goes_back_shortens_nothing(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join(ttl_ms=1000)
    clock[0] -= 10_000
    ledger.renew(lease.id, 1)
    assert ledger.get(lease.id).expires_at == lease.expires_at
    ledger.sleep(lease.id, 1)
    clock[0] -= 10_000
    ledger.wake(lease.id, 1)
    ledger.expire(lease.id, Cause.TTL)
    assert {event.at for event in ledger.history(lease.id)} == {lease.leased_at}
    assert ledger.awake_ms(lease.agent_did) == 0
