"""The contract every tier keeps; one suite in tests/contract holds all of them to it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from sandboxes.sandbox import Sandbox
from sandboxes.spec import Probe, SandboxInfo, SandboxSpec


class Tier(ABC):
    """Creates, finds and destroys sandboxes of one kind on this node. Nothing that matters is kept in the
    object: another process with a tier over the same root sees, adopts and destroys the same sandboxes.
    """

    name: str

    @abstractmethod
    async def probe(self) -> Probe:
        """Return what this host can and cannot give; found once per object, by trying."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox whose runner answers. When it fails or is cancelled, nothing is left.

        Raises:
            TierUnavailable: this host cannot offer the tier.
            SandboxExists: a living sandbox has this name (debris of a dead one is cleared away).
            InvalidSpec: the spec cannot be met (no turn script, a data directory in use).
            SandboxFailed: it did not start.
        """

    @abstractmethod
    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        """Return a living sandbox, whoever created it; `epoch` None: the one it was created with.

        Raises:
            SandboxNotFound: there is none.
            StaleEpoch: it has seen a newer epoch.
        """

    @abstractmethod
    async def destroy(self, name: str) -> None:
        """End a sandbox; returns only when no process, mount, cgroup, socket or directory of it is left.

        Absent, dead, half-made and concurrently destroyed ones are all destroyed successfully.

        Raises:
            SandboxFailed: something is left, and says what; call again.
        """

    @abstractmethod
    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return the sandboxes with all these labels, dead ones (state failed) included, sorted by name."""

    @abstractmethod
    async def inspect(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox and what exists of it; state deleted with no leftovers: nothing
        does.
        """

    @abstractmethod
    async def sweep(self) -> tuple[str, ...]:
        """Remove the debris of dead sandboxes, without touching living ones; return their names."""
