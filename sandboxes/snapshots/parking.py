"""Workspaces of sleeping sandboxes as they were, on this node: what is parked wakes without being unpacked.

ROOT/OWNER/disk        the disk itself, moved here when the sandbox had ended
ROOT/OWNER/index.json  what was on it when its snapshot was taken
ROOT/OWNER/note.json   which snapshot that was; written last, so that without it there is nothing

It is a convenience: the snapshot is what counts. A disk is used once, only while the owner's newest snapshot
is the one that was taken of it, and only if each entry on it is still what the snapshot's index says, down to
inode and status-change time. It comes from this node's own kernel: archives of the store are never mounted.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandboxes.names import check_name
from sandboxes.runner.removal import remove_tree
from sandboxes.snapshots.scan import DIRECTORY, load_index, save_index, scan

MIN_BYTES: Final = 4 << 20  # less than that is unpacked into a warm slot before a sandbox has been made


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A disk that can be used: `manifest` is the digest of the snapshot of it, `uid` the host's, of its
    files.
    """

    disk: Path
    index: Path
    manifest: str
    uid: int | None


class Parking:
    """See the module."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, owner: str, index: Path) -> Path:
        """Return where the disk of an owner is to be moved, in place of an earlier one; `index` is moved as
        well.
        """
        self.drop(owner)
        place = self._root / check_name(owner)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.mkdir(mode=0o700)
        os.replace(index, place / "index.json")
        return place / "disk"

    def settle(self, owner: str, manifest: str, uid: int | None) -> None:
        """The disk is there: note what it is."""
        place = self._root / check_name(owner)
        note = {"manifest": manifest, "uid": uid, "disk": _mark(place / "disk")}
        (place / "note.new").write_text(json.dumps(note))
        os.replace(place / "note.new", place / "note.json")

    def find(self, owner: str, manifest: str | None) -> Parked | None:
        """Return the disk of this snapshot; None: there is none that can be used, and what was there is
        dropped.
        """
        place = self._root / check_name(owner)
        try:
            note = json.loads((place / "note.json").read_bytes())
            if (
                manifest is not None
                and note["manifest"] == manifest
                and note["disk"] == _mark(place / "disk")
            ):
                index, uid = place / "index.json", note["uid"]
                return Parked(disk=place / "disk", index=index, manifest=manifest, uid=uid)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.drop(owner)
        return None

    def adopt(self, parked: Parked, tree: Path, uid: int | None, index: Path) -> bool:
        """Say whether a mounted disk is what its snapshot says; if so its index goes on at `index`."""
        known = load_index(parked.index, parked.manifest)
        if known is None or uid != parked.uid:
            return False
        found = scan(tree)
        if found.index != known.index or found.skipped != known.skipped:
            return False
        save_index(index, parked.manifest, known)
        return True

    def has(self, owner: str) -> bool:
        """Say whether there may be a disk of an owner."""
        return (self._root / check_name(owner) / "note.json").exists()

    def drop(self, owner: str) -> int:
        """Remove what is parked of an owner; returns how many bytes it took."""
        name = check_name(owner)
        if not os.path.lexists(self._root / name):
            return 0
        try:
            freed = os.stat(self._root / name / "disk").st_blocks * 512
        except OSError:
            freed = 0
        fd = os.open(self._root, DIRECTORY)
        try:
            remove_tree(fd, name)
        finally:
            os.close(fd)
        return freed

    def owners(self) -> Iterator[str]:
        """Yield whose disks are here."""
        if self._root.exists():
            yield from sorted(os.listdir(self._root))


def _mark(disk: Path) -> list[Any]:
    """What changes when somebody writes to a disk that nothing has mounted."""
    status = os.stat(disk)
    return [status.st_size, status.st_blocks, status.st_mtime_ns, status.st_ino]
