"""The host of one node: makes, lists and destroys the sandboxes there. It knows no leases, only labels."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from actors.egress import WayOut
from actors.errors import Refused, WrongUse
from actors.faces import Names, Report, SandboxOrder, SandboxSeen
from actors.loop import LoopActor
from actors.workspaces import Workspaces
from sandboxes import (
    ImageSpec,
    Limits,
    PoolFull,
    Sandbox,
    SandboxError,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    Tier,
    TierUnavailable,
    UnknownTier,
    choose_tier,
    open_tier,
)
from sandboxes.durable import DurableData
from sandboxes.egress.dial import Dialer
from sandboxes.egress.gateway import Gateway
from sandboxes.egress.secrets import Secrets
from sandboxes.furnishing import WorkspaceSpec
from sandboxes.images.folder import folder, provenance
from sandboxes.pool.book import BOOK_NAME, Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.memory import memory_used
from sandboxes.pool.pageout import page_out, why_no_doze
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.tally import Tally
from sandboxes.sleep import IMAGE_LABEL, directory_of
from sandboxes.snapshot_policy import SnapshotPolicy
from sandboxes.snapshots import open_snapshots
from sandboxes.tiers.registry import AUTO

log = logging.getLogger(__name__)

LEASE_LABEL: Final = "skylease.lease"
OWNER_LABEL: Final = "skylease.owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """`root` holds the node's sandboxes/ and data/; `images` the image folders; `slots` bounds live ones;
    `way_out` is what they may reach; who is idle for `nap_after_s` is frozen (0: nobody);
    `snapshots` says where the files of those that sleep are kept.

    `pool` is all else about when they give way to each other (its capacity and naps are those here).
    `workspaces` is what they start with by environment type, besides what their images say; mounts of those
    are from `allow_mounts`. `passed_over` says why the tier is not a stronger one, if somebody left it to us.
    """

    node_id: str
    root: Path
    images: Path
    limits: Limits
    slots: int
    way_out: WayOut = field(default_factory=WayOut)
    nap_after_s: float = 0.0
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    workspaces: Mapping[str, WorkspaceSpec] = field(default_factory=dict)
    allow_mounts: tuple[Path, ...] = ()
    passed_over: tuple[str, ...] = ()


class Host:
    """See the module. Concurrent calls for one sandbox are serialised; every call may be repeated.

    Args:
        config: see there.
        tier: what makes the sandboxes.
        dialer: how the node reaches hosts (a seam for tests).
    """

    def __init__(self, config: HostConfig, tier: Tier, *, dialer: Dialer | None = None) -> None:
        self._config, self._tier = config, tier
        dialer = replace(dialer or Dialer(), origins=config.way_out.origins)
        self._gateway = Gateway(secrets=Secrets(config.way_out.secrets), dialer=dialer)
        self._snapshots = open_snapshots(config.snapshots, config.root / "snapshots")
        self._workspaces = Workspaces(config.root, config.images, config.workspaces)
        self._data = DurableData(config.root, self._snapshots, is_alive=self._lives)
        self._tally = Tally()
        self._opened: Pool | None = None
        self._no_doze = ""

    @property
    def _pool(self) -> Pool:
        """The pool, whose book is opened with its first use."""
        config = self._config
        if self._opened is None:
            self._no_doze = why_no_doze() if config.pool.doze_after_s else ""
            policy = replace(config.pool, capacity=config.slots, nap_after_s=config.nap_after_s)
            ground = Ground(
                tier=self._tier,
                snapshots=self._snapshots,
                book=Book(config.root / BOOK_NAME),
                excludes=config.snapshots.excludes,
                policy=replace(policy, doze_after_s=0.0) if self._no_doze else policy,
                memory_used=memory_used,
                page_out=page_out,
                tally=self._tally,
                prepare=self._prepare,
                left=self._data.let_go,
                furnish=self._furnish,
                renew=self._workspaces.renew,
                open=self._gateway.open,
                close=self._gateway.close,
            )
            self._opened = Pool(ground)
        return self._opened

    async def run(self, ready: Callable[[], None]) -> None:
        """Keep the pool in order; calls `ready` once sandboxes can be made.

        Raises:
            TierUnavailable: this host cannot offer the tier.
        """
        probe = await self._tier.probe()
        if not probe.ok:
            lack = probe.lacks[0]
            raise TierUnavailable(probe.tier, f"{lack.what}: {lack.why}", lack.effect)
        await self._pool.start()
        ready()
        await self._pool.run()

    async def image(self, environment_type: str) -> str:
        """What a sandbox of this environment type would run now: a name and its digest.

        Raises:
            UnknownImage: there is none of this name.
            ImageNotBuilt: the tier needs it built, and it is not.
        """
        return await asyncio.to_thread(provenance, await self._image(environment_type))

    async def create(self, order: SandboxOrder) -> Path:
        """A live sandbox for this order; the one that lives already, if it is of this epoch.

        Raises:
            Refused: the node is full, and nobody on it gave way in time.
            SandboxError: it cannot be made.
        """
        try:
            return await self._pool.acquire(await self._spec(order))
        except PoolFull as full:
            raise Refused(f"node {self._config.node_id[:12]}: {full}") from None

    async def prewarm(self, environment_type: str, count: int) -> int:
        """Have so many warm slots ready for an environment type, as far as there is free room; how many are.

        So many are kept until nobody has asked for the type for half an hour.

        Raises:
            UnknownImage, ImageNotBuilt: as `image`.
            Refused: this tier has no slots here.
            SandboxError: one cannot be made.
        """
        reaches_out = self._config.way_out.egress(environment_type) is not None
        image = await self._image(environment_type)
        limits = self._config.limits
        try:
            return await self._pool.have_slots(image, limits, reaches_out=reaches_out, count=count)
        except TierUnavailable as lack:
            raise Refused(f"node {self._config.node_id[:12]}: no {lack.what}; {lack.remedy}") from None

    async def fork(self, source: str, order: SandboxOrder) -> Path:
        """A new sandbox with the files that another of this node has now; /data is the agent's own.

        Raises:
            Refused: the node is full, and nobody on it gave way in time.
            SandboxError: there is no source, somebody uses it, or the new one cannot be made.
        """
        try:
            return await self._pool.fork(source, await self._spec(order))
        except PoolFull as full:
            raise Refused(f"node {self._config.node_id[:12]}: {full}") from None

    async def pause(self, name: str) -> None:
        """Freeze a sandbox until it is used.

        Raises:
            SandboxError: there is none, or somebody uses it.
        """
        await self._pool.pause(name)

    async def put_to_sleep(self, name: str) -> None:
        """Put a sandbox to sleep now, however lately it was used.

        Raises:
            SandboxError: there is none, somebody uses it, or its files could not be kept; it stays.
        """
        await self._pool.stop(name)

    async def suspend(self, name: str, idle_ms: int) -> bool:
        """Put a sandbox to sleep that nobody has used for `idle_ms`; False: somebody has, or it is dead.

        Raises:
            SandboxError: its files could not be kept; it stays.
        """
        return await self._pool.suspend(name, idle_ms)

    async def destroy(self, name: str) -> None:
        """Returns when nothing of the sandbox and its snapshots is left."""
        await self._pool.destroy(name)
        self._workspaces.forget(name)

    async def list(self) -> list[SandboxSeen]:
        """Every sandbox of this node, live or dead."""
        return [_seen(info) for info in await self._tier.list({})]

    async def find(self, name: str) -> SandboxSeen:
        """What there is of one sandbox: itself, or its snapshot, or nothing."""
        seen = _seen(await self._tier.inspect(name))
        kept = None if seen.alive else await self._kept_since(name)
        if kept is None:
            return seen
        epoch, since_ms = kept
        return replace(seen, epoch=epoch, alive=False, state=SandboxState.COLD, since_ms=since_ms)

    async def _kept_since(self, name: str) -> tuple[int, int] | None:
        """Epoch and time (epoch ms) of a sandbox's newest snapshot; None: it has none that can be read."""
        try:
            newest = await asyncio.to_thread(self._snapshots.newest, name)
        except SandboxError:
            return None
        return None if newest is None else (newest.epoch, newest.created_ms)

    async def kept(self) -> Names:
        """The names of all sandboxes that this node has snapshots of."""
        return await asyncio.to_thread(lambda: sorted(self._snapshots.owners()))

    async def report(self) -> Report:
        """Counts since this process started, and what this host cannot give."""
        probe = await self._tier.probe()
        tally = self._tally
        return {
            "node": self._config.node_id,
            "tier": probe.tier,
            "made": tally.made,
            "destroyed": tally.destroyed,
            "naps": tally.naps,
            "slept": tally.slept,
            "woken": tally.woken,
            "sandboxes": len(await self._tier.list({})),
            "pool": self._pool.stats(),
            "egress": self._gateway.counts(),
            "workspaces": self._workspaces.counts(),
            "passed_over": list(self._config.passed_over),
            "lacks": [
                *(f"{lack.what}: {lack.why}; {lack.effect}" for lack in probe.lacks),
                *self._lacks(),
            ],
        }

    def _lacks(self) -> tuple[str, ...]:
        """What this node cannot do for the idle, and why."""
        lacks = []
        if not self._snapshots.store.keeps:
            lacks.append(
                "snapshots: snapshots.url is none:; nothing sleeps, idle sandboxes keep their memory"
            )
        if self._no_doze:
            lacks.append(f"doze: {self._no_doze}; frozen sandboxes keep their memory until they sleep")
        if self._pool.why_no_slots:
            lacks.append(f"warm slots: {self._pool.why_no_slots}; every sandbox is made when it is asked for")
        return tuple(lacks)

    async def _prepare(self, spec: SandboxSpec) -> None:
        """Have the agent's /data here before a sandbox of it is made."""
        await self._data.hold(spec.labels[OWNER_LABEL], spec.name)

    async def _lives(self, name: str) -> bool:
        return is_alive(await self._tier.inspect(name))

    async def _furnish(self, spec: SandboxSpec, sandbox: Sandbox, restored: bool) -> None:
        """Give a new sandbox what it starts with; what comes from repositories comes by its way out."""
        await self._gateway.open(spec.name, sandbox.directory)
        await self._workspaces.start(spec, sandbox, is_restored=restored)

    async def _image(self, environment_type: str) -> ImageSpec:
        return await self._tier.locate(load_image(self._config.images, environment_type))

    async def _spec(self, order: SandboxOrder) -> SandboxSpec:
        image = await self._image(order.environment_type)
        labels = {LEASE_LABEL: order.lease_id, OWNER_LABEL: order.agent_did}
        if image.digest is not None:
            labels[IMAGE_LABEL] = image.digest
        return SandboxSpec(
            name=order.name,
            epoch=order.epoch,
            labels=labels,
            image=image,
            limits=self._config.limits,
            data_dir=self._data.directory(order.agent_did),
            env=self._config.way_out.env,
            egress=self._config.way_out.egress(order.environment_type),
            mounts=(await self._workspaces.of(order.environment_type)).mounts,
        )


