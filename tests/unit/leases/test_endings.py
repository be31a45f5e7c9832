"""How leases end: by condition, by cause, and never by a stranger."""

from collections.abc import Callable

import pytest

from leases import ENDINGS, Cause, FieldInvalid, InvalidTransition, Lease, LeaseStatus, Ledger

ALICE, BOB, GM = "did:plc:alice", "did:plc:bob", "did:plc:gm"
EVENT = "at://did:plc:gm/dev.skylease.game.finished/3kabc"


def statuses(ledger: Ledger) -> dict[str, LeaseStatus]:
    return {lease.agent_did + " " + lease.environment_id: lease.status for lease in ledger.list()}


def test_the_end_of_a_game_ends_its_leases_and_no_others(ledger: Ledger, join: Callable[..., Lease]) -> None:
    alice, bob = join("alice"), join("bob")
    join("alice", "catan-8")
    join("carol", expiry_conditions=["campaign.ended"])
    ledger.sleep(bob.id, 1)
    assert ledger.expire_by_condition("catan-7", "game.finished", author_did=GM, event=EVENT) == [
        alice.id,
        bob.id,
    ]
    assert statuses(ledger) == {
        "did:plc:alice catan-7": LeaseStatus.EXPIRED,
        "did:plc:bob catan-7": LeaseStatus.EXPIRED,
        "did:plc:alice catan-8": LeaseStatus.ACTIVE,
        "did:plc:carol catan-7": LeaseStatus.ACTIVE,
    }
    assert ledger.counters() == {"ending.ends": 1}


def test_an_ended_lease_remembers_who_ended_it_when_and_why(
    ledger: Ledger, join: Callable[..., Lease], clock: list[int]
) -> None:
    lease = join()
    clock[0] += 77
    ledger.expire_by_condition("catan-7", "game.finished", author_did=GM, event=EVENT)
    ended = ledger.get(lease.id)
    assert (ended.ended_at, ended.ended_by, ended.is_live) == (clock[0], "game.finished", False)
    last = ledger.history(lease.id)[-1]
    assert (last.cause, last.condition, last.author_did, last.event) == (
        Cause.CONDITION,
        "game.finished",
        GM,
        EVENT,
    )
    assert (last.from_status, last.to_status, last.at) == (LeaseStatus.ACTIVE, LeaseStatus.EXPIRED, clock[0])


def test_a_death_ends_only_the_dead_agents_lease(ledger: Ledger, join: Callable[..., Lease]) -> None:
    alice, bob = join("alice", "rpg-1", environment_type="rpg"), join("bob", "rpg-1", environment_type="rpg")
    assert ledger.expire_by_condition("rpg-1", "agent.death", author_did=GM, subject_did=BOB) == [bob.id]
    assert ledger.get(alice.id).status is LeaseStatus.ACTIVE


@pytest.mark.parametrize("author", [BOB, ALICE, "did:plc:stranger", "not even a did", ""])
def test_an_ending_by_anyone_but_the_authority_ends_nothing_and_is_counted(
    ledger: Ledger, join: Callable[..., Lease], author: str
) -> None:
    lease = join()
    assert ledger.expire_by_condition("catan-7", "game.finished", author_did=author) == []
    assert ledger.get(lease.id) == lease
    assert ledger.counters() == {"ending.not_authority": 1}


def test_an_authority_ends_only_the_leases_that_named_it(ledger: Ledger, join: Callable[..., Lease]) -> None:
    mine, fooled = join("alice"), join("bob", authority_did="did:plc:mallory")
    ended = ledger.expire_by_condition("catan-7", "game.finished", author_did="did:plc:mallory")
    assert ended == [fooled.id]
    assert ledger.get(mine.id).is_live


def test_every_ending_is_counted_once(ledger: Ledger, join: Callable[..., Lease]) -> None:
    join()
    for environment, condition, author, subject in (
        ("catan-7", "agent.death", GM, None),
        ("catan-7", "game.finished", BOB, None),
        ("catan-7", "game.finished", GM, BOB),
        ("catan-9", "game.finished", GM, None),
        ("catan-7", "game.finished", GM, None),
        ("catan-7", "game.finished", GM, None),
        ("x" * 100_000, "y" * 100_000, "z" * 100_000, "\x00"),
        ("\ud800", "\ud800", "\ud800", "\ud800"),
        ("catan-7", "\ud800", GM, None),
    ):
        ledger.expire_by_condition(environment, condition, author_did=author, subject_did=subject)
    assert ledger.counters() == {
        "ending.ends": 1,
        "ending.not_a_condition": 2,
        "ending.not_authority": 1,
        "ending.not_live": 1,
        "ending.other_lease": 4,
    }


def test_an_endless_reference_does_not_keep_a_lease_from_ending(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    assert ledger.expire_by_condition("catan-7", "game.finished", author_did=GM, event="x" * 10_000) == [
        lease.id
    ]


@pytest.mark.parametrize("cause", sorted(ENDINGS))
def test_every_ending_cause_ends(ledger: Ledger, join: Callable[..., Lease], cause: Cause) -> None:
    lease = join()
    assert ledger.expire(lease.id, cause.value, EVENT) is True
    ended = ledger.get(lease.id)
    assert (ended.status, ended.ended_by) == (LeaseStatus.EXPIRED, cause.value)
    assert ledger.history(lease.id)[-1].event == EVENT


@pytest.mark.parametrize("cause", sorted(set(Cause) - ENDINGS))
def test_no_other_cause_does(ledger: Ledger, join: Callable[..., Lease], cause: Cause) -> None:
    lease = join()
    with pytest.raises(InvalidTransition, match="acquired - -> active"):
        ledger.expire(lease.id, cause)
    assert ledger.get(lease.id) == lease


def test_a_reason_in_somebodys_own_words_is_kept(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    ledger.expire(lease.id, "maintenance on Friday")
    assert ledger.get(lease.id).ended_by == "maintenance on Friday"
    assert ledger.history(lease.id)[-1].cause is Cause.OTHER
    with pytest.raises(FieldInvalid):
        ledger.expire(lease.id, "")


def test_a_lease_is_destroyed_only_after_it_ended_and_only_once(
    ledger: Ledger, join: Callable[..., Lease]
) -> None:
    lease = join()
    with pytest.raises(InvalidTransition, match="tier_empty cannot happen"):
        ledger.destroyed(lease.id)
    ledger.expire(lease.id, Cause.TTL)
    assert [one.id for one in ledger.pending_destroy()] == [lease.id]
    assert ledger.destroyed(lease.id, epoch=1) is True
    assert ledger.destroyed(lease.id) is False
    assert ledger.pending_destroy() == []
    assert ledger.get(lease.id).status is LeaseStatus.DESTROYED


def test_several_calls_can_be_one_transaction(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join()
    with ledger.atomic():
        ledger.expire_by_condition("catan-7", "game.finished", author_did=GM)
        ledger.save_cursor("tap", 12)
    before = ledger.digest()

    def fail_in_the_middle() -> None:
        with ledger.atomic():
            ledger.destroyed(lease.id)
            ledger.save_cursor("tap", 13)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert ledger.digest() == before
    assert ledger.cursor("tap") == 12
