"""Every sandbox that this machine has under a data directory, whichever tier made it. Without Ray."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.errors import NotThere, Refused
from actors.host import LEASE_LABEL, is_alive, make_tier
from actors.settings import Settings
from actors.sharing import SHARED
from sandboxes import SandboxError, SandboxInfo, SandboxState, Tier
from sandboxes.pool.book import BOOK_NAME, read_states
from sandboxes.pool.states import Kind
from sandboxes.sleep import directory_of
from sandboxes.tiers.registry import TIERS

log = logging.getLogger(__name__)

ROW: Final = ("name", "kind", "tier", "state", "epoch", "pid", "lease", "directory", "created_ms")
RUNNING, SUSPENDING = SandboxState.RUNNING, SandboxState.SUSPENDING
THROW_AWAY: Final = "throw-away"  # under the data directory: sandboxes that live as long as one command


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A sandbox and the tier object that found it."""

    info: SandboxInfo
    tier: Tier
    is_throw_away: bool

    @property
    def is_alive(self) -> bool:
        """Whether processes of it run, or are about to."""
        return is_alive(self.info)

    @property
    def node(self) -> Path:
        """The state directory of the node that it is on."""
        return directory_of(self.info).parents[1]

    def as_row(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.info.name,
            "kind": Kind.SANDBOX,
            "tier": self.info.tier,
            "state": self.info.state,
            "epoch": self.info.epoch,
            "pid": self.info.pid,
            "lease": self.info.labels.get(LEASE_LABEL),
            "directory": str(self.info.socket.parents[1]),
            "created_ms": self.info.created_ms,
        }


class Inventory:
    """The sandboxes under one data directory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def tiers(self) -> AsyncIterator[tuple[Tier, bool]]:
        """Every tier over every state directory, and whether what it holds is for one command only."""
        data = self._settings.data_path
        roots = [data / THROW_AWAY, data / SHARED / "sandboxes", *sorted(data.glob("nodes/*/sandboxes"))]
        for root in (root for root in roots if root.is_dir()):
            for name in TIERS:
                yield make_tier(name, root), root.name == THROW_AWAY

    async def items(self) -> list[Item]:
        """Every sandbox, live or dead."""
        found = []
        async for tier, is_throw_away in self.tiers():
            with suppress(SandboxError):  # a tier that this host cannot run has no sandboxes here either
                for info in await tier.list({}):
                    if info.tier == tier.name:  # some share a directory of records
                        found.append(Item(info=info, tier=tier, is_throw_away=is_throw_away))
        return found

    async def rows(self) -> list[dict[str, Any]]:
        """Every sandbox as a row, those that sleep and the warm slots included; states as the pools say.

        Raises:
            PoolUnavailable: the book of a pool cannot be read.
        """
        items = await self.items()
        books = {
            path.parent: read_states(path) for path in self._settings.data_path.glob(f"nodes/*/{BOOK_NAME}")
        }
        pooled = {(node, entry.name): entry for node, entries in books.items() for entry in entries}
        rows = []
        for item in items:
            row, entry = item.as_row(), pooled.pop((item.node, item.info.name), None)
            if entry is not None and item.is_alive and entry.state in (RUNNING, SUSPENDING):
                row["state"] = entry.state
            rows.append(row)
        for (_, name), entry in pooled.items():
            if entry.is_slot or entry.state is SandboxState.COLD:  # whatever else has ended since
                told = {"name": name, "kind": entry.kind, "state": entry.state, "epoch": entry.epoch}
                rows.append({**told, "created_ms": entry.since_ms})
        return [{**dict.fromkeys(ROW), **row} for row in sorted(rows, key=lambda row: str(row["name"]))]

    async def find(self, name: str) -> Item:
        """The sandbox of this name.

        Raises:
            NotThere: there is none.
        """
        for item in await self.items():
            if item.info.name == name:
                return item
        raise NotThere(f"there is no sandbox {name!r}: `skylease sandboxes list` shows those there are")

    async def clean(self, items: list[Item], *, force: bool, dry_run: bool) -> list[dict[str, Any]]:
        """Destroy these; what lives only by `force`. One row each, of what was (or would be) destroyed.

        Raises:
            Refused: one of them lives, and nothing was destroyed.
        """
        living = [item.info.name for item in items if item.is_alive]
        if living and not force:
            raise Refused(
                f"{len(living)} of them live ({', '.join(living[:3])}{', …' if living[3:] else ''}): "
                "nothing was destroyed; --force destroys them too"
            )
        for item in items:
            if not dry_run:
                await item.tier.destroy(item.info.name)
        return [{**item.as_row(), "destroyed": not dry_run} for item in items]

    async def end_slots(self, *, dry_run: bool) -> list[dict[str, Any]]:
        """Destroy the warm slots, which are nobody's; one row each, of what was (or would be) destroyed."""
        rows = []
        async for tier, _ in self.tiers():
            with suppress(SandboxError):  # a tier that this host cannot run keeps no slots here either
                for slot in await tier.slots():
                    if slot.tier == tier.name:
                        if not dry_run:
                            await tier.destroy(slot.name)
                        rows.append({"name": slot.name, "tier": tier.name, "destroyed": not dry_run})
        return rows

    async def sweep(self, *, dry_run: bool) -> list[dict[str, Any]]:
        """Clear away what dead sandboxes left, in every tier; one row each."""
        if dry_run:
            return await self.clean(
                [item for item in await self.items() if not item.is_alive], force=False, dry_run=True
            )
        rows = []
        async for tier, _ in self.tiers():
            try:
                rows += [{"name": name, "tier": tier.name, "destroyed": True} for name in await tier.sweep()]
            except SandboxError as error:  # one tier that cannot be asked must not stop the others
                log.info("tier not swept", extra={"tier": tier.name, "error": str(error)})
        return rows
