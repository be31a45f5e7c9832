"""Whatever is in a workspace comes back, byte for byte, through any number of layers."""

import errno
import json
import os
import random
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sandboxes.errors import InvalidSpec
from sandboxes.snapshots import LocalStore, Manifest, Snapshots
from sandboxes.snapshots.errors import (
    SnapshotError,
    SnapshotMissing,
    SnapshotRefused,
    SnapshotStale,
    SnapshotTooLarge,
    StoreUnavailable,
)
from sandboxes.snapshots.layer import write_layer
from sandboxes.snapshots.scan import CLOCK_TICK_NS, scan
from sandboxes.snapshots.snapshots import MAX_CHAIN

Look = Callable[[Path], Any]


def furnish(tree: Path) -> None:
    """What agents leave behind: a repository, an environment with links out, odd names, modes and kinds."""
    for name in (".git/objects/ab", "node_modules/x", ".venv/bin", "empty", "locked", "ünïcødé"):
        (tree / name).mkdir(parents=True)
    (tree / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".venv/bin/python3").symlink_to("/usr/bin/python3")
    (tree / "dangling").symlink_to("../../../nowhere")
    (tree / "loop").symlink_to("loop")
    (tree / "tool").write_bytes(b"#!/bin/sh\n")
    (tree / "tool").chmod(0o755)
    (tree / "secret").write_bytes(b"x" * 70_000)
    (tree / "secret").chmod(0o000)
    os.link(tree / "tool", tree / "empty/same-tool")
    os.mkfifo(tree / "pipe")
    with open(os.path.join(os.fsencode(tree), b"no-utf-8-\xff\xfe"), "wb") as file:
        file.write(b"odd")
    (tree / ("n" * 255)).write_bytes(b"long")
    (tree / "big").write_bytes(random.Random(1).randbytes(3_000_001))
    os.utime(tree / "tool", ns=(0, 1_234_567_890_123_456_789))
    (tree / "locked/inner").write_bytes(b"y")
    (tree / "locked").chmod(0o500)


def test_everything_comes_back(shelf: Any, look: Look) -> None:
    furnish(shelf.tree)
    before = look(shelf.tree)
    taken = shelf.take(image_digest="sha256:ab")
    assert (taken.is_full, taken.manifest.image_digest, taken.manifest.skipped) == (True, "sha256:ab", ())
    assert look(shelf.back()) == before
    assert shelf.last.refused == ()
    assert look(shelf.tree) == before  # and taking it changed nothing


def test_a_second_layer_holds_only_what_changed(shelf: Any, look: Look) -> None:
    furnish(shelf.tree)
    time.sleep(2 * CLOCK_TICK_NS / 1e9)  # what has just been written would be archived once more
    first = shelf.take()
    (shelf.tree / "locked/inner").write_bytes(b"changed in place, in a directory that cannot be written")
    (shelf.tree / "ünïcødé").rmdir()
    shutil.rmtree(shelf.tree / "node_modules")
    (shelf.tree / "node_modules").write_text("now a file")
    (shelf.tree / "tool").unlink()
    (shelf.tree / "tool").mkdir()
    (shelf.tree / "tool/inside").write_text("now a directory")
    (shelf.tree / "loop").unlink()
    second = shelf.take()
    assert not second.is_full
    assert second.manifest.layers[0] == first.manifest.layers[0]
    assert second.manifest.parent == first.manifest.digest
    assert 0 < second.written_bytes < first.written_bytes / 10
    assert look(shelf.back()) == look(shelf.tree)


def test_nothing_changed_writes_nothing(shelf: Any) -> None:
    (shelf.tree / "file").write_text("x")
    os.utime(shelf.tree / "file", ns=(1, 1))
    shelf.take()
    index = json.loads(shelf.index.read_text())
    index["at_ns"] += 10**9  # as if the clock had ticked since
    shelf.index.write_text(json.dumps(index))
    again = shelf.take(epoch=2)
    assert (again.written_bytes, again.manifest.epoch, len(again.manifest.layers)) == (0, 2, 1)


def test_a_change_in_the_same_tick_with_the_same_size_and_time_is_seen(shelf: Any, look: Look) -> None:
    file = shelf.tree / "file"
    file.write_text("aaaa")
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    shelf.take()
    file.write_text("bbbb")
    os.utime(file, ns=times)
    shelf.take()
    assert (shelf.back() / "file").read_text() == "bbbb"


def test_without_its_index_a_snapshot_is_full_and_right(shelf: Any, look: Look) -> None:
    (shelf.tree / "file").write_text("one")
    shelf.take()
    for damage in (
        shelf.index.unlink,
        lambda: shelf.index.write_text("{"),
        lambda: shelf.index.write_text("[]"),
    ):
        damage()
        (shelf.tree / "file").write_text("two")
        assert shelf.take().is_full
    assert look(shelf.back()) == look(shelf.tree)