def _seen(info: SandboxInfo) -> SandboxSeen:
    return SandboxSeen(
        name=info.name,
        lease_id=info.labels.get(LEASE_LABEL, ""),
        epoch=info.epoch,
        alive=is_alive(info),
        state=info.state,
        directory=directory_of(info),
        since_ms=info.created_ms or None,
    )


def make_tier(name: str, root: Path, allow_mounts: tuple[Path, ...] = ()) -> Tier:
    """The tier of this name over a state directory.

    Raises:
        WrongUse: there is no such tier.
    """
    try:
        return open_tier(name, root, allow_mounts=allow_mounts)
    except UnknownTier as unknown:
        raise WrongUse(str(unknown)) from None


async def settle_tier(name: str, root: Path, images: Path) -> tuple[str, tuple[str, ...]]:
    """The tier to use: this one, or for "auto" the strongest that works here; and why not a stronger one.

    Raises:
        TierUnavailable: "auto", and nothing works here.
    """
    if name != AUTO:
        return name, ()
    described = [folder(images, file.parent.name) for file in sorted(images.glob("*/image.toml"))]
    found = [image.spec() for image in described if image.turn_script is not None]
    tier, reasons = await choose_tier(root, images=found)
    log.info("tier chosen", extra={"tier": tier.name, "reasons": reasons})
    return tier.name, reasons


def is_alive(info: SandboxInfo) -> bool:
    """Whether processes of a sandbox run, are frozen, or are about to start."""
    return info.state in (SandboxState.WARMING, SandboxState.WARM, SandboxState.WAITING)


def load_image(images: Path, name: str, *, for_turns: bool = True) -> ImageSpec:
    """The image folder of an environment type, as its image.toml describes it.

    Raises:
        UnknownImage: there is none of this name.
        InvalidSpec: turns are wanted, and nobody can take one in it.
    """
    return folder(images, name).spec(for_turns=for_turns)


class HostActor(Host, LoopActor):
    """The host of one node in a process of its own. The sandboxes outlive it and are found again."""

    def __init__(self, config: HostConfig, tier_name: str) -> None:
        Host.__init__(self, config, make_tier(tier_name, config.root / "sandboxes", config.allow_mounts))
        LoopActor.__init__(self)

    async def main(self) -> None:
        """Sweep until stopped."""
        await self.run(self.set_ready)
