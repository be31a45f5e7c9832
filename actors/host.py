"""The host of one node: makes, lists and destroys the sandboxes there. It knows no leases, only labels."""

import asyncio
import logging
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from actors.errors import Refused, WrongUse
from actors.faces import Report, SandboxOrder, SandboxSeen
from actors.loop import LoopActor
from sandboxes import (
    ImageSpec,
    Limits,
    ProcessTier,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    Tier,
    TierUnavailable,
    UnsafeTier,
)

log = logging.getLogger(__name__)

SWEEP_EVERY_S: Final = 30.0
LEASE_LABEL: Final = "skylease.lease"
OWNER_LABEL: Final = "skylease.owner"
TIERS: Final[dict[str, type[ProcessTier] | type[UnsafeTier]]] = {
    "process": ProcessTier,
    "unsafe": UnsafeTier,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """`root` holds the node's sandboxes/ and data/; `images` the image folders; `slots` bounds live ones."""

    node_id: str
    root: Path
    images: Path
    limits: Limits
    slots: int


class Host:
    """See the module. Concurrent calls for one sandbox are serialised; every call may be repeated."""

    def __init__(self, config: HostConfig, tier: Tier) -> None:
        self._config, self._tier = config, tier
        self._locks: dict[str, asyncio.Lock] = {}
        self._made = 0
        self._destroyed = 0

    async def run(self, ready: Callable[[], None]) -> None:
        """Clear away what dead sandboxes left, now and then; calls `ready` once sandboxes can be made.

        Raises:
            TierUnavailable: this host cannot offer the tier.
        """
        probe = await self._tier.probe()
        if not probe.ok:
            lack = probe.lacks[0]
            raise TierUnavailable(probe.tier, f"{lack.what}: {lack.why}", lack.effect)
        ready()
        while True:
            await self._tier.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def create(self, order: SandboxOrder) -> Path:
        """A live sandbox for this order; the one that lives already, if it is of this epoch.

        Raises:
            Refused: the node is full.
            SandboxError: it cannot be made.
        """
        async with self._lock(order.name):
            found = await self._alive(order)
            if found is not None:
                return found
            live = [info for info in await self._tier.list({}) if _is_alive(info) and info.name != order.name]
            if len(live) >= self._config.slots:
                raise Refused(
                    f"node {self._config.node_id[:12]} has {len(live)} of {self._config.slots} sandboxes: "
                    "raise sandbox.slots, or add a node"
                )
            sandbox = await self._tier.create(await asyncio.to_thread(self._spec, order))
            await sandbox.close()
            self._made += 1
            return sandbox.directory

    async def destroy(self, name: str) -> None:
        """Returns when nothing of the sandbox is left."""
        async with self._lock(name):
            await self._tier.destroy(name)
            self._destroyed += 1
        self._locks.pop(name, None)

    async def list(self) -> list[SandboxSeen]:
        """Every sandbox of this node, live or dead."""
        return [
            SandboxSeen(
                name=info.name,
                lease_id=info.labels.get(LEASE_LABEL, ""),
                epoch=info.epoch,
                alive=_is_alive(info),
            )
            for info in await self._tier.list({})
        ]

    async def report(self) -> Report:
        """Counts since this process started, and what this host cannot give."""
        probe = await self._tier.probe()
        return {
            "node": self._config.node_id,
            "tier": probe.tier,
            "made": self._made,
            "destroyed": self._destroyed,
            "sandboxes": len(await self._tier.list({})),
            "lacks": [f"{lack.what}: {lack.why}; {lack.effect}" for lack in probe.lacks],
        }

    async def _alive(self, order: SandboxOrder) -> Path | None:
        """The directory of the live sandbox of this epoch. One of an older epoch is destroyed first."""
        info = await self._tier.inspect(order.name)
        if not _is_alive(info):
            return None
        if info.epoch != order.epoch:
            await self._tier.destroy(order.name)
            return None
        return info.socket.parents[1]

    def _spec(self, order: SandboxOrder) -> SandboxSpec:
        data = self._config.root / "data" / _data_folder(order.agent_did)
        data.mkdir(parents=True, exist_ok=True)
        return SandboxSpec(
            name=order.name,
            epoch=order.epoch,
            labels={LEASE_LABEL: order.lease_id, OWNER_LABEL: order.agent_did},
            image=load_image(self._config.images, order.environment_type),
            limits=self._config.limits,
            data_dir=data,
        )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def make_tier(name: str, root: Path) -> Tier:
    """The tier of this name over a state directory.

    Raises:
        WrongUse: there is no such tier.
    """
    if name not in TIERS:
        raise WrongUse(f"there is no tier {name!r}: there is {', '.join(TIERS)}")
    return TIERS[name](root)


def _is_alive(info: SandboxInfo) -> bool:
    return info.state in (SandboxState.WARMING, SandboxState.WARM)


def load_image(images: Path, name: str) -> ImageSpec:
    """The image folder of an environment type, as its image.toml describes it.

    Raises:
        Refused: there is no such image.
    """
    file = images / name / "image.toml"
    if not re.fullmatch(r"[a-z0-9-]{1,63}", name) or not file.is_file():
        raise Refused(f"there is no image {name!r}: `skylease images list` shows those there are")
    described = tomllib.loads(file.read_text(encoding="utf-8"))
    return ImageSpec(
        name=name,
        root=file.parent,
        turn_script=described["turn_script"],
        preload=tuple(described.get("preload", ())),
    )


def _data_folder(agent_did: str) -> str:
    """A folder name per agent that no DID can escape from."""
    return sha256(agent_did.encode()).hexdigest()[:32]


class HostActor(Host, LoopActor):
    """The host of one node in a process of its own. The sandboxes outlive it and are found again."""

    def __init__(self, config: HostConfig, tier_name: str) -> None:
        Host.__init__(self, config, make_tier(tier_name, config.root / "sandboxes"))
        LoopActor.__init__(self)

    async def main(self) -> None:
        """Sweep until stopped."""
        await self.run(self.set_ready)