def test_a_long_chain_is_written_anew(shelf: Any, look: Look) -> None:
    chains = []
    for number in range(2 * MAX_CHAIN):
        (shelf.tree / f"file-{number}").write_bytes(b"x" * 1000)
        chains.append(len(shelf.take().manifest.layers))
    assert chains == [*range(1, MAX_CHAIN + 1)] * 2
    assert look(shelf.back()) == look(shelf.tree)


def test_a_chain_that_is_mostly_waste_is_written_anew(shelf: Any) -> None:
    for number in range(4):
        (shelf.tree / "file").write_bytes(random.Random(number).randbytes(2_000_000))
        taken = shelf.take()
    assert taken.is_full


def test_a_restored_workspace_goes_on_incrementally(shelf: Any, look: Look) -> None:
    (shelf.tree / "file").write_bytes(b"x" * 100_000)
    (shelf.tree / "file").chmod(0o600)
    shelf.take()
    shelf.tree = shelf.back()
    shelf.index = shelf.root / "index-1.json"
    (shelf.tree / "another").write_text("y")
    taken = shelf.take(epoch=2)
    assert (taken.is_full, len(taken.manifest.layers)) == (False, 2)
    assert look(shelf.back()) == look(shelf.tree)


def test_what_is_excluded_or_cannot_be_archived_is_listed(shelf: Any) -> None:
    (shelf.tree / "cache/deep").mkdir(parents=True)
    (shelf.tree / "kept").write_text("k")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shelf.tree / "socket"))
        manifest = shelf.take(excludes=["cache/deep"]).manifest
    assert (manifest.excludes, manifest.skipped) == (("cache/deep",), ("socket",))
    restored = shelf.back()
    assert sorted(path.name for path in restored.rglob("*")) == ["cache", "kept"]
    assert shelf.take().is_full  # other excludes: another tree


@pytest.mark.parametrize("path", ["/etc", "../up", "a/../b", "", "a\0b"])
def test_a_wrong_exclude_is_refused_and_nothing_is_written(shelf: Any, path: str) -> None:
    with pytest.raises(InvalidSpec, match="excludes"):
        shelf.take(excludes=[path])
    assert shelf.snapshots.newest("owner") is None
    assert list(shelf.store.blobs()) == []


def test_an_excluded_path_that_is_not_there_is_said_and_hinders_nothing(shelf: Any) -> None:
    (shelf.tree / "kept").write_text("k")
    taken = shelf.take(excludes=["absent", "kept/below"])
    assert taken.absent == ("absent", "kept/below")
    assert (shelf.back() / "kept").read_text() == "k"


def test_a_workspace_beyond_the_limit_is_not_kept(shelf: Any) -> None:
    (shelf.tree / "file").write_bytes(b"x" * 1000)
    small = Snapshots(shelf.store, shelf.root / "scratch", max_bytes=999)
    with pytest.raises(SnapshotTooLarge, match=r"1000 bytes, and 999 are allowed: see .*max_mib"):
        small.take("owner", shelf.tree, epoch=1, index=shelf.index)
    assert list(shelf.store.blobs()) == []


def test_a_layer_that_the_store_has_lost_is_written_again(shelf: Any, look: Look) -> None:
    (shelf.tree / "file").write_text("one")
    lost = shelf.take().manifest.layers[0].digest
    shelf.blob(lost).unlink()
    (shelf.tree / "file").write_text("two")
    assert shelf.take().is_full
    assert look(shelf.back()) == look(shelf.tree)


def test_a_tree_that_is_too_deep_is_refused(shelf: Any) -> None:
    deep = shelf.tree
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(SnapshotRefused, match="deep"):
        shelf.take()


def test_a_file_that_grows_meanwhile_is_noticed(shelf: Any) -> None:
    (shelf.tree / "log").write_text("short")
    index = scan(shelf.tree).index
    (shelf.tree / "log").write_text("longer now")
    with pytest.raises(SnapshotError, match="changed while"):
        write_layer(shelf.root / "layer", shelf.tree, index, ["log"], [])
    (shelf.tree / "log").unlink()
    (shelf.tree / "log").symlink_to("/etc/hostname")
    with pytest.raises(SnapshotError, match="changed while"):
        write_layer(shelf.root / "layer", shelf.tree, index, ["log"], [])


def test_a_stale_holder_is_refused(shelf: Any) -> None:
    (shelf.tree / "file").write_text("of the new one")
    shelf.take(epoch=5)
    (shelf.tree / "file").write_text("of the old one")
    with pytest.raises(SnapshotStale) as caught:
        shelf.take(epoch=4)
    assert (caught.value.epoch, caught.value.current) == (4, 5)
    assert (shelf.back() / "file").read_text() == "of the new one"


