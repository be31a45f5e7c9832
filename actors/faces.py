"""What actors ask of each other, as types: the messages, and the supervisor as an agent sees it.

Plain data and a Protocol, so that an `Agent` or a `GameMaster` is tested with no Ray at all. Kept light:
every agent process imports this.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An identity on the network and the password that posts in its name. Never printed, never logged."""

    handle: str
    did: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where things are: `pds_url` and `tap_url` are http(s) and ws(s) origins."""

    pds_url: str
    tap_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """What an agent asks for when it joins an environment. `image` names a folder under images/."""

    agent_did: str
    environment_id: str
    environment_type: str
    authority_did: str
    node_id: str
    share_with: tuple[str, int] | None = (
        None  # id and epoch of a parent's lease, whose sandbox it is to be in
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A lease and where its sandbox is: `directory` is on `node_id`; `last_turn` is 0 before the first.

    If it is not awake, nothing is there yet: whoever wants to use it has it recovered.
    """

    lease_id: str
    epoch: int
    environment_id: str
    environment_type: str
    authority_did: str
    node_id: str
    directory: Path
    last_turn: int
    is_new: bool
    is_awake: bool = True
    host_epoch: int | None = None  # of the lease whose sandbox this one shares; None: it has its own

    @property
    def sandbox_epoch(self) -> int:
        """What requests to the sandbox are fenced by."""
        return self.epoch if self.host_epoch is None else self.host_epoch


class SupervisorFace(Protocol):
    """The supervisor as agents and environments see it. Every method may be repeated without harm."""

    async def acquire(self, request: LeaseRequest) -> Placement:
        """A lease with a live sandbox; the same one for the same (agent, environment) while it lives."""

    async def recover(self, lease_id: str, epoch: int) -> Placement:
        """A live sandbox for a lease whose sandbox has died (/data is kept) or sleeps (/workspace as well).

        Raises:
            BudgetExceeded: it sleeps, and the agent has used up its month.
        """

    async def renew(self, lease_id: str, epoch: int, last_turn: int, cursor: int) -> bool:
        """Slide the expiry; remember the last turn and the position. False: the lease has ended."""

    async def live_leases(self, agent_did: str) -> list[Placement]:
        """What a restarted agent still holds, awake or asleep."""

    async def cursor(self, name: str) -> int | None:
        """The firehose position saved under this name."""

    async def save_cursor(self, name: str, seq: int) -> None:
        """Save a firehose position."""

    async def count(self, name: str) -> None:
        """Count something that was refused, for `status`."""


Report = dict[str, Any]  # JSON-ready
Names = list[str]
COLD: Final = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOrder:
    """What the supervisor asks a host to make; names and limits are the host's own business."""

    name: str
    lease_id: str
    epoch: int
    agent_did: str
    environment_id: str
    environment_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSeen:
    """A sandbox as a host sees it. `lease_id` is the label it was made with; "": not known, or none.

    `state` is a word of the pool: "cold" is one of which only a snapshot is there, "deleted" one of which
    nothing is. `since_ms` is when it came to that, in epoch milliseconds; None: the host cannot tell.
    `directory` is where it is on its node, or would be.
    """

    name: str
    lease_id: str
    epoch: int
    alive: bool
    state: str
    directory: Path
    since_ms: int | None = None


class HostFace(Protocol):
    """The host of one node as the supervisor sees it. Every method may be repeated without harm."""

    async def image(self, environment_type: str) -> str:
        """What a sandbox of this environment type would run now: a name and its digest."""

    async def create(self, order: SandboxOrder) -> Path:
        """A live sandbox for this order, the same one when it lives already; its directory on that node."""

    async def suspend(self, name: str, idle_ms: int) -> bool:
        """Put a sandbox to sleep that nobody has used for `idle_ms`; False: somebody has, or it is dead."""

    async def destroy(self, name: str) -> None:
        """Returns when nothing of the sandbox is left."""

    async def list(self) -> list[SandboxSeen]:
        """Every sandbox of this node, live or dead; not those of which only a snapshot is there."""

    async def find(self, name: str) -> SandboxSeen:
        """What there is of one sandbox: itself, or its snapshot, or nothing."""

    async def kept(self) -> Names:
        """The names of all sandboxes that this node has snapshots of."""


class HandledHost(HostFace, Protocol):
    """The host of one node as somebody sees it who does by hand what else comes by itself."""

    async def prewarm(self, environment_type: str, count: int) -> int:
        """Have so many warm slots ready for an environment type, into free room only; how many are."""

    async def pause(self, name: str) -> None:
        """Freeze a sandbox until it is used."""

    async def put_to_sleep(self, name: str) -> None:
        """Put a sandbox to sleep now, however lately it was used; one that sleeps is left asleep."""

    async def fork(self, source: str, order: SandboxOrder) -> Path:
        """A new sandbox with the files that another has now; its directory. Not to be repeated."""
