"""What somebody asks for, and what is lent: plain data."""

from dataclasses import dataclass, field
from enum import StrEnum

from sandboxes.errors import InvalidSpec
from sandboxes.sandbox import Sandbox
from sandboxes.sharing.guard import Held
from sandboxes.sharing.guest import Invitation
from sandboxes.sharing.scope import Caller, Scope, ScopeKey
from sandboxes.sharing.state import State
from sandboxes.spec import SandboxSpec
from sandboxes.tier import Tier


class Source(StrEnum):
    """Which of the four priorities gave a sandbox."""

    EXTERNAL_SANDBOX = "external sandbox"
    EXTERNAL_STATE = "external state"
    STORED_STATE = "stored state"
    CREATED = "created"


class OnUnreadable(StrEnum):
    """What to do when a stored state or its snapshot cannot be read. A store that is down is an error."""

    FAIL = "fail"
    FRESH = "fresh"  # an empty sandbox; the stored state is set aside


class AfterUse(StrEnum):
    """What becomes of a sandbox of ours when it is given back; its files are kept in either case."""

    SLEEP = "sleep"  # nothing of it is left but its files
    STAY = "stay"  # it stays, frozen until its next use


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asks for.

    `spec` says what a sandbox is made from; its name and epoch are replaced by the scope's and the guard's.
    """

    spec: SandboxSpec
    tier: str = "process"
    scope: Scope = Scope.SESSION
    caller: Caller = field(default_factory=Caller)
    sandbox: Sandbox | None = None  # priority 1
    state: bytes | None = None  # priority 2
    wait_s: float | None = None  # for others to give it back; None: as long as it takes
    after_use: AfterUse = AfterUse.SLEEP
    on_unreadable: OnUnreadable = OnUnreadable.FAIL
    excludes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.wait_s is not None and not self.wait_s >= 0:
            raise InvalidSpec("wait_s", f"{self.wait_s} is no number of seconds from 0")
        if self.sandbox is not None and self.state is not None:
            raise InvalidSpec("state", "a sandbox is handed in already")


@dataclass(slots=True, kw_only=True, eq=False)
class Lent:
    """A sandbox that was acquired, until it is given back by `Sharing.release`."""

    sandbox: Sandbox
    source: Source
    wanted: Wanted
    tier: Tier
    key: ScopeKey | None = None
    held: Held | None = None
    state: State | None = None  # None: nothing is stored of it
    is_given_back: bool = False

    @property
    def name(self) -> str:
        """The sandbox's name."""
        return self.sandbox.name

    @property
    def token(self) -> int:
        """What its requests, its snapshots and its stored state are fenced by."""
        return self.sandbox.epoch

    def invitation(self) -> Invitation:
        """What a sub-agent needs to work in this sandbox, in this process or another one of this node."""
        return Invitation(directory=self.sandbox.directory, name=self.name, epoch=self.token)
