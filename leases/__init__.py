"""Who holds which sandbox and until when: the ledger, its endings, its budgets and costs. Free of Ray.

`Ledger` and `LedgerReader` are loaded when they are first asked for: an agent that only unpickles a `Lease`
or catches a `LeaseError` must not pay for sqlite-utils (3 MB and 50 ms in each actor).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from leases.conditions import DEFAULT_CONDITIONS, Ending, Verdict, default_conditions, judge
from leases.errors import (
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
from leases.lease import (
    LIVE,
    Account,
    Acquired,
    Lease,
    LeaseId,
    LeaseStatus,
    Placement,
    SandboxState,
    lease_id_of,
)
from leases.months import Month, month_of, parse_month
from leases.transitions import ENDINGS, TRANSITIONS, Cause, Why, next_status

if TYPE_CHECKING:
    from leases.budgets import BudgetUse, BudgetWarning
    from leases.guard import LedgerLatch
    from leases.history import LeaseEvent
    from leases.ledger import Ledger
    from leases.reader import LedgerReader
    from leases.repairs import Repair
    from leases.usage import AgentCost

_LAZY: Final = {
    "AgentCost": "leases.usage",
    "BudgetUse": "leases.budgets",
    "BudgetWarning": "leases.budgets",
    "LeaseEvent": "leases.history",
    "Ledger": "leases.ledger",
    "LedgerLatch": "leases.guard",
    "LedgerReader": "leases.reader",
    "Repair": "leases.repairs",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'leases' has no attribute {name!r}")


__all__ = [
    "DEFAULT_CONDITIONS",
    "ENDINGS",
    "LIVE",
    "TRANSITIONS",
    "Account",
    "Acquired",
    "AgentCost",
    "BudgetExceeded",
    "BudgetUse",
    "BudgetWarning",
    "Cause",
    "Ending",
    "FieldInvalid",
    "InvalidTransition",
    "InvariantBroken",
    "Lease",
    "LeaseEnded",
    "LeaseEnding",
    "LeaseError",
    "LeaseEvent",
    "LeaseId",
    "LeaseStatus",
    "Ledger",
    "LedgerLatch",
    "LedgerLocked",
    "LedgerReader",
    "LedgerTooNew",
    "LedgerUnavailable",
    "Month",
    "Placement",
    "Repair",
    "SandboxState",
    "StaleEpoch",
    "UnknownLease",
    "UnknownSandbox",
    "Verdict",
    "Why",
    "default_conditions",
    "judge",
    "lease_id_of",
    "month_of",
    "next_status",
    "parse_month",
]
