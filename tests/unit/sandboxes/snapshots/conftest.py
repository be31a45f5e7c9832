"""A workspace, a store, and ways to look at trees."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxes.snapshots import LocalStore, Snapshots

Picture = dict[bytes, tuple[object, ...]]


def picture(tree: Path) -> Picture:
    """Everything about a tree that a snapshot keeps."""
    found: Picture = {}
    top = os.fsencode(tree)
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            links = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
            found[os.path.relpath(path, top)] = (oct(status.st_mode), status.st_mtime_ns, links, content)
    return found


class Shelf:
    """Snapshots of one owner over a store in a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree, self.index = root, root / "workspace", root / "index.json"
        self.tree.mkdir()
        self.store = LocalStore(root / "store")
        self.now_ms = 1_000
        self.snapshots = Snapshots(self.store, root / "scratch", clock=lambda: self.now_ms)
        self._restored = 0

    def take(self, epoch: int = 1, **rest: object):  # type: ignore[no-untyped-def]
        return self.snapshots.take("owner", self.tree, epoch=epoch, index=self.index, **rest)  # type: ignore[arg-type]

    def back(self, **rest: object) -> Path:
        self._restored += 1
        target = self.root / f"restored-{self._restored}"
        index = self.root / f"index-{self._restored}.json"
        self.last = self.snapshots.restore("owner", target, index=index, **rest)  # type: ignore[arg-type]
        return target

    def blob(self, digest: str) -> Path:
        return self.store.root / "blobs" / digest[:2] / digest


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def look() -> Callable[[Path], Picture]:
    return picture
