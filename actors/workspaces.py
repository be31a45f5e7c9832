"""What the sandboxes of a node start with: the image's own entries beneath those of the settings."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandboxes import Sandbox, SandboxBusy, SandboxSpec, connect_sandbox
from sandboxes.furnishing import NOTHING, Furnished, Furnisher, Start, WorkspaceSpec
from sandboxes.images.folder import folder

log = logging.getLogger(__name__)


class Workspaces:
    """Furnishes new sandboxes and renews living ones.

    Args:
        root: the node's directory.
        images: the image folders.
        given: what the settings give, by environment type.
    """

    def __init__(self, root: Path, images: Path, given: Mapping[str, WorkspaceSpec]) -> None:
        self._furnisher = Furnisher(root)
        self._images, self._given = images, given
        self._counts: Counter[str] = Counter()

    async def of(self, environment_type: str) -> WorkspaceSpec:
        """What a sandbox of this environment type starts with now.

        Raises:
            UnknownImage: there is no image of this name.
            InvalidSpec: its image.toml, or that together with the settings, is no workspace.
        """
        image = await asyncio.to_thread(folder, self._images, environment_type)
        return image.workspace.beneath(self._given.get(environment_type, NOTHING))

    async def start(self, made_from: SandboxSpec, sandbox: Sandbox, *, is_restored: bool) -> None:
        """Furnish a new sandbox.

        Raises:
            SandboxError: not all that it starts with is there; it must not be used.
        """
        spec = await self.of(made_from.image.name)
        self._tell(sandbox.name, await self._furnisher.start(sandbox, spec, is_restored=is_restored))

    async def renew(self, made_from: SandboxSpec, directory: Path) -> None:
        """Renew what is ours in a sandbox that lives; not while a turn runs, which has begun already.

        Raises:
            SandboxError: not all that it starts with is there; nobody can use it until this is called again.
        """
        spec = await self.of(made_from.image.name)
        if not spec.entries:
            return
        async with connect_sandbox(directory, epoch=made_from.epoch) as sandbox:
            try:
                self._tell(sandbox.name, await self._furnisher.renew(sandbox, spec))
            except SandboxBusy as busy:
                self._counts["postponed"] += 1
                log.warning("workspace not renewed", extra={"sandbox": sandbox.name, "reason": str(busy)})

    def forget(self, name: str) -> None:
        """Forget a sandbox whose lease is over."""
        self._furnisher.forget(name)

    def counts(self) -> dict[str, Any]:
        """How often each kind of start was, what travelled, and what had to wait."""
        return dict(self._counts)

    def _tell(self, name: str, done: Furnished) -> None:
        self._counts[done.start] += 1
        self._counts["files_written"] += done.written
        self._counts["files_removed"] += done.removed
        if done.start is Start.LOST:  # somebody's work is gone: the sandbox died before it ever slept
            log.error("a workspace was lost and starts anew", extra={"sandbox": name})
        for path in done.skipped:
            log.info("a link or special file is not copied", extra={"sandbox": name, "path": path})
