"""What can go wrong with a lease, and whose fault it is.

LeaseError
├── FieldInvalid        the caller's: a value that no lease can have (also a ValueError)
├── UnknownLease        the caller's: no lease of that id (also a LookupError)
├── UnknownSandbox      the caller's: no sandbox of that id was ever placed (also a LookupError)
├── BudgetExceeded      the agent's: it has used its awake hours of this month
├── StaleEpoch          the caller's: a newer holder exists, or the epoch was never given out
├── LeaseEnded          nobody's: the lease ended before the call arrived
├── LeaseEnding         nobody's: the old sandbox is still being destroyed, ask again
├── InvalidTransition   ours: no row of the transition table allows it
├── InvariantBroken     ours: the file contradicts itself
└── LedgerUnavailable   the machine's: full disk, damaged or unreadable file
    ├── LedgerLocked    another process writes this ledger
    └── LedgerTooNew    a newer skylease wrote this file

Every constructor takes positional arguments and hands them to `super().__init__`, because that is what
survives pickling between actors.
"""

from collections.abc import Sequence


class LeaseError(Exception):
    """Base of everything that this room raises on purpose."""


class FieldInvalid(LeaseError, ValueError):
    """A value that no lease can have."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(field, value, rule)
        self.field, self.value, self.rule = field, value, rule

    def __str__(self) -> str:
        shown = repr(self.value)
        return f"{self.field} is {shown if len(shown) <= 80 else shown[:77] + '...'}: {self.rule}"


class UnknownLease(LeaseError, LookupError):
    """No lease has this id."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"there is no lease {self.lease_id}: `skylease leases list` shows those there are"


class UnknownSandbox(LeaseError, LookupError):
    """No sandbox of this id was ever placed."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)
        self.sandbox_id = sandbox_id

    def __str__(self) -> str:
        return f"no lease ever had a sandbox {self.sandbox_id}: place it before you report on it"


class BudgetExceeded(LeaseError):
    """The agent has used its awake hours of this month (UTC)."""

    def __init__(
        self, agent_did: str, budget_hours: float, used_hours: float, resets_on: str = "next month"
    ) -> None:
        super().__init__(agent_did, budget_hours, used_hours, resets_on)
        self.agent_did, self.budget_hours, self.used_hours = agent_did, budget_hours, used_hours
        self.resets_on = resets_on

    def __str__(self) -> str:
        return (
            f"{self.agent_did} has used {self.used_hours:.4g} of {self.budget_hours:.4g} awake hours "
            f"this month: raise its budget, or wait for {self.resets_on}"
        )


class StaleEpoch(LeaseError):
    """The caller holds an epoch that is not the lease's current one."""

    def __init__(self, lease_id: str, epoch: int, current: int) -> None:
        super().__init__(lease_id, epoch, current)
        self.lease_id, self.epoch, self.current = lease_id, epoch, current

    def __str__(self) -> str:
        if self.epoch > self.current:
            return f"{self.lease_id} is at epoch {self.current}, {self.epoch} was never given out: acquire it"
        return f"{self.lease_id} is at epoch {self.current}, you hold {self.epoch}: stop, another took over"


class LeaseEnded(LeaseError):
    """The lease ended before the call arrived."""

    def __init__(self, lease_id: str, status: str, ended_by: str | None) -> None:
        super().__init__(lease_id, status, ended_by)
        self.lease_id, self.status, self.ended_by = lease_id, status, ended_by

    def __str__(self) -> str:
        return f"{self.lease_id} is {self.status} (ended by {self.ended_by or 'unknown'}): acquire it again"


class LeaseEnding(LeaseError):
    """The lease has ended, and what is left of its sandbox still stands in the way of a new one."""

    def __init__(self, lease_id: str, epoch: int, sandbox_id: str) -> None:
        super().__init__(lease_id, epoch, sandbox_id)
        self.lease_id, self.epoch, self.sandbox_id = lease_id, epoch, sandbox_id

    def __str__(self) -> str:
        return (
            f"{self.lease_id} ended, but its sandbox {self.sandbox_id} (epoch {self.epoch}) is not gone yet: "
            "ask again when the host has destroyed it"
        )


class InvalidTransition(LeaseError):
    """No row of the transition table allows this; carries the lease's history, newest last."""

    def __init__(self, lease_id: str, status: str | None, cause: str, story: Sequence[str] = ()) -> None:
        super().__init__(lease_id, status, cause, tuple(story))
        self.lease_id, self.status, self.cause, self.story = lease_id, status, cause, tuple(story)

    def __str__(self) -> str:
        told = "; ".join(self.story[-5:]) or "no history"
        return f"{self.lease_id} is {self.status or 'not there'}, {self.cause} cannot happen to it ({told})"


class InvariantBroken(LeaseError):
    """The ledger's file contradicts itself."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__(tuple(violations))
        self.violations = tuple(violations)

    def __str__(self) -> str:
        return f"{len(self.violations)} invariants broken: " + "; ".join(self.violations[:10])


class LedgerUnavailable(LeaseError):
    """The ledger's file cannot be read or written; what was written before is still there."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"ledger {self.path}: {self.reason}"


class LedgerLocked(LedgerUnavailable):
    """Another process (or another Ledger of this one) writes this ledger."""

    def __init__(self, path: str, holder_pid: int | None) -> None:
        who = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(path, f"{who} is writing it: stop that one first, or open it for reading")
        self.args = (path, holder_pid)
        self.holder_pid = holder_pid


class LedgerTooNew(LedgerUnavailable):
    """A newer skylease wrote this file."""

    def __init__(self, path: str, unknown: Sequence[str]) -> None:
        super().__init__(path, f"a newer skylease wrote it (schema {', '.join(unknown)}): upgrade skylease")
        self.args = (path, tuple(unknown))
        self.unknown = tuple(unknown)
