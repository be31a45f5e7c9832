"""Putting a sandbox to sleep, which leaves nothing of it but a snapshot, and making it again from that.

Order, so that a kill between any two steps loses nothing: freeze → snapshot → the store's head names it →
destroy. Until the last step the frozen sandbox is there and can go on; after it the snapshot is all there is,
and whole. A large workspace on a disk of its own is parked besides (`snapshots/parking.py`): it wakes by
being mounted, and if anything about it is not as it was, by being unpacked from the snapshot.

DIRECTORY/hydrated is written once a sandbox has everything it should have. One without it was never handed to
anybody: whoever finds it destroys it and starts again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sandboxes import activity
from sandboxes.errors import SandboxBusy, SandboxError, SandboxFailed, SandboxNotFound
from sandboxes.furnishing.ephemeral import left_out
from sandboxes.sandbox import Sandbox
from sandboxes.snapshots import Restored, Snapshots, Taken
from sandboxes.snapshots.parking import MIN_BYTES, Parked
from sandboxes.spec import SandboxInfo, SandboxSpec, SandboxState
from sandboxes.tier import Tier

HYDRATED_NAME: Final = "hydrated"
IMAGE_LABEL: Final = "skylease.image"  # the digest of the image that a sandbox was started from
INDEX_NAME: Final = "snapshot-index.json"
ALIVE: Final = frozenset({SandboxState.WARMING, SandboxState.WARM, SandboxState.WAITING})
T = TypeVar("T")
log = logging.getLogger(__name__)


async def suspend(
    tier: Tier,
    name: str,
    snapshots: Snapshots,
    *,
    excludes: Sequence[str] = (),
    image_digest: str | None = None,
) -> Taken:
    """Put an idle sandbox to sleep: its files are kept, its processes and memory are given back.

    Raises:
        SandboxNotFound: there is no living sandbox of this name.
        SandboxBusy: it is in use; nothing happened.
        SnapshotError, InvalidSpec: its files could not be kept; the sandbox stays, and wakes when it is used.
        SandboxFailed: it could not be frozen, or not all of it be removed.
    """
    return await to_the_end(_suspend(tier, name, snapshots, excludes, image_digest))


async def keep(tier: Tier, name: str, snapshots: Snapshots, *, excludes: Sequence[str] = ()) -> Taken:
    """Take a snapshot of an idle sandbox, which stays: frozen, until it is used.

    Raises:
        As `suspend`.
    """
    return await to_the_end(_suspend(tier, name, snapshots, excludes, None, stays=True))


async def _suspend(
    tier: Tier,
    name: str,
    snapshots: Snapshots,
    excludes: Sequence[str],
    image_digest: str | None,
    *,
    stays: bool = False,
) -> Taken:
    info = await tier.look(name)
    if info.state not in ALIVE:
        raise SandboxNotFound(name)
    directory = directory_of(info)
    await tier.freeze(name)
    with activity.idle(directory, name) as is_idle:
        if not is_idle or not activity.is_frozen(directory):  # somebody came between the two
            raise SandboxBusy(name, "a request is running")
        tree = await tier.workspace(name)
        take = partial(
            snapshots.take,
            name,
            tree,
            epoch=info.epoch,
            index=directory / INDEX_NAME,
            image_digest=image_digest or info.labels.get(IMAGE_LABEL),
            excludes=[*excludes, *left_out(directory, tree)],
        )
        taken = await asyncio.to_thread(take)
        if stays:
            return taken
        if taken.size_bytes < MIN_BYTES or taken.manifest.excludes or taken.manifest.skipped:
            await tier.destroy(name)  # what is not in the snapshot must not come back
        else:
            await _park(tier, info, snapshots, taken)
    return taken


async def _park(tier: Tier, info: SandboxInfo, snapshots: Snapshots, taken: Taken) -> None:
    """End a sandbox, and keep its disk at hand if it has one."""
    parking = snapshots.parking
    try:
        place = await asyncio.to_thread(parking.place, info.name, directory_of(info) / INDEX_NAME)
    except OSError as error:  # it is only a convenience
        log.warning("not parked", extra={"sandbox": info.name, "reason": str(error)})
        await tier.destroy(info.name)
        return
    with contextlib.suppress(OSError):
        if await tier.park(info.name, place):
            await asyncio.to_thread(parking.settle, info.name, taken.manifest.digest, info.uid)
        else:
            await asyncio.to_thread(parking.drop, info.name)


async def resume(
    tier: Tier,
    spec: SandboxSpec,
    snapshots: Snapshots,
    *,
    make: Callable[[], Awaitable[Sandbox]] | None = None,
    furnish: Callable[[SandboxSpec, Sandbox, bool], Awaitable[None]] | None = None,
) -> tuple[Sandbox, Restored | None]:
    """Make a sandbox, with the files of its newest snapshot if it has one.

    Args:
        tier: makes it.
        spec: of it.
        snapshots: where its files are.
        make: makes it instead of `tier.create`: from a warm slot.
        furnish: called before it counts as whole; True: its files were restored.

    Returns:
        the sandbox, and what was restored; None: it starts empty.

    Raises:
        SnapshotError: its files cannot be had; no sandbox is left, and no snapshot lost.
        SandboxError: as `Tier.create`.
    """
    head = await asyncio.to_thread(snapshots.has, spec.name)
    parked = await asyncio.to_thread(snapshots.parked, spec.name) if head and make is None else None
    sandbox = await _make(tier, spec, parked, make)
    try:
        restored = await to_the_end(_fill(tier, spec.name, snapshots, parked)) if head else None
        if furnish is not None:
            await furnish(spec, sandbox, restored is not None)
        (sandbox.directory / HYDRATED_NAME).touch()
    except BaseException:
        with contextlib.suppress(SandboxError):
            await asyncio.shield(asyncio.ensure_future(tier.destroy(spec.name)))
        raise
    return sandbox, restored


async def _make(
    tier: Tier, spec: SandboxSpec, parked: Parked | None, make: Callable[[], Awaitable[Sandbox]] | None
) -> Sandbox:
    if parked is not None:
        try:
            return await tier.create(replace(spec, parked=parked.disk))
        except SandboxFailed as error:  # a disk that cannot be mounted: there is the snapshot
            said = {"sandbox": spec.name, "reason": str(error)}
            log.warning("what was parked cannot be used; it is unpacked from the snapshot", extra=said)
    return await (tier.create(spec) if make is None else make())


async def _fill(tier: Tier, name: str, snapshots: Snapshots, parked: Parked | None) -> Restored:
    """Fill the workspace from the snapshot, unless the disk that was parked is there and right."""
    info = await tier.look(name)
    tree = await tier.workspace(name)
    index = directory_of(info) / INDEX_NAME

    def fill() -> Restored:
        try:
            if parked is not None and snapshots.parking.adopt(parked, tree, info.uid, index):
                return Restored(manifest=snapshots.manifest(parked.manifest), refused=())
            return snapshots.fill(name, tree, index=index, uid=info.uid)
        finally:
            with contextlib.suppress(OSError):  # the next collection tries again
                snapshots.parking.drop(name)

    return await asyncio.to_thread(fill)


def is_hydrated(directory: Path) -> bool:
    """Say whether a sandbox has been handed out with everything it should have."""
    return (directory / HYDRATED_NAME).exists()


def directory_of(info: SandboxInfo) -> Path:
    """Return a sandbox's directory on this node."""
    return info.socket.parents[1]


async def to_the_end(work: Awaitable[T]) -> T:
    """Await something that must not be left half done; a cancellation is passed on after it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(SandboxError, OSError):
            await task
        raise
