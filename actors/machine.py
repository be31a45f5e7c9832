"""This machine as one node with no host running: what an operator repairs by hand. Without Ray."""

from pathlib import Path

from actors.errors import NotThere
from actors.faces import COLD, Names, SandboxOrder, SandboxSeen
from actors.host import LEASE_LABEL
from actors.inventory import Inventory, Item
from actors.settings import Settings
from sandboxes.durable import data_folder, forget_data
from sandboxes.sharing.sharing import KEY_LABEL
from sandboxes.sleep import directory_of
from sandboxes.snapshots import Snapshots, open_snapshots


class Machine:
    """A `HostFace` over what is under a data directory, whichever node or command made it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._inventory = settings, Inventory(settings)

    async def image(self, environment_type: str) -> str:
        """It makes no sandboxes."""
        raise NotThere("no host runs here: start the system with `skylease up`")

    async def create(self, order: SandboxOrder) -> Path:
        """It makes no sandboxes."""
        raise NotThere("no host runs here: start the system with `skylease up`")

    async def suspend(self, name: str, idle_ms: int) -> bool:
        """It puts none to sleep."""
        return False

    async def destroy(self, name: str) -> None:
        """Returns when nothing of the sandbox and its snapshots is left here."""
        for item in await self._items():
            if item.info.name == name:
                await item.tier.destroy(name)
        for snapshots in self._snapshots():
            snapshots.forget(name)

    async def find(self, name: str) -> SandboxSeen:
        """What there is of one sandbox: itself, or its snapshot, or nothing."""
        here = [_seen(item) for item in await self._items() if item.info.name == name]
        gone = SandboxSeen(
            name=name, lease_id="", epoch=0, alive=False, state="deleted", directory=self._settings.data_path
        )
        for snapshots in [] if any(seen.alive for seen in here) else self._snapshots():
            if (newest := snapshots.newest(name)) is not None:
                return SandboxSeen(
                    name=name,
                    lease_id="",
                    epoch=newest.epoch,
                    alive=False,
                    state=COLD,
                    directory=self._settings.data_path,
                    since_ms=newest.created_ms,
                )
        return max(here, key=lambda seen: seen.alive, default=gone)

    async def kept(self) -> Names:
        """The names of all sandboxes that this machine has snapshots of."""
        return sorted({name for snapshots in self._snapshots() for name in snapshots.owners()})

    def data_of_nobody(self, agents: set[str]) -> list[Path]:
        """The /data folders of agents that are none of these."""
        known = {data_folder(agent) for agent in agents}
        folders = sorted(self._settings.data_path.glob("nodes/*/data/*"))
        return [folder for folder in folders if folder.is_dir() and folder.name not in known]

    async def _items(self) -> list[Item]:
        """What leases are about: those that are shared by scope have a repair of their own."""
        return [item for item in await self._inventory.items() if KEY_LABEL not in item.info.labels]

    def remove_data(self, folder: Path) -> None:
        """Remove a /data folder and what this machine keeps of it; what is in a shared store stays there."""
        snapshots = open_snapshots(self._settings.snapshots.policy, folder.parents[1] / "snapshots")
        forget_data(folder, None if snapshots.store.is_shared else snapshots)

    def _snapshots(self) -> list[Snapshots]:
        policy = self._settings.snapshots.policy
        roots = sorted(self._settings.data_path.glob("nodes/*/snapshots"))
        return [open_snapshots(policy, root) for root in roots]

    async def list(self) -> list[SandboxSeen]:
        """Every sandbox of this machine, live or dead."""
        return [_seen(item) for item in await self._items()]


def _seen(item: Item) -> SandboxSeen:
    info = item.info
    return SandboxSeen(
        name=info.name,
        lease_id=info.labels.get(LEASE_LABEL, ""),
        epoch=info.epoch,
        alive=item.is_alive,
        state=info.state,
        directory=directory_of(info),
        since_ms=info.created_ms or None,
    )
