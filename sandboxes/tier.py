"""The contract every tier keeps; one suite in tests/contract holds all of them to it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxes.sandbox import Sandbox
from sandboxes.slot import SlotInfo, SlotSpec
from sandboxes.spec import ImageSpec, Probe, SandboxInfo, SandboxSpec


class Tier(ABC):
    """Creates, finds and destroys sandboxes of one kind on this node. Nothing that matters is kept in the
    object: another process with a tier over the same root sees, adopts and destroys the same sandboxes.
    """

    name: str

    @abstractmethod
    async def probe(self) -> Probe:
        """Return what this host can and cannot give; found once per object, by trying."""

    async def has_image(self, image: ImageSpec) -> bool:
        """Say whether sandboxes can be made from this image; tiers that build nothing need none built."""
        return True

    async def locate(self, image: ImageSpec) -> ImageSpec:
        """Return the image with what sandboxes start from now: the digest of the built one, if the tier has
        such, and whether the folder must be bound over it since it has changed. Others return it as it is.

        Raises:
            ImageNotBuilt: the tier starts from built images, and this one is not there.
            TierUnavailable: there is nobody to ask.
        """
        return image

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
    async def can_warm(self) -> str | None:
        """Return why no slot can be kept warm on this host; None: `warm` works."""

    @abstractmethod
    async def warm(self, spec: SlotSpec) -> None:
        """Make a warm slot: a running, hardened, empty sandbox that belongs to nobody. It waits to be
        claimed, destroyed, or for the wall deadline of its limits; no idle deadline ends it. The modules
        that its image declares are imported now: whoever changes the image's folder makes its slots anew.

        When it fails or is cancelled, nothing is left. It is destroyed by its name, like a sandbox.

        Raises:
            TierUnavailable: this host cannot; `can_warm` says so beforehand.
            SandboxExists, InvalidSpec, SandboxFailed, ImageNotBuilt: as for `create`.
        """

    @abstractmethod
    async def claim(self, slot: str, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox that is made of a warm slot, which then exists no more under its name.

        Image and limits (but for the deadlines) must be those of the slot; everything else comes with the
        claim. Of several claims of one slot one wins. When it fails or is cancelled, nothing of the sandbox
        is left; the slot may be gone.

        Raises:
            SlotGone: the slot is taken, dead, or does not fit; create a sandbox from nothing instead.
            TierUnavailable, SandboxExists, InvalidSpec: as for `create`; the slot is as it was.
        """

    @abstractmethod
    async def slots(self) -> Sequence[SlotInfo]:
        """Return the slots that wait, half-made and dead ones (state failed) included, sorted by name. Until
        somebody destroys or sweeps them, those of a process that has died are there, too, and can be claimed.
        """

    @abstractmethod
    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        """Return a living sandbox, whoever created it; `epoch` None: the one it was created with.

        Raises:
            SandboxNotFound: there is none.
            StaleEpoch: it has seen a newer epoch.
        """

    @abstractmethod
    async def freeze(self, name: str) -> None:
        """Stop everything in a sandbox, memory and processes kept; its next request thaws it.

        May be repeated. Time that it is frozen does not count as idle.

        Raises:
            SandboxNotFound: there is no living sandbox of this name.
            SandboxBusy: a request is running; a running turn is never frozen.
            SandboxFailed: it could not be frozen, and runs.
        """

    @abstractmethod
    async def thaw(self, name: str) -> None:
        """Let a frozen sandbox run; one that is not frozen is left alone.

        Raises:
            SandboxNotFound: there is no living sandbox of this name.
            SandboxFailed: it could not be thawed.
        """

    @abstractmethod
    async def workspace(self, name: str) -> Path:
        """Return where this node sees a living sandbox's /workspace. Only while nothing in it runs: it is its
        inhabitants' to write, links included.

        Raises:
            SandboxNotFound: there is no living sandbox of this name.
            TierUnavailable: this node does not see it (its files are on another machine).
        """

    @abstractmethod
    async def destroy(self, name: str) -> None:
        """End a sandbox; returns only when no process, mount, cgroup, socket or directory of it is left.

        Absent, dead, half-made and concurrently destroyed ones are all destroyed successfully.

        Raises:
            SandboxFailed: something is left, and says what; call again.
        """

    async def park(self, name: str, place: Path) -> bool:
        """End a sandbox as `destroy` does, and move the disk of its workspace to `place` if it has one.

        Returns:
            whether it is there now; `SandboxSpec.parked` gives it to another. False: it went with the
            sandbox.

        Raises:
            SandboxFailed: as `destroy`.
        """
        await self.destroy(name)
        return False

    @abstractmethod
    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return the sandboxes with all these labels, dead ones (state failed) included, sorted by name."""

    @abstractmethod
    async def inspect(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox and what exists of it; state deleted with no leftovers: nothing
        does.
        """

    async def look(self, name: str) -> SandboxInfo:
        """Return what is known of a sandbox. As `inspect`, but of one that lives nothing is searched for, so
        its `leftovers` are empty: that search goes through all processes of the machine.
        """
        return await self.inspect(name)

    @abstractmethod
    async def sweep(self) -> tuple[str, ...]:
        """Remove the debris of dead sandboxes, without touching living ones; return their names."""
