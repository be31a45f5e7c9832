"""The /data of agents: a directory per agent on the node, kept in the snapshot store between sandboxes.

DATA/FOLDER/                 what an agent's sandbox has as /data; written by one living sandbox at a time
HELD/FOLDER.json             whose it is, under which counter, and which snapshot it goes on from
HELD/FOLDER.index.json       what that snapshot holds, so that the next is incremental
HELD/FOLDER.superseded/      what was here and not kept when another node had kept something newer

`hold` before a sandbox is made: brings what another node has kept, and shuts out whoever held it before, by a
counter in the store's head that grows with every holder. `let_go` when nothing of the sandbox is left: keeps
what has changed. A kill between any two steps leaves the directory, which is what counts on its own node.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from sandboxes.errors import DataInUse
from sandboxes.runner.removal import remove_tree
from sandboxes.snapshots import Snapshots
from sandboxes.snapshots.errors import SnapshotStale
from sandboxes.snapshots.scan import changed, load_index, scan
from sandboxes.snapshots.snapshots import DATA, owner_of_data
from sandboxes.snapshots.store import Head

log = logging.getLogger(__name__)

DRAW_BITS: Final = 20  # of a counter: two nodes that count on from one head at once do not get the same
ATTEMPTS: Final = 5  # to be the newest holder, against others who try


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a node knows of an agent's directory. `sandbox` None: nobody here has it."""

    agent: str
    sandbox: str | None = None
    counter: int = 0
    base: str | None = None  # the manifest that the directory goes on from; None: no snapshot


