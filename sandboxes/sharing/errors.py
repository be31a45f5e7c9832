"""What can go wrong when a sandbox is shared.

    SandboxError
    └── SharingError
        ├── UnknownScope        the caller's: there is no scope of this name (ValueError)
        ├── ScopeKeyMissing     the caller's: the scope needs to know who asks, and was not told (ValueError)
        ├── StateUnreadable     what is stored is no state of a sandbox, or of another format
        │   ├── UnknownState    it is of a tier that nobody has registered
        │   └── StateLost       it names a snapshot that is gone
        ├── StatesUnavailable   the store of states cannot be reached or is full; nothing was lost
        ├── GuardUnavailable    the guard cannot be reached; nothing was lost
        ├── GuardBusy           somebody else holds it, for longer than the caller would wait (TimeoutError)
        ├── GuardLost           the holder stalled past its time, or another took over: it may write no more
        └── NotDistributed      the configuration's: parts that only this node has, where all must share them

All take positional arguments and hand them to `Exception`, so that they survive pickling between processes.
"""

from sandboxes.errors import SandboxError


class SharingError(SandboxError):
    """Base of all errors of sharing."""


class UnknownScope(SharingError, ValueError):
    """There is no isolation scope of this name."""

    def __init__(self, scope: str, known: str) -> None:
        super().__init__(scope, known)
        self.scope, self.known = scope, known

    def __str__(self) -> str:
        return f"there is no scope {self.scope!r}: there is {self.known}"


class ScopeKeyMissing(SharingError, ValueError):
    """The scope needs to know who asks, and was not told."""

    def __init__(self, scope: str, part: str, rule: str) -> None:
        super().__init__(scope, part, rule)
        self.scope, self.part, self.rule = scope, part, rule

    def __str__(self) -> str:
        return f"the scope {self.scope} cannot tell whose sandbox is meant: {self.part} {self.rule}"


class StateUnreadable(SharingError):
    """What is stored is no state of a sandbox; it was kept as it is."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key, self.reason = key, reason

    def __str__(self) -> str:
        return (
            f"the stored state of {self.key} cannot be used: {self.reason}; it was kept as it is "
            "(the policy `fresh` starts an empty sandbox instead)"
        )


class UnknownState(StateUnreadable):
    """The state is of a tier that nobody has registered here."""

    def __init__(self, key: str, tag: str, known: str) -> None:
        super().__init__(key, f"it is of the type {tag!r}, and known are {known}")
        self.args = (key, tag, known)
        self.tag, self.known = tag, known


class StateLost(StateUnreadable):
    """The state names a snapshot that is not in the snapshot store."""

    def __init__(self, key: str, snapshot: str) -> None:
        super().__init__(key, f"its snapshot {snapshot[:16]} is not in the snapshot store")
        self.args = (key, snapshot)
        self.snapshot = snapshot


class _Unavailable(SharingError):
    _what = ""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"{self._what} {self.where} cannot be used: {self.reason}"


class StatesUnavailable(_Unavailable):
    """The store of states cannot be reached or is full."""

    _what = "the store of sandbox states"


class GuardUnavailable(_Unavailable):
    """The guard cannot be reached."""

    _what = "the guard"


class GuardBusy(SharingError, TimeoutError):
    """Somebody else holds the guard."""

    def __init__(self, key: str, waited_s: float) -> None:
        super().__init__(key, waited_s)
        self.key, self.waited_s = key, waited_s

    def __str__(self) -> str:
        return f"somebody else has the sandbox of {self.key}: waited {self.waited_s:g} s, ask again later"


class GuardLost(SharingError):
    """The holder stalled past its time, or another took over: nothing more may be written in its name."""

    def __init__(self, key: str, token: int, reason: str) -> None:
        super().__init__(key, token, reason)
        self.key, self.token, self.reason = key, token, reason

    def __str__(self) -> str:
        return f"the guard of {self.key} is no longer ours (token {self.token}): {self.reason}; acquire again"


class NotDistributed(SharingError):
    """Parts that only this node has, where the configuration demands that all nodes share them."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__(parts)
        self.parts = parts

    def __str__(self) -> str:
        return (
            f"sharing.require_distributed is on, and these are local: {'; '.join(self.parts)}. "
            "Name a Redis or S3 for each, or turn it off"
        )
