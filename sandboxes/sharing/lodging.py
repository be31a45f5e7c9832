"""A shared sandbox on its node: who holds it, making it, and putting it away with its files kept.

DIRECTORY/holder  the token of the newest holder here; none: the epoch it was made with

The holder changes and the sandbox is put away under the same lock that every request takes (activity.py), so
a holder that was stopped for long cannot put away what another uses by now: it finds another's token.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from sandboxes import activity
from sandboxes.errors import SandboxBusy, SandboxError, SandboxNotFound
from sandboxes.furnishing.ephemeral import left_out
from sandboxes.sandbox import Sandbox
from sandboxes.sharing.errors import GuardLost
from sandboxes.sharing.finish import to_the_end
from sandboxes.sharing.stay import alone
from sandboxes.sleep import ALIVE, HYDRATED_NAME, IMAGE_LABEL, INDEX_NAME, directory_of, is_hydrated
from sandboxes.snapshots import Restored, Snapshots, Taken
from sandboxes.spec import SandboxInfo, SandboxSpec
from sandboxes.tier import Tier

HOLDER_NAME: Final = "holder"


def holder_of(info: SandboxInfo) -> int:
    """Return the token of the newest holder of a sandbox on this node."""
    try:
        return max(info.epoch, int((directory_of(info) / HOLDER_NAME).read_bytes()))
    except (FileNotFoundError, ValueError):
        return info.epoch


async def take_over(info: SandboxInfo, token: int) -> None:
    """Make a living sandbox this holder's; it is thawed.

    Raises:
        GuardLost: a newer holder has it.
        SandboxGone, SandboxFailed: it ended meanwhile, is being put away, or cannot be thawed.
    """
    directory = directory_of(info)
    async with activity.Activity(directory, info.name).request():
        newest = holder_of(info)
        if newest > token:
            raise GuardLost(info.name, token, f"a newer holder (token {newest}) has its sandbox")
        temporary = directory / f"{HOLDER_NAME}.tmp"
        temporary.write_bytes(b"%d" % token)
        os.replace(temporary, directory / HOLDER_NAME)


async def put_away(
    tier: Tier,
    name: str,
    snapshots: Snapshots,
    *,
    token: int,
    guests_wait_s: float,
    image_digest: str | None = None,
    excludes: Sequence[str] = (),
    named: Callable[[Taken], None] = lambda taken: None,
    destroy: bool = True,
) -> Taken:
    """Keep the files of a sandbox: freeze → snapshot → `named` writes what refers to it → destroy.

    A kill between any two steps loses nothing: until the last one the sandbox is there and can go on.

    Args:
        token: whose it is, by our reckoning.
        guests_wait_s: for guests to leave.
        named: called when the snapshot is whole; what it raises stops all that would follow.
        destroy: False: it stays, frozen until its next use.

    Raises:
        SandboxNotFound: there is no living sandbox of this name.
        SandboxBusy: it is in use, or has guests; nothing happened.
        GuardLost: a newer holder has it; nothing happened.
        SnapshotError, InvalidSpec: its files could not be kept; it stays.
        SandboxFailed: it could not be frozen, or not all of it be removed.
    """
    info = await tier.inspect(name)
    if info.state not in ALIVE:
        raise SandboxNotFound(name)
    directory = directory_of(info)
    async with alone(directory, name, guests_wait_s):
        _check_holder(info, token)  # before it is frozen: a newer holder should not even notice
        await tier.freeze(name)
        with activity.idle(directory, name) as is_idle:
            if not is_idle or not activity.is_frozen(directory):  # somebody came between the two
                raise SandboxBusy(name, "a request is running")
            _check_holder(info, token)
            tree = await tier.workspace(name)
            take = partial(
                snapshots.take,
                name,
                tree,
                epoch=token,
                index=directory / INDEX_NAME,
                image_digest=image_digest or info.labels.get(IMAGE_LABEL),
                excludes=[*excludes, *left_out(directory, tree)],
            )

            async def keep() -> Taken:
                taken = await asyncio.to_thread(take)
                await asyncio.to_thread(named, taken)
                if destroy:
                    await tier.destroy(name)
                return taken

            return await to_the_end(keep())


async def make(
    tier: Tier,
    spec: SandboxSpec,
    snapshots: Snapshots | None,
    furnish: Callable[[Sandbox, bool], Awaitable[None]] | None = None,
) -> tuple[Sandbox, Restored | None]:
    """Make a sandbox with the files of its newest snapshot, if it has one, for the holder `spec.epoch`.

    Files are put into it, and it is declared whole, under the lock that its requests take: a maker that was
    stopped for long and goes on finds that the name is another's sandbox by now.

    Args:
        snapshots: None: it starts empty, whatever was kept.
        furnish: told of the sandbox and whether files were restored, before anybody else gets it.

    Raises:
        SnapshotError: its files cannot be had; no sandbox is left, and no snapshot lost.
        GuardLost: a newer holder has it.
        SandboxError: as `Tier.create`.
    """
    head = snapshots is not None and await asyncio.to_thread(snapshots.has, spec.name)
    sandbox = await tier.create(spec)
    try:
        restored = None
        if head and snapshots is not None:
            async with _still_ours(tier, spec.name, spec.epoch) as info:
                fill = partial(snapshots.fill, spec.name, await tier.workspace(spec.name), uid=info.uid)
                index = directory_of(info) / INDEX_NAME
                restored = await to_the_end(asyncio.to_thread(fill, index=index))
        if furnish is not None:
            await furnish(sandbox, restored is not None)
        async with _still_ours(tier, spec.name, spec.epoch):
            (sandbox.directory / HYDRATED_NAME).touch()
    except BaseException:
        with contextlib.suppress(SandboxError):
            await to_the_end(discard(tier, spec.name, spec.epoch))
        raise
    return sandbox, restored


async def discard(tier: Tier, name: str, token: int) -> None:
    """Destroy a sandbox without keeping anything, if it is this holder's.

    Raises:
        GuardLost: it is another's. SandboxFailed: something of it is left.
    """
    async with _still_ours(tier, name, token):
        await tier.destroy(name)


async def clear(tier: Tier, info: SandboxInfo) -> None:
    """Destroy what stands in the way: dead, never handed out, or what another node went on with.

    Raises:
        SandboxBusy: somebody is about to fill it. SandboxFailed: something of it is left.
    """
    directory = directory_of(info)
    if info.state not in ALIVE or is_hydrated(directory):
        await tier.destroy(info.name)
        return
    with activity.idle(directory, info.name) as is_idle:
        if not is_idle:
            raise SandboxBusy(info.name, "a holder before us is filling it, or was stopped doing so")
        await tier.destroy(info.name)


@asynccontextmanager
async def _still_ours(tier: Tier, name: str, token: int) -> AsyncIterator[SandboxInfo]:
    """Keep everybody out of a sandbox that is this holder's."""
    directory = directory_of(await tier.inspect(name))
    with activity.idle(directory, name) as is_idle:
        info = await tier.inspect(name)
        _check_holder(info, token)
        if not is_idle:
            raise SandboxBusy(name, "a request is running")
        yield info


def _check_holder(info: SandboxInfo, token: int) -> None:
    newest = holder_of(info)
    if newest != token:
        raise GuardLost(info.name, token, f"its sandbox is token {newest}'s")