def test_restoring_never_replaces_what_is_there(shelf: Any) -> None:
    shelf.take()
    with pytest.raises(FileExistsError):
        shelf.snapshots.restore("owner", shelf.tree, index=shelf.index)
    with pytest.raises(SnapshotMissing, match="nobody"):
        shelf.snapshots.restore("nobody", shelf.root / "new", index=shelf.index)
    assert not (shelf.root / "new").exists()


def test_tar_reads_a_layer(shelf: Any) -> None:
    (shelf.tree / "file").write_text("plain")
    digest = shelf.take().manifest.layers[0].digest
    tar = shelf.root / "layer.tar"
    with open(shelf.blob(digest), "rb") as source, open(tar, "wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    listing = subprocess.run(["tar", "-tf", tar], capture_output=True, text=True, check=True).stdout
    assert listing.splitlines() == ["removed.json", "files/file"]
    with tarfile.open(tar) as archive:
        assert archive.getmember("files/file").mtime == pytest.approx((shelf.tree / "file").stat().st_mtime)


def test_what_nobody_names_is_collected_after_a_while(shelf: Any) -> None:
    for number in range(6):
        (shelf.tree / "file").write_bytes(random.Random(number).randbytes(2_000_000))
        shelf.take()
    shelf.now_ms = 10**15
    kept = {blob.digest for blob in shelf.store.blobs()}
    assert shelf.snapshots.collect(grace_ms=10**15) == (0, 0)
    removed, freed = shelf.snapshots.collect()
    assert removed > 0
    assert freed > 2_000_000
    assert (shelf.back() / "file").read_bytes() == (shelf.tree / "file").read_bytes()
    shelf.snapshots.forget("owner")
    assert shelf.snapshots.collect()[0] == len(kept) - removed
    assert list(shelf.store.blobs()) == []
    with pytest.raises(SnapshotMissing):
        shelf.back()


def test_a_store_that_cannot_be_written_says_so_and_keeps_the_old_one(
    shelf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shelf.tree / "file").write_text("old")
    shelf.take()
    (shelf.tree / "file").write_text("new")
    real = os.replace

    def full(source: Any, target: Any) -> None:
        if "store" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        shelf.take()
    monkeypatch.undo()
    assert (shelf.back() / "file").read_text() == "old"
    assert os.listdir(shelf.root / "scratch") == []
    assert os.listdir(shelf.store.root / "new") == []
    with pytest.raises(StoreUnavailable):
        LocalStore(shelf.tree / "file" / "below-a-file")


class Trees(RuleBasedStateMachine):
    """Random edits, snapshots, wake-ups from the store, and the tree is always what comes back."""

    names = st.sampled_from(["a", "b", "a/c", "a/d", "a/d/e", "b/f"])

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.tree, self.index = self.root / "t", self.root / "i"
        self.tree.mkdir()
        self.snapshots = Snapshots(LocalStore(self.root / "s"), self.root / "n")
        self.epoch = 1
        self.manifest: Manifest | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(name=names, content=st.binary(max_size=20))
    def write(self, name: str, content: bytes) -> None:
        path = self.tree / name
        if path.parent.is_dir() and (not os.path.lexists(path) or path.is_file()):
            path.write_bytes(content)

    @rule(name=names)
    def make_directory(self, name: str) -> None:
        if (self.tree / name).parent.is_dir() and not os.path.lexists(self.tree / name):
            (self.tree / name).mkdir()

    @rule(name=names, mode=st.sampled_from([0o000, 0o444, 0o555, 0o700, 0o755]))
    def change_mode(self, name: str, mode: int) -> None:
        if (self.tree / name).is_file() or (mode & 0o700 == 0o700 and (self.tree / name).is_dir()):
            (self.tree / name).chmod(mode)

    @rule(name=names, other=names)
    def link(self, name: str, other: str) -> None:
        source, target = self.tree / name, self.tree / other
        if source.is_file() and target.parent.is_dir() and not os.path.lexists(target):
            os.link(source, target)

    @rule(name=names)
    def remove(self, name: str) -> None:
        path = self.tree / name
        if path.is_dir():
            shutil.rmtree(path)
        elif path.parent.is_dir():
            path.unlink(missing_ok=True)

    @rule()
    def take(self) -> None:
        taken = self.snapshots.take("o", self.tree, epoch=self.epoch, index=self.index)
        self.manifest = taken.manifest

    @rule()
    def sleep_and_wake(self) -> None:
        self.take()
        before = self.look(self.tree)
        shutil.rmtree(self.tree)
        self.index.unlink()
        self.epoch += 1
        self.snapshots.restore("o", self.tree, index=self.index)
        assert self.look(self.tree) == before

    @invariant()
    def store_is_clean(self) -> None:
        assert not (self.root / "n").exists() or os.listdir(self.root / "n") == []
        assert os.listdir(self.root / "s" / "new") == []


def test_any_history_of_edits_and_sleeps(look: Look) -> None:
    run_state_machine_as_test(
        cast(Any, lambda: Trees(look)),
        settings=settings(
            max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