class DurableData:
    """See the module.

    Args:
        root: the node's directory.
        snapshots: where it is kept.
        is_alive: says whether there is a living sandbox of this name.
        draw: for counters.
    """

    def __init__(
        self,
        root: Path,
        snapshots: Snapshots,
        *,
        is_alive: Callable[[str], Awaitable[bool]],
        draw: random.Random | None = None,
    ) -> None:
        self._data, self._held = root / "data", root / "data-held"
        self._snapshots, self._is_alive = snapshots, is_alive
        self._draw = draw or random.SystemRandom()
        self._locks: dict[str, asyncio.Lock] = {}
        self._folders: dict[str, str] | None = None  # by sandbox, as in the files

    def directory(self, agent_did: str) -> Path:
        """Return where an agent's /data is on this node; it is there while a sandbox holds it."""
        return self._data / data_folder(agent_did)

    async def hold(self, agent_did: str, sandbox: str) -> Path:
        """Give an agent's /data to one of its sandboxes, newest as anybody has kept it.

        Raises:
            DataInUse: another living sandbox of the agent has it.
            SnapshotError: it cannot be had from the store; what this node has stays.
        """
        folder = data_folder(agent_did)
        async with self._locks.setdefault(folder, asyncio.Lock()):
            held = await asyncio.to_thread(self._load, folder) or Held(agent=agent_did)
            other = held.sandbox
            if other is not None and other != sandbox and await self._is_alive(other):
                raise DataInUse(agent_did, other)
            held = await asyncio.to_thread(self._bring, folder, replace(held, sandbox=sandbox))
            known = await self._known()
            if other is not None:
                known.pop(other, None)
            known[sandbox] = folder
        return self._data / folder

    async def let_go(self, sandbox: str) -> bool:
        """Keep what a sandbox has left in /data; nothing of it runs any more.

        Returns:
            False: it held none, or another node has kept something newer meanwhile (which is logged).

        Raises:
            SnapshotError: it could not be kept; it is still here, and held by this sandbox.
        """
        folder = (await self._known()).get(sandbox)
        if folder is None:
            return False
        async with self._locks.setdefault(folder, asyncio.Lock()):
            held = await asyncio.to_thread(self._load, folder)
            if held is None or held.sandbox != sandbox:
                return False
            kept = await asyncio.to_thread(self._keep, folder, held)
            (await self._known()).pop(sandbox, None)
        return kept

    def _bring(self, folder: str, held: Held) -> Held:
        """Have the directory there and current, and be its newest holder; synchronous."""
        owner, directory = owner_of_data(held.agent), self._data / folder
        self._data.mkdir(parents=True, exist_ok=True)
        self._held.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._snapshots.store.keeps:
            held, head = self._claimed(held, owner)
            if head is not None and not self._is_current(folder, held, head):
                self._replace(folder, owner)
                held = replace(held, base=head.manifests[0])
        directory.mkdir(mode=0o755, exist_ok=True)
        self._save(folder, held)
        return held

    def _claimed(self, held: Held, owner: str) -> tuple[Held, Head | None]:
        """Be the newest holder: at once where nobody was since this node, else by a greater counter."""
        for _ in range(ATTEMPTS):
            head = self._snapshots.store.head(owner)
            if head is not None and head.epoch == held.counter:
                return held, head
            held = replace(held, counter=self._next(held, head))
            if head is None:
                return held, None
            with contextlib.suppress(SnapshotStale):
                self._snapshots.fence(owner, held.counter)
                return held, head
        raise SnapshotStale(owner, held.counter, 0 if head is None else head.epoch)

    def _is_current(self, folder: str, held: Held, head: Head) -> bool:
        """Whether the directory goes on from the newest snapshot."""
        newest = head.manifests[0]
        if not (self._data / folder).is_dir():
            return False
        if head.epoch == held.counter:  # nobody was since us: whatever is newest is of this directory
            return True
        return held.base == newest or load_index(self._index(folder), newest) is not None

    def _replace(self, folder: str, owner: str) -> None:
        """Put the newest snapshot in the directory's place; what was not kept of it is set aside."""
        directory = self._data / folder
        fetched = self._held / f"{folder}.fetched"
        _remove(fetched)  # of one who was killed
        index = self._held / f"{folder}.fetched.json"
        restored = self._snapshots.restore(owner, fetched, index=index)
        for digest, reason in restored.refused:
            log.error("a damaged /data was passed over", extra={"snapshot": digest, "reason": reason})
        if directory.is_dir():
            if self._is_clean(folder):
                _remove(directory)
            else:
                aside = self._held / f"{folder}.superseded"
                log.error(
                    "another node has kept a newer /data; this one is set aside", extra={"path": str(aside)}
                )
                _remove(aside)
                os.rename(directory, aside)
        if index.exists():
            os.replace(index, self._index(folder))
        else:
            self._index(folder).unlink(missing_ok=True)
        os.rename(fetched, directory)

    def _is_clean(self, folder: str) -> bool:
        """Whether nothing in the directory has changed since it was kept last."""
        held = self._load(folder)
        if held is None or held.base is None:
            return not any((self._data / folder).iterdir())
        known = load_index(self._index(folder), held.base)
        if known is None:
            return False
        new, removed = changed(scan(self._data / folder), known.index, known.at_ns)
        return not new and not removed

    def _keep(self, folder: str, held: Held) -> bool:
        """Take a snapshot if there is anything new; synchronous."""
        owner, directory = owner_of_data(held.agent), self._data / folder
        kept = True
        if self._snapshots.store.keeps and directory.is_dir() and not self._is_clean(folder):
            try:
                head = self._snapshots.store.head(owner)
                # One with our counter is ours, taken by a process that was killed before it noted that.
                if head is not None and held.counter != head.epoch and head.manifests[0] != held.base:
                    raise SnapshotStale(owner, held.counter, head.epoch)
                taken = self._snapshots.take(owner, directory, epoch=held.counter, index=self._index(folder))
                held = replace(held, base=taken.manifest.digest)
            except SnapshotStale as stale:
                said = {"agent": held.agent, "sandbox": held.sandbox, "reason": str(stale)}
                log.error(
                    "another node has taken over a /data; what was written here is not kept", extra=said
                )
                kept = False
        self._save(folder, replace(held, sandbox=None))
        return kept

    def _next(self, held: Held, head: Head | None) -> int:
        last = max(held.counter, 0 if head is None else head.epoch)
        return ((last >> DRAW_BITS) + 1 << DRAW_BITS) + self._draw.getrandbits(DRAW_BITS)

    async def _known(self) -> dict[str, str]:
        if self._folders is None:
            self._folders = await asyncio.to_thread(self._load_all)
        return self._folders

    def _load_all(self) -> dict[str, str]:
        found = {}
        for file in self._held.glob("*.json"):
            held = self._load(file.stem)
            if held is not None and held.sandbox is not None:
                found[held.sandbox] = file.stem
        return found

    def _load(self, folder: str) -> Held | None:
        try:
            return Held(**json.loads((self._held / f"{folder}.json").read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            if "." not in folder:  # else it is an index
                log.error("what a node knew of a /data cannot be read", extra={"folder": folder})
            return None

    def _save(self, folder: str, held: Held) -> None:
        file = self._held / f"{folder}.json"
        temporary = file.with_suffix(".new")
        # Not synced, for a wake waits for it: lost with the machine's power, the snapshot decides.
        temporary.write_text(json.dumps(asdict(held)), encoding="utf-8")
        os.replace(temporary, file)

    def _index(self, folder: str) -> Path:
        return self._held / f"{folder}.index.json"


def forget_data(folder: Path, snapshots: Snapshots | None) -> None:
    """Remove an agent's /data from its node, DATA/FOLDER, with what is kept of it.

    Args:
        folder: the directory.
        snapshots: where it is kept; None: nowhere that is known.
    """
    for name in (f"{folder.name}.json", f"{folder.name}.index.json", f"{folder.name}.superseded"):
        _remove(folder.parents[1] / "data-held" / name)
    _remove(folder)
    if snapshots is not None:
        snapshots.forget(DATA + folder.name)


def data_folder(agent_did: str) -> str:
    """Return a folder name per agent that no DID can escape from."""
    return sha256(agent_did.encode()).hexdigest()[:32]


def _remove(directory: Path) -> None:
    if not directory.parent.is_dir():
        return
    fd = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, directory.name)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)
