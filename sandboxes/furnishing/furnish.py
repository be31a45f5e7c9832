"""Giving a sandbox what its workspace starts with. All is written through the sandbox itself, never to a path
of the host: what is inside belongs to its inhabitants, links included.

Order, so that a kill between any two steps leaves nothing half used: a new sandbox is handed out only when
all is there (`sleep.resume`); for one that lives a note lies in its directory meanwhile (`activity.unready`),
its requests are kept out, and one that finds the note of a dead furnisher is refused, so that its holder
comes back here. What a marker must name is in it before it is written.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandboxes import activity
from sandboxes.errors import FurnishingFailed, SandboxBusy, SandboxError, SandboxGone
from sandboxes.furnishing.entries import (
    Directory,
    Entry,
    File,
    GitRepo,
    LocalDir,
    LocalFile,
    Projection,
    Source,
    WorkspaceSpec,
    key_of,
)
from sandboxes.furnishing.ephemeral import note_ephemeral
from sandboxes.furnishing.hostfiles import DIRECTORY, HostFiles, Tree, Wanted, hash_of
from sandboxes.furnishing.marker import Marker, read_marker, write_marker
from sandboxes.furnishing.plan import Delete, Make, Start, Step, Write, decide, plan, with_parents
from sandboxes.names import check_name
from sandboxes.sandbox import Sandbox

TURN_WAIT_S: Final = 5.0  # for a running turn to end before a live workspace is renewed
READY_FOLDER: Final = "furnished"  # in the node's root: who has had everything once, dead or alive

EVERYTHING: Final = frozenset({Start.FRESH, Start.LOST})
EMPTY: Final = Marker()


@dataclass(frozen=True, slots=True, kw_only=True)
class Furnished:
    """What a start did: files `written` with their bytes, paths `removed`, repositories `cloned`; `skipped`
    are links and special files of the host that are not copied; `hash` is what the projections come to."""

    start: Start
    written: int = 0
    written_bytes: int = 0
    removed: int = 0
    cloned: int = 0
    skipped: tuple[str, ...] = ()
    hash: str = ""


class Furnisher:
    """Furnishes the sandboxes of a node, and remembers who has been.

    Args:
        root: the node's directory.
    """

    def __init__(self, root: Path) -> None:
        self._ready = root / READY_FOLDER

    async def start(self, sandbox: Sandbox, spec: WorkspaceSpec, *, is_restored: bool) -> Furnished:
        """Give a new sandbox all that its workspace starts with; nobody else has it yet.

        Args:
            sandbox: just made.
            spec: what it starts with.
            is_restored: its files came out of a snapshot.

        Raises:
            FurnishingFailed: it is not all there; the sandbox must not be used.
        """
        marker = await _marker(sandbox) if spec.entries else Marker()
        was_ready = marker.laid >= laid_once(spec) if is_restored else self._was_ready(sandbox.name)
        branch = decide(is_ready=was_ready, is_there=False, is_restored=is_restored)
        done = await _furnish(sandbox, spec, branch, marker)
        note_ephemeral(sandbox.directory, spec)
        self._remember(sandbox.name)
        return done

    async def renew(self, sandbox: Sandbox, spec: WorkspaceSpec) -> Furnished:
        """Renew what is ours in a sandbox that lives: ephemeral entries and projections.

        Waits for a running turn and keeps others out meanwhile.

        Raises:
            SandboxBusy: a turn runs for longer than is waited; nothing was changed.
            FurnishingFailed: not all could be renewed; nobody can use the sandbox until somebody calls again.
            SandboxGone: it has ended.
        """
        async with activity.alone(sandbox.directory, sandbox.name, wait_s=TURN_WAIT_S) as held:
            if held is None:
                raise SandboxBusy(sandbox.name, f"a request has been running for {TURN_WAIT_S:g} s")
            async with Sandbox(
                sandbox.directory, name=sandbox.name, epoch=sandbox.epoch, activity=held
            ) as inside:
                marker = await _marker(inside)
                is_ready = marker.laid >= laid_once(spec)
                branch = decide(is_ready=is_ready, is_there=True, is_restored=False)
                done = await _furnish(inside, spec, branch, marker, is_live=True)
            note_ephemeral(sandbox.directory, spec)
            activity.forget_unready(sandbox.directory)
            return done

    def forget(self, name: str) -> None:
        """Forget a sandbox whose lease is over."""
        (self._ready / check_name(name)).unlink(missing_ok=True)

    def _was_ready(self, name: str) -> bool:
        return (self._ready / check_name(name)).exists()

    def _remember(self, name: str) -> None:
        self._ready.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._ready / check_name(name)).touch()


async def furnish_once(sandbox: Sandbox, spec: WorkspaceSpec) -> Furnished:
    """Give a new sandbox all that its workspace starts with; nobody remembers it, for it will not come back.

    Raises:
        FurnishingFailed: it is not all there; the sandbox must not be used.
    """
    return await _furnish(sandbox, spec, Start.FRESH, EMPTY)


def laid_once(spec: WorkspaceSpec) -> frozenset[str]:
    """Return the keys of the entries that are written once."""
    return frozenset(
        key_of(entry)
        for entry in spec.entries
        if isinstance(entry, File | Directory | LocalFile | LocalDir | GitRepo) and not entry.ephemeral
    )


async def _marker(sandbox: Sandbox) -> Marker:
    try:
        return await read_marker(sandbox)
    except SandboxGone:
        raise
    except SandboxError as error:
        raise FurnishingFailed(sandbox.name, "its marker", str(error)) from error


async def _furnish(
    sandbox: Sandbox, spec: WorkspaceSpec, branch: Start, marker: Marker, *, is_live: bool = False
) -> Furnished:
    host = HostFiles()
    ours, once, projected = await _wanted(sandbox.name, spec, branch, marker, host)
    stale = marker.projected - with_parents(projected)
    looked = dict.fromkeys(with_parents(stale)) | _sizes(ours) | _sizes(once)
    clones = [entry for entry in spec.entries if isinstance(entry, GitRepo)]
    after = Marker(
        laid=laid_once(spec) | marker.laid, projected=frozenset(projected), hash=hash_of(projected)
    )
    try:
        steps = plan(ours, once, stale, await sandbox.look(looked)) if looked else []
        if is_live and (steps or clones):
            activity.note_unready(sandbox.directory)
        if (
            not after.projected <= marker.projected
        ):  # named before they are written, or nobody would remove them
            await write_marker(
                sandbox, replace(marker, projected=marker.projected | after.projected, hash="")
            )
        done = await _carry_out(sandbox, steps)
        cloned = [entry for entry in clones if await _clone(sandbox, entry, branch, marker)]
        if after != marker and after != EMPTY:
            await write_marker(sandbox, after)
    except (FurnishingFailed, SandboxGone):
        raise
    except SandboxError as error:
        raise FurnishingFailed(sandbox.name, "its files", str(error)) from error
    return replace(done, start=branch, cloned=len(cloned), skipped=tuple(host.skipped), hash=after.hash)


async def _wanted(
    name: str, spec: WorkspaceSpec, branch: Start, marker: Marker, host: HostFiles
) -> tuple[Tree, Tree, Tree]:
    """Return what must be exactly so, what is written where nothing is, and what is projected."""
    ours: Tree = {}
    once: Tree = {}
    projected: Tree = {}
    for entry in spec.entries:
        if isinstance(entry, Projection):
            projected |= await _read(name, entry, host)
        elif entry.ephemeral:
            ours |= await _read(name, entry, host)
        elif branch in EVERYTHING or key_of(entry) not in marker.laid:
            once |= await _read(name, entry, host)
    return ours | projected, once, projected


async def _read(name: str, entry: Entry, host: HostFiles) -> Tree:
    """Return the files and directories that an entry comes to."""
    try:
        match entry:
            case File():
                return {entry.path: Wanted(content=entry.content, executable=entry.executable)}
            case Directory():
                return {entry.path: DIRECTORY}
            case LocalFile() | LocalDir():
                tree = await asyncio.to_thread(host.read, entry.source, entry.path)
                if (tree[entry.path].content is None) == isinstance(entry, LocalFile):
                    raise FurnishingFailed(name, key_of(entry), f"{entry.source} is of the other kind")
                return tree
            case Projection():
                return await asyncio.to_thread(_project, entry, host)
            case _:
                return {}
    except SandboxError as error:
        raise FurnishingFailed(name, key_of(entry), str(error)) from error


def _project(entry: Projection, host: HostFiles) -> Tree:
    """Return what a projection shows; names that the host does not have are not shown."""
    tree: Tree = {}
    for name, root in zip(entry.include, entry.roots, strict=True):
        path = name if entry.source.path == "." else f"{entry.source.path}/{name}"
        source = Source(base=entry.source.base, path=path)
        if not host.exists(source):
            continue
        if host.is_link(source):
            host.skipped.append(str(source))
            continue
        tree |= host.read(source, root)
    return tree


def _sizes(tree: Tree) -> dict[str, int | None]:
    sizes: dict[str, int | None] = dict.fromkeys(with_parents(tree))
    for path, wanted in tree.items():
        sizes[path] = None if wanted.content is None else len(wanted.content)
    return sizes


async def _carry_out(sandbox: Sandbox, steps: list[Step]) -> Furnished:
    written = size = removed = 0
    for step in steps:
        match step:
            case Delete() if step.if_empty and await sandbox.list_files(step.path):
                continue
            case Delete():
                await sandbox.delete(step.path, recursive=True)
                removed += 1
            case Make():
                await sandbox.mkdir(step.path)
            case Write():
                content = step.wanted.content or b""
                await sandbox.write_file(step.path, content, mode=step.wanted.mode)
                written, size = written + 1, size + len(content)
    return Furnished(start=Start.FRESH, written=written, written_bytes=size, removed=removed)


async def _clone(sandbox: Sandbox, entry: GitRepo, branch: Start, marker: Marker) -> bool:
    """Clone a repository if it has to be; it appears at once and whole."""
    is_there = await sandbox.exists(entry.path)
    if not entry.ephemeral and (is_there or (branch not in EVERYTHING and key_of(entry) in marker.laid)):
        return False
    try:
        if is_there:
            await sandbox.delete(entry.path, recursive=True)
        await sandbox.git_checkout(entry.url, branch=entry.ref, target=entry.path, depth=entry.depth)
    except SandboxGone:
        raise
    except SandboxError as error:
        raise FurnishingFailed(sandbox.name, key_of(entry), str(error)) from error
    return True
