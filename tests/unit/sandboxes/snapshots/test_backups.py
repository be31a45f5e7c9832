"""Backups of any directory: whole or not at all, never over something, found by id until they expire."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxes.errors import InvalidSpec
from sandboxes.snapshots import Backups, LocalStore, Snapshots, backups
from sandboxes.snapshots.errors import (
    BackupExpired,
    BackupNotFound,
    BackupRefused,
    SnapshotCorrupt,
    StoreUnavailable,
)

Look = Callable[[Path], Any]


class Desk:
    def __init__(self, root: Path) -> None:
        self.root, self.now_ms, self.sizes = root, 1_000_000, list[int]()
        self.store = LocalStore(root / "work" / "store")
        clock = lambda: self.now_ms  # noqa: E731
        self.snapshots = Snapshots(
            self.store, root / "work" / "scratch", clock=clock, watch=self.sizes.append
        )
        self.backups = Backups(self.snapshots, root / "work", clock=clock)
        self.tree = root / "tree"
        (self.tree / "empty").mkdir(parents=True)
        (self.tree / "ünïcødé").write_text("x" * 1000)
        (self.tree / "cache").mkdir()
        (self.tree / "cache/big").write_bytes(bytes(100_000))

    def clock(self) -> int:
        return self.now_ms

    def damage(self) -> None:
        for blob in self.store.blobs():
            path = self.store.root / "blobs" / blob.digest[:2] / blob.digest
            if not path.read_bytes().startswith(b"{"):  # a layer
                path.write_bytes(b"x" * blob.stored_bytes)

    def in_work(self) -> list[str]:
        return sorted(os.listdir(self.root / "work"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_backup_comes_back_elsewhere_and_is_listed_until_it_is_forgotten(desk: Desk, look: Look) -> None:
    made = desk.backups.create(desk.tree, name="before the move", excludes=["cache", "absent"])
    assert (made.name, made.directory, made.absent) == ("before the move", str(desk.tree), ("absent",))
    assert made.expires_ms == desk.now_ms + 259_200_000
    (desk.root / "back").mkdir()  # an empty one is fine
    desk.backups.restore(made.backup_id, desk.root / "back")
    (desk.tree / "cache/big").unlink()
    (desk.tree / "cache").rmdir()
    assert look(desk.root / "back") == look(desk.tree)
    assert [found.backup_id for found in desk.backups.list()] == [made.backup_id]
    assert desk.backups.find(made.backup_id.upper()).files == 2
    assert desk.snapshots.owners() == []  # no sandbox, so nobody takes it for an orphan
    assert sum(desk.sizes) == 2000  # told while it was taken, and while it was restored
    desk.backups.forget(made.backup_id)
    assert desk.backups.list() == []
    for missing in (made.backup_id, "no-uuid", "../../etc/passwd"):
        with pytest.raises(BackupNotFound):
            desk.backups.restore(missing, desk.root / "again")
    assert desk.in_work() == ["backups.lock", "scratch", "store"]


def test_what_has_expired_is_refused_a_minute_before_and_swept_after(desk: Desk) -> None:
    made = desk.backups.create(desk.tree, ttl_s=100)
    desk.now_ms += 39_999
    desk.backups.restore(made.backup_id, desk.root / "back")
    desk.now_ms += 1
    with pytest.raises(BackupExpired, match=made.backup_id):
        desk.backups.restore(made.backup_id, desk.root / "late")
    assert desk.backups.sweep() == 0
    desk.now_ms += 60_000
    assert desk.backups.sweep() == 1
    assert desk.backups.list() == []


def test_nothing_is_ever_restored_over_something(desk: Desk) -> None:
    made = desk.backups.create(desk.tree)
    (desk.root / "file").write_text("mine")
    (desk.root / "link").symlink_to(desk.root / "elsewhere")
    for target in (desk.tree, desk.root / "file", desk.root / "link"):
        with pytest.raises(BackupRefused):
            desk.backups.restore(made.backup_id, target)
    assert (desk.root / "file").read_text() == "mine"


def test_a_restore_that_fails_leaves_nothing(desk: Desk) -> None:
    made = desk.backups.create(desk.tree)
    desk.damage()
    (desk.root / "empty").mkdir()
    before = sorted(os.listdir(desk.root))
    for target in ("new", "empty"):
        with pytest.raises(SnapshotCorrupt):
            desk.backups.restore(made.backup_id, desk.root / target)
    with pytest.raises(SnapshotCorrupt):
        desk.backups.verify(made.backup_id)
    assert sorted(os.listdir(desk.root)) == before
    assert os.listdir(desk.root / "empty") == []


def test_verify_reads_all_of_it(desk: Desk) -> None:
    made = desk.backups.create(desk.tree)
    assert desk.backups.verify(made.backup_id) == made
    assert os.listdir(desk.root / "work/scratch") == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "n" * 257}, InvalidSpec),
        ({"name": "two\nlines"}, InvalidSpec),
        ({"ttl_s": 0}, InvalidSpec),
        ({"ttl_s": -5}, InvalidSpec),
        ({"excludes": ["../up"]}, InvalidSpec),
    ],
)
def test_what_cannot_be_is_refused_by_name(desk: Desk, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        desk.backups.create(desk.tree, **arguments)
    for directory in (desk.root / "absent", desk.tree / "ünïcødé", desk.root, Path("/")):
        with pytest.raises(BackupRefused):
            desk.backups.create(directory)
    assert desk.backups.list() == []
    assert list(desk.store.blobs()) == []


def test_a_full_store_keeps_nothing_of_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(digest: str, source: Path) -> None:
        raise StoreUnavailable("store", "No space left on device")

    monkeypatch.setattr(desk.store, "put", full)
    with pytest.raises(StoreUnavailable):
        desk.backups.create(desk.tree)
    assert desk.backups.list() == []
    assert os.listdir(desk.root / "work/scratch") == []
    assert desk.in_work() == ["backups.lock", "scratch", "store"]


def test_one_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "WAIT_S", 0.1)
    desk.backups.create(desk.tree)
    with open(desk.root / "work/backups.lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BackupRefused, match="still running"):
            desk.backups.create(desk.tree)
    desk.backups.create(desk.tree)
