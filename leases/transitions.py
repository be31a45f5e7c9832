"""The life of a lease: which cause leads from which status to which. Pure; a missing row is refused.

(none) ──ACQUIRED──► active ◄──SLEPT/WOKEN──► sleeping     (SANDBOX_LOST leads to sleeping, too)
                       │ any ending              │
                       └────────► expired ◄──────┘
                                     │ TIER_EMPTY (or NEVER_PLACED)
       active ◄──ACQUIRED──      destroyed
"""

from enum import StrEnum
from typing import Final

from leases.lease import LIVE, LeaseStatus


class Cause(StrEnum):
    """Why something happened to a lease; stored with every row of its history."""

    ACQUIRED = "acquired"
    SLEPT = "slept"
    SANDBOX_LOST = "sandbox_lost"  # its sandbox was found dead; the lease lives on, and sleeps
    WOKEN = "woken"
    PLACED = "placed"  # intent: a sandbox will be created there
    SANDBOX = "sandbox"  # its host reported a new state of the sandbox
    WARNED = "warned"  # its agent has nearly used up its budget
    REPAIRED = "repaired"  # the world and the ledger disagreed; the detail says what was done
    CONDITION = "condition"  # the authority said it is over
    TTL = "ttl"
    BUDGET = "budget"
    OPERATOR = "operator"
    RELEASED = "released"  # the agent gave it back
    LOST = "lost"  # agent, host or node is gone for good
    SHUTDOWN = "shutdown"  # the whole system stops
    OTHER = "other"  # in somebody's own words, kept in ended_by
    TIER_EMPTY = "tier_empty"  # the tier's own report: nothing of the sandbox is left
    NEVER_PLACED = "never_placed"  # no sandbox was ever to be created in this epoch, so nothing can be left


class Why(StrEnum):
    """Why a lease fell asleep or woke; stored as the detail of that row of its history."""

    IDLE = "idle"  # nobody used it for its `sleep_after_ms`
    BUDGET = "budget"  # its agent has used up the month
    EVICTED = "evicted"  # its node needed the room
    LOST = "lost"  # its sandbox was found dead
    USED = "used"  # somebody wants to use it
    FOUND = "found"  # its sandbox was found awake
    OPERATOR = "operator"  # somebody said so


ENDINGS: Final = frozenset(
    {
        Cause.CONDITION,
        Cause.TTL,
        Cause.BUDGET,
        Cause.OPERATOR,
        Cause.RELEASED,
        Cause.LOST,
        Cause.SHUTDOWN,
        Cause.OTHER,
    }
)

TRANSITIONS: Final[dict[tuple[LeaseStatus | None, Cause], LeaseStatus]] = {
    (None, Cause.ACQUIRED): LeaseStatus.ACTIVE,
    (LeaseStatus.DESTROYED, Cause.ACQUIRED): LeaseStatus.ACTIVE,
    (LeaseStatus.ACTIVE, Cause.SLEPT): LeaseStatus.SLEEPING,
    (LeaseStatus.ACTIVE, Cause.SANDBOX_LOST): LeaseStatus.SLEEPING,
    (LeaseStatus.SLEEPING, Cause.WOKEN): LeaseStatus.ACTIVE,
    (LeaseStatus.ACTIVE, Cause.PLACED): LeaseStatus.ACTIVE,
    (LeaseStatus.SLEEPING, Cause.PLACED): LeaseStatus.SLEEPING,
    (LeaseStatus.ACTIVE, Cause.SANDBOX): LeaseStatus.ACTIVE,
    (LeaseStatus.SLEEPING, Cause.SANDBOX): LeaseStatus.SLEEPING,
    (LeaseStatus.EXPIRED, Cause.SANDBOX): LeaseStatus.EXPIRED,
    (LeaseStatus.EXPIRED, Cause.TIER_EMPTY): LeaseStatus.DESTROYED,
    (LeaseStatus.EXPIRED, Cause.NEVER_PLACED): LeaseStatus.DESTROYED,
    **{(status, Cause.WARNED): status for status in LIVE},
    **{(status, Cause.REPAIRED): status for status in LeaseStatus},
    **{(status, cause): LeaseStatus.EXPIRED for status in LIVE for cause in ENDINGS},
}


def next_status(status: LeaseStatus | None, cause: Cause) -> LeaseStatus | None:
    """Give the status that `cause` leads to, or None if it cannot happen to a lease in `status`."""
    return TRANSITIONS.get((status, cause))
