"""The life of a lease: which cause leads from which status to which. Pure; a missing row is refused.

(none) ──ACQUIRED──► active ◄──SLEPT/WOKEN──► sleeping
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
    WOKEN = "woken"
    PLACED = "placed"  # intent: a sandbox will be created there
    SANDBOX = "sandbox"  # its host reported a new state of the sandbox
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
    (LeaseStatus.SLEEPING, Cause.WOKEN): LeaseStatus.ACTIVE,
    (LeaseStatus.ACTIVE, Cause.PLACED): LeaseStatus.ACTIVE,
    (LeaseStatus.SLEEPING, Cause.PLACED): LeaseStatus.SLEEPING,
    (LeaseStatus.ACTIVE, Cause.SANDBOX): LeaseStatus.ACTIVE,
    (LeaseStatus.SLEEPING, Cause.SANDBOX): LeaseStatus.SLEEPING,
    (LeaseStatus.EXPIRED, Cause.SANDBOX): LeaseStatus.EXPIRED,
    (LeaseStatus.EXPIRED, Cause.TIER_EMPTY): LeaseStatus.DESTROYED,
    (LeaseStatus.EXPIRED, Cause.NEVER_PLACED): LeaseStatus.DESTROYED,
    **{(status, cause): LeaseStatus.EXPIRED for status in LIVE for cause in ENDINGS},
}


def next_status(status: LeaseStatus | None, cause: Cause) -> LeaseStatus | None:
    """Give the status that `cause` leads to, or None if it cannot happen to a lease in `status`."""
    return TRANSITIONS.get((status, cause))
