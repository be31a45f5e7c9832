"""Sharing: sandboxes that outlive the call, by scope: per session, user, agent, or one for all.

Enters: a `Wanted` (what a sandbox is made from, whose it is). Leaves: a `Lent` sandbox, living, with its
files; given back, its files and state are kept by whoever owns it. `Sharing` does that under a `Guard`, with
the states in a `StateStore`; `visit` lets a sub-agent into its parent's sandbox.
"""

from sandboxes.sharing.errors import (
    GuardBusy,
    GuardLost,
    GuardUnavailable,
    NotDistributed,
    ScopeKeyMissing,
    SharingError,
    StateLost,
    StatesUnavailable,
    StateUnreadable,
    UnknownScope,
    UnknownState,
)
from sandboxes.sharing.guard import Guard, Held, Latch, MemoryLatch, Reach
from sandboxes.sharing.guest import Guest, Invitation, visit
from sandboxes.sharing.scope import Caller, Scope, ScopeKey, key_of, parse_scope, sandbox_name
from sandboxes.sharing.sharing import Furnish, Sharing, tiers_over
from sandboxes.sharing.state import State, parse_state
from sandboxes.sharing.states import SqliteStates, StateStore
from sandboxes.sharing.wanted import AfterUse, Lent, OnUnreadable, Source, Wanted

__all__ = [
    "AfterUse",
    "Caller",
    "Furnish",
    "Guard",
    "GuardBusy",
    "GuardLost",
    "GuardUnavailable",
    "Guest",
    "Held",
    "Invitation",
    "Latch",
    "Lent",
    "MemoryLatch",
    "NotDistributed",
    "OnUnreadable",
    "Reach",
    "Scope",
    "ScopeKey",
    "ScopeKeyMissing",
    "Sharing",
    "SharingError",
    "Source",
    "SqliteStates",
    "State",
    "StateLost",
    "StateStore",
    "StateUnreadable",
    "StatesUnavailable",
    "UnknownScope",
    "UnknownState",
    "Wanted",
    "key_of",
    "parse_scope",
    "parse_state",
    "sandbox_name",
    "tiers_over",
    "visit",
]
