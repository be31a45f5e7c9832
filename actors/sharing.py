"""Sandboxes shared by scope, as the settings want them: stores, guard, and what of it is local."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from actors.faces import Report
from actors.settings import Settings
from leases import LedgerLatch
from sandboxes import Sandbox, SandboxError
from sandboxes.furnishing import NOTHING, Furnisher, WorkspaceSpec
from sandboxes.sharing import (
    Furnish,
    Guard,
    Latch,
    Lent,
    MemoryLatch,
    NotDistributed,
    OnUnreadable,
    Sharing,
    Source,
    SqliteStates,
    StateStore,
    Wanted,
    tiers_over,
)
from sandboxes.sharing.redis_states import RedisLatch, RedisStates, shown
from sandboxes.snapshot_policy import DEFAULT_PREFIX, SnapshotPolicy
from sandboxes.snapshots.opening import open_snapshots
from sandboxes.tiers.registry import known_tiers

log = logging.getLogger(__name__)

SHARED: Final = "shared"  # under the data directory: sandboxes/, snapshots/, states.db
DISTRIBUTED: Final = frozenset({"redis", "rediss", "s3"})  # schemes of what other nodes reach as well


def check_distributed(settings: Settings) -> None:
    """Pass if everything that nodes have to share is shared, or need not be.

    Raises:
        NotDistributed: `sharing.require_distributed` is on, and names what is only this node's.
    """
    if settings.sharing.require_distributed and (local := local_parts(settings)):
        raise NotDistributed(local)


def local_parts(settings: Settings) -> tuple[str, ...]:
    """What only this node, or only one process of it, has."""
    sharing, url = settings.sharing, settings.snapshots.url
    parts = {
        "sharing.states": (sharing.states, f"a file in {settings.data_path / SHARED}"),
        "sharing.guard": (sharing.guard, f"{sharing.guard}, so other nodes do not meet there"),
        "snapshots.url": (url, f"{url or settings.data_path}, on this node"),
    }
    return tuple(
        f"{name} ({why})" for name, (where, why) in parts.items() if urlsplit(where).scheme not in DISTRIBUTED
    )


def report(settings: Settings) -> Report:
    """What `status` shows; JSON-ready, without secrets."""
    sharing = settings.sharing
    return {
        "states": shown(sharing.states) if sharing.states else str(settings.data_path / SHARED / "states.db"),
        "guard": shown(sharing.guard) if "://" in sharing.guard else sharing.guard,
        "on_unreadable": sharing.on_unreadable,
        "local": list(local_parts(settings)),
    }


@asynccontextmanager
async def lend(settings: Settings, wanted: Wanted, workspace: WorkspaceSpec = NOTHING) -> AsyncIterator[Lent]:
    """The sandbox of a scope during a block, with what its workspace starts with.

    Raises:
        As `open_sharing`, `Sharing.acquire` and `Sharing.release`; FurnishingFailed.
    """
    furnisher = Furnisher(settings.data_path / SHARED)

    async def furnish(sandbox: Sandbox, is_restored: bool) -> None:
        await furnisher.start(sandbox, workspace, is_restored=is_restored)

    wanted = as_settings_say(settings, wanted)
    async with open_sharing(settings, furnish) as sharing, sharing.lend(wanted) as lent:
        if lent.source is Source.STORED_STATE and workspace.entries:
            await furnisher.renew(lent.sandbox, workspace)
        yield lent


@asynccontextmanager
async def open_sharing(settings: Settings, furnish: Furnish | None = None) -> AsyncIterator[Sharing]:
    """The sandboxes of this data directory that are shared by scope, as long as the block lasts.

    `furnish` is called with each new one and whether its files were restored, before it is handed out.

    Raises:
        NotDistributed: see `check_distributed`.
        StatesUnavailable, GuardUnavailable, LedgerUnavailable, StoreUnavailable: a store cannot be used.
    """
    check_distributed(settings)
    root = settings.data_path / SHARED
    states, latch = await asyncio.to_thread(_open, settings, root)
    try:
        sharing = Sharing(
            tiers_over(root / "sandboxes", allow_mounts=settings.sandbox.allowed_mounts),
            states,
            await asyncio.to_thread(open_snapshots, _policy(settings), root / "snapshots"),
            node=f"{socket.gethostname()}:{root}",
            guard=Guard(latch, ttl_s=settings.sharing.guard_ttl_s),
            furnish=furnish,
        )
        async with sharing:
            yield sharing
    finally:
        states.close()
        if isinstance(latch, LedgerLatch):
            latch.close()


async def put_away_idle(settings: Settings) -> list[Report]:
    """Put away what a killed command left, and what stays and nobody has used for `lease.sleep_after_s`.

    Returns:
        a row for each.
    """
    if not (settings.data_path / SHARED / "sandboxes").is_dir():
        return []
    rows: list[Report] = []
    async with open_sharing(settings) as sharing:
        for tier in known_tiers():
            try:
                gone = await sharing.sweep(tier, idle_s=settings.lease.sleep_after_s)
            except SandboxError as error:  # one that this host cannot run has no sandboxes here either
                log.info("tier not swept", extra={"tier": tier, "error": str(error)})
                continue
            rows += [{"name": name, "tier": tier, "destroyed": True} for name in gone]
    return rows


def as_settings_say(settings: Settings, wanted: Wanted) -> Wanted:
    """What somebody asks for, with how long to wait and what to do about a state that cannot be read."""
    sharing = settings.sharing
    return replace(
        wanted,
        wait_s=sharing.wait_s,
        on_unreadable=OnUnreadable(sharing.on_unreadable),
        excludes=settings.snapshots.policy.excludes,
    )


def _policy(settings: Settings) -> SnapshotPolicy:
    """The system's policy with a place of its own in the store: the system's own repair owns the other."""
    policy = settings.snapshots.policy
    parts = urlsplit(policy.url)
    if parts.scheme in ("s3", "file"):
        parts = parts._replace(path=f"{parts.path.rstrip('/')}/{SHARED}")
    elif parts.scheme in ("redis", "rediss"):
        options = dict(parse_qsl(parts.query))
        options["prefix"] = f"{options.get('prefix', DEFAULT_PREFIX)}-{SHARED}"
        parts = parts._replace(query=urlencode(options))
    return replace(policy, url=parts.geturl())


def _open(settings: Settings, root: Path) -> tuple[StateStore, Latch]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    sharing = settings.sharing
    states = RedisStates(sharing.states) if sharing.states else SqliteStates(root / "states.db")
    match sharing.guard:
        case "process":
            return states, MemoryLatch(states.where)
        case "ledger":
            return states, LedgerLatch(settings.data_path / "ledger.db")
        case url:
            return states, RedisLatch(url)
