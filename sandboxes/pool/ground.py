"""What the parts of a pool share: the tier, the snapshots, the book, one lock per name."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.pool.book import Book
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.tally import Tally
from sandboxes.sandbox import Sandbox
from sandboxes.snapshots import Snapshots
from sandboxes.spec import SandboxSpec
from sandboxes.tier import Tier

# Called when a sandbox has been made or restored, before anybody gets it; True: its files were restored.
Furnish = Callable[[SandboxSpec, Sandbox, bool], Awaitable[None]]
# Called before one is made, under whatever it needs; and when nothing of one is left, to give that back.
Prepare = Callable[[SandboxSpec], Awaitable[object]]
Left = Callable[[str], Awaitable[object]]
# Called when one that lives is asked for again, before its asker gets it: to renew what it started with.
Renew = Callable[[SandboxSpec, Path], Awaitable[None]]
# Called when one is up that was not made just now: by a process before us, or asked for again.
Open = Callable[[str, Path], Awaitable[object]]
Close = Callable[[str], Awaitable[object]]  # called when a sandbox is gone, or about to be made anew


async def _furnish_nothing(spec: SandboxSpec, sandbox: Sandbox, restored: bool) -> None:
    """Leave it as it is."""


async def _renew_nothing(spec: SandboxSpec, directory: Path) -> None:
    """Leave it as it is."""


async def _prepare_nothing(spec: SandboxSpec) -> None:
    """Do nothing."""


async def _open_nothing(name: str, directory: Path) -> None:
    """Do nothing."""


async def _close_nothing(name: str) -> None:
    """Do nothing."""


@dataclass(slots=True, kw_only=True)
class Ground:
    """See the module. `clock` gives epoch milliseconds, `monotonic` seconds."""

    tier: Tier
    snapshots: Snapshots
    book: Book
    policy: PoolPolicy
    tally: Tally
    excludes: tuple[str, ...] = ()  # paths in every workspace that no snapshot has
    prepare: Prepare = _prepare_nothing
    left: Left = _close_nothing
    furnish: Furnish = _furnish_nothing
    renew: Renew = _renew_nothing
    open: Open = _open_nothing
    close: Close = _close_nothing
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
    memory_used: Callable[[], float | None] = lambda: None  # share of the memory; None: nobody can tell
    page_out: Callable[[int], int] = lambda pid: 0  # bytes of a process and those below it
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # somebody gave way or became idle
    _locks: dict[str, "_Shared"] = field(default_factory=dict)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock that whoever changes this sandbox holds."""
        shared = self._locks.setdefault(name, _Shared())
        shared.users += 1
        try:
            async with shared.lock:
                yield
        finally:
            shared.users -= 1
            if not shared.users:
                del self._locks[name]

    def is_taken(self, name: str) -> bool:
        """Say whether somebody is changing this sandbox now, or about to."""
        return name in self._locks

    def tell(self) -> None:
        """Wake whoever waits for room."""
        self.changed.set()


@dataclass(slots=True)
class _Shared:
    """A lock that goes with its last user."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
