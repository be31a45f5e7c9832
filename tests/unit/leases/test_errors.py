"""Errors say what, which and what to do, and survive pickling with their evidence."""

import pickle
import re

import pytest

from leases import (
    BudgetExceeded,
    FieldInvalid,
    InvalidTransition,
    InvariantBroken,
    LeaseEnded,
    LeaseEnding,
    LeaseError,
    LedgerLocked,
    LedgerTooNew,
    LedgerUnavailable,
    StaleEpoch,
    UnknownLease,
    UnknownSandbox,
)

ERRORS = [
    FieldInvalid("ttl_ms", 0, "a whole number from 1 to 9"),
    FieldInvalid("agent_did", "x" * 500, "a DID"),
    UnknownLease("did:plc:alice::g"),
    UnknownSandbox("box"),
    BudgetExceeded("did:plc:alice", 10, 10.2),
    BudgetExceeded("did:plc:alice", 10, 10.2, "1 December"),
    StaleEpoch("did:plc:alice::g", 1, 2),
    StaleEpoch("did:plc:alice::g", 3, 2),
    LeaseEnded("did:plc:alice::g", "expired", "ttl"),
    LeaseEnding("did:plc:alice::g", 1, "box"),
    InvalidTransition("did:plc:alice::g", "active", "tier_empty", ["a", "b"]),
    InvariantBroken(["x is not y"]),
    LedgerUnavailable("/x/ledger.db", "the disk is full"),
    LedgerLocked("/x/ledger.db", 42),
    LedgerLocked("/x/ledger.db", None),
    LedgerTooNew("/x/ledger.db", ["0099_x"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes_whole(error: LeaseError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_one_line_for_a_person(error: LeaseError) -> None:
    assert re.fullmatch(r"[^\n]{10,250}", str(error))
    assert not re.search(r"\bNone\b|<|object at", str(error))


def test_errors_are_also_of_the_stdlib_kind_where_one_fits() -> None:
    assert issubclass(FieldInvalid, ValueError)
    assert issubclass(UnknownLease, LookupError)
    assert issubclass(LedgerLocked, LedgerUnavailable)


def test_a_stale_epoch_and_one_never_given_out_are_told_apart() -> None:
    assert "another took over" in str(StaleEpoch("x", 1, 2))
    assert "never given out" in str(StaleEpoch("x", 3, 2))
