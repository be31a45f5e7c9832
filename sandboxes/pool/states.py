"""The states of a sandbox in the pool, and what may follow what. Pure.

            ORDERED           READY            USED
    deleted ──────► warming ────────► warm ◄────────► running
       ▲               ▲               │ ▲
       │               │ ORDERED   NAP │ │ THAWED, USED (waiting → running)
       │               │               ▼ │
       └──── cold ◄────┘            waiting
             ▲   KEPT                  │ SLEPT, STOPPED, EVICTED (from warm, too; never from running)
             └────── suspending ◄──────┘
                         └──► warm: KEPT_AWAKE (somebody was faster, or the files could not be kept)

Every living state leads to failed (DIED, BROKE), from there to cold with a snapshot and to deleted without.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sandboxes.spec import SandboxState

COLD, WARMING, WARM, RUNNING, WAITING, SUSPENDING, FAILED, DELETED = (
    SandboxState.COLD,
    SandboxState.WARMING,
    SandboxState.WARM,
    SandboxState.RUNNING,
    SandboxState.WAITING,
    SandboxState.SUSPENDING,
    SandboxState.FAILED,
    SandboxState.DELETED,
)
LIVE: Final = frozenset({WARMING, WARM, RUNNING, WAITING, SUSPENDING})  # memory and processes
UP: Final = frozenset({WARM, RUNNING, WAITING})  # handed out: its holder may come at any time
IDLE: Final = frozenset({WARM, WAITING})


class Kind(StrEnum):
    """What an entry of the pool is."""

    SANDBOX = "sandbox"
    SLOT = "slot"  # running, hardened, empty; nobody's


class Cause(StrEnum):
    """Why a state changed."""

    ORDERED = "ordered"  # somebody wants it (a slot: the pool does)
    READY = "ready"  # it has everything it should have
    BROKE = "broke"  # it could not be made
    FOUND = "found"  # it lives, and the pool's book said otherwise or nothing
    USED = "used"  # a request runs
    IDLED = "idled"  # the last request has ended
    NAP = "nap"  # frozen: nobody used it
    PAUSED = "paused"  # frozen: somebody said so
    THAWED = "thawed"  # a request has thawed it, and has ended
    SLEPT = "slept"  # to be put to sleep: idle for long
    STOPPED = "stopped"  # … since somebody said so
    EVICTED = "evicted"  # … since its room is needed
    KEPT = "kept"  # its snapshot is whole and named, nothing else is left
    KEPT_AWAKE = "kept awake"  # it could not be put to sleep, and lives
    DIED = "died"  # it is not there any more, or only half
    CLEARED = "cleared"  # nothing of it is left but its snapshot
    COOLED = "cooled"  # its snapshot is no longer on this node, but in the shared store
    FORGOTTEN = "forgotten"  # nothing of it is left at all
    DESTROYED = "destroyed"  # its lease is over
    CLAIMED = "claimed"  # a slot: it is somebody's sandbox now
    DISCARDED = "discarded"  # a slot: old, unfit, or in the way


Key = tuple[SandboxState, Cause]


def _from(states: frozenset[SandboxState], cause: Cause, to: SandboxState) -> dict[Key, SandboxState]:
    return {(state, cause): to for state in states}


TRANSITIONS: Final[Mapping[Key, SandboxState]] = {
    (DELETED, Cause.ORDERED): WARMING,
    (COLD, Cause.ORDERED): WARMING,
    (WARMING, Cause.READY): WARM,
    (WARMING, Cause.BROKE): FAILED,
    **_from(frozenset({WARM, WAITING}), Cause.USED, RUNNING),
    (RUNNING, Cause.IDLED): WARM,
    **_from(frozenset({WARM, RUNNING}), Cause.NAP, WAITING),
    **_from(frozenset({WARM, RUNNING}), Cause.PAUSED, WAITING),
    (WAITING, Cause.THAWED): WARM,
    **_from(IDLE, Cause.SLEPT, SUSPENDING),
    **_from(IDLE, Cause.STOPPED, SUSPENDING),
    **_from(IDLE, Cause.EVICTED, SUSPENDING),
    (SUSPENDING, Cause.KEPT): COLD,
    (SUSPENDING, Cause.KEPT_AWAKE): WARM,
    **_from(frozenset({DELETED, COLD, WARMING, SUSPENDING, FAILED}), Cause.FOUND, WARM),
    **_from(LIVE, Cause.DIED, FAILED),
    (FAILED, Cause.CLEARED): COLD,
    (COLD, Cause.COOLED): COLD,
    **_from(frozenset({FAILED, COLD}), Cause.FORGOTTEN, DELETED),
    **_from(LIVE | {FAILED, COLD}, Cause.DESTROYED, DELETED),
}
SLOT_TRANSITIONS: Final[Mapping[Key, SandboxState]] = {
    (DELETED, Cause.ORDERED): WARMING,
    (WARMING, Cause.READY): WARM,
    (WARMING, Cause.BROKE): DELETED,
    (DELETED, Cause.FOUND): WARM,
    (WARM, Cause.CLAIMED): DELETED,
    **_from(frozenset({WARMING, WARM}), Cause.DISCARDED, DELETED),
    **_from(frozenset({WARMING, WARM}), Cause.DIED, DELETED),
}


def following(kind: Kind, state: SandboxState, cause: Cause) -> SandboxState | None:
    """Return the state after this; None: it must not happen."""
    return (TRANSITIONS if kind is Kind.SANDBOX else SLOT_TRANSITIONS).get((state, cause))
