"""Deciding what a workspace needs: pure, from what should be there and what was seen there.

Two rules. What is ours (ephemeral entries, projections) is made exactly what it should be, whatever stands in
its place. What is the agent's from then on (all other entries) is written once, and only where nothing is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from sandboxes.furnishing.hostfiles import Tree, Wanted
from sandboxes.workspace import Seen


class Start(StrEnum):
    """How a workspace starts, by what is there already."""

    LIVE = "live"  # it has all it started with, and lives: what is ours is renewed
    RESTORED = "restored"  # the same out of a snapshot
    RESTORED_UNREADY = "restored-unready"  # out of a snapshot from before all was there
    FRESH = "fresh"  # nothing was there, or not all of it: everything
    LOST = "lost"  # it had been there, and neither it nor a snapshot is: everything, and somebody is told


def decide(*, is_ready: bool, is_there: bool, is_restored: bool) -> Start:
    """Return the branch of a start.

    Args:
        is_ready: it had all of its entries once.
        is_there: the workspace itself is there, with the sandbox that lives.
        is_restored: its files came out of a snapshot.
    """
    if is_restored:
        return Start.RESTORED if is_ready else Start.RESTORED_UNREADY
    if is_ready:
        return Start.LIVE if is_there else Start.LOST
    return Start.FRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove what is there, with all below it; an `if_empty` directory only if nothing is in it."""

    path: str
    if_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Make a directory."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write a file, in place of one that may be there."""

    path: str
    wanted: Wanted


Step = Delete | Make | Write


def with_parents(paths: Iterable[str]) -> set[str]:
    """Return paths and the directories that they are in."""
    found: set[str] = set()
    for path in paths:
        found.add(path)
        found.update(str(parent) for parent in PurePosixPath(path).parents if str(parent) != ".")
    return found


def plan(ours: Tree, once: Tree, stale: Collection[str], seen: Mapping[str, Seen]) -> list[Step]:
    """Return what to do, in order, so that a workspace holds what it should.

    Args:
        ours: what must be exactly so.
        once: what is written where nothing is.
        stale: what was ours and is no longer wanted.
        seen: what is at each of these paths and at the directories that they are in.
    """
    return [*_sweep(ours, stale, seen), *_hold(ours, seen), *_fill(once, ours, seen)]


def _sweep(ours: Tree, stale: Collection[str], seen: Mapping[str, Seen]) -> Iterator[Step]:
    needed = with_parents(ours)
    for path in sorted(stale, reverse=True):  # what is in a directory before the directory
        found = seen[path].kind
        if path in needed or found is None or _behind(path, seen) != "directory":
            continue
        yield Delete(path=path, if_empty=found == "directory")


def _hold(ours: Tree, seen: Mapping[str, Seen]) -> Iterator[Step]:
    fresh: set[str] = set()  # made by us just now: nothing is in it
    for path in sorted(with_parents(ours), key=lambda path: (path.count("/"), path)):
        wanted = ours.get(path)
        found = Seen(kind=None) if _is_in(path, fresh) else seen[path]
        if wanted is None or wanted.content is None:
            if found.kind != "directory":
                if found.kind is not None:
                    yield Delete(path=path)
                fresh.add(path)
                yield Make(path=path)
        elif not _is_same(found, wanted):
            if found.kind not in (None, "file"):
                yield Delete(path=path)
            yield Write(path=path, wanted=wanted)


def _fill(once: Tree, ours: Tree, seen: Mapping[str, Seen]) -> Iterator[Step]:
    made: set[str] = {path for path in with_parents(ours) if path not in ours or ours[path].content is None}
    shut: set[str] = set()  # the agent has something else here
    for path in sorted(with_parents(once), key=lambda path: (path.count("/"), path)):
        wanted, found = once.get(path), seen[path].kind
        if _is_in(path, shut):
            continue
        if wanted is None or wanted.content is None:
            if found is None and path not in made:
                yield Make(path=path)
            elif found not in (None, "directory") and path not in made:
                shut.add(path)
        elif found is None and path not in made:
            yield Write(path=path, wanted=wanted)


def _is_same(found: Seen, wanted: Wanted) -> bool:
    return (
        found.kind == "file"
        and found.sha256 == wanted.sha256
        and bool(found.mode & 0o100) == wanted.executable
    )


def _is_in(path: str, directories: set[str]) -> bool:
    return any(str(parent) in directories for parent in PurePosixPath(path).parents)


def _behind(path: str, seen: Mapping[str, Seen]) -> str | None:
    """Return what the directories above a path are: "directory" if each is one, and no link."""
    for parent in PurePosixPath(path).parents:
        if str(parent) != "." and seen[str(parent)].kind != "directory":
            return seen[str(parent)].kind
    return "directory"
