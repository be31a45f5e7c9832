"""A kill at any step of taking, restoring, cooling or collecting snapshots loses nothing and leaves what the
next one clears away.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sandboxes.snapshots import LocalStore, Snapshots, Store, TwoLevelStore
from sandboxes.snapshots.redis_store import RedisStore

STEPS = ("fsync", "replace", "rename", "link", "mkdir", "symlink", "fchmod", "unlink")
LATER_MS = 10**15  # when everything that nobody names is garbage
CASES = [
    (levels, what)
    for levels in ("one", "two", "redis")
    for what in ("take", "restore", "cool", "collect")
    if (levels, what) != ("one", "cool")
]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    directory = tmp_path_factory.mktemp("redis")
    words = ["--port", "0", "--unixsocket", str(directory / "socket"), "--save", "", "--maxmemory", "64mb"]
    server = subprocess.Popen(["redis-server", *words], cwd=directory, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (directory / "socket").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield f"unix://{directory}/socket"
    server.kill()
    server.wait()


def store_at(root: Path, levels: str, url: str) -> Store:
    """A store of its own for every root, opened again as another process would."""
    if levels == "one":
        return LocalStore(root / "store")
    far = LocalStore(root / "far") if levels == "two" else RedisStore(url, str(root).replace("_", "-")[-80:])
    return TwoLevelStore(LocalStore(root / "store", is_copy=True), far)


def fork_child(root: Path, what: str, die_at: int = 0, levels: str = "one", url: str = "") -> int:
    """Do it in a child that kills itself before its n-th change of the disk or the server; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    count = 0

    def killing(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)

        setattr(owner, name, call)

    code = 1
    try:
        snapshots = Snapshots(store_at(root, levels, url), root / "scratch", clock=lambda: LATER_MS)
        for name in STEPS:
            killing(os, name)
        killing(redis.Redis, "execute_command")
        match what:
            case "take":
                snapshots.take("owner", root / "workspace", epoch=2, index=root / "index.json")
            case "restore":
                snapshots.restore("owner", root / "woken", index=root / "woken.json")
            case "cool":
                snapshots.cool("owner")
            case _:
                snapshots.collect()
        code = 0
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepare(root: Path, levels: str = "one", url: str = "") -> tuple[Snapshots, Path]:
    tree = root / "workspace"
    tree.mkdir(parents=True)
    snapshots = Snapshots(store_at(root, levels, url), root / "scratch", clock=lambda: LATER_MS)
    (tree / "file").write_text("someone else's")
    settle(tree)
    snapshots.take("gone", tree, epoch=1, index=root / "gone.json")
    snapshots.forget("gone")  # garbage
    (tree / "file").write_text("old")
    (tree / "link").symlink_to("file")
    settle(tree)
    snapshots.take("owner", tree, epoch=1, index=root / "index.json")
    (tree / "file").write_text("new")
    (tree / "more").mkdir()
    settle(tree)
    return snapshots, tree


def settle(tree: Path) -> None:
    """The same times in every run: the same digests, and so the same steps."""
    for path in tree.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)


@pytest.mark.parametrize(("levels", "what"), CASES)
def test_killed_at_every_step(tmp_path: Path, levels: str, what: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("redis_url") if levels == "redis" else ""
    outcomes: list[str] = []
    for step in range(1, 100):
        root = tmp_path / str(step)
        snapshots, tree = prepare(root, levels, url)
        code = exit_code(fork_child(root, what, step, levels, url))
        if what == "restore":
            assert (root / "woken").exists() is (code == 0) or (root / "woken" / "file").read_text() == "old"
        # Whatever was left: the newest whole snapshot is the old or the new, and the next one works.
        snapshots.restore("owner", root / "seen", index=root / "seen.json", strict=True)
        seen = (root / "seen" / "file").read_text()
        assert seen in ("old", "new")
        outcomes.append(seen)
        snapshots.take("owner", tree, epoch=3, index=root / "index.json")
        check_nothing_leaks(snapshots, root)
        snapshots.restore("owner", root / "after", index=root / "after.json", strict=True)
        assert ((root / "after" / "file").read_text(), (root / "after" / "more").is_dir()) == ("new", True)
        if code == 0:
            break
        assert code == -9
    assert code == 0, "it took more steps than were tried"
    assert len(outcomes) > (5 if what in ("take", "restore") else 2)
    assert outcomes == sorted(outcomes, reverse=True)  # old … old, new … new: one moment decides
    assert set(outcomes) == ({"old", "new"} if what == "take" else {"old"})


def check_nothing_leaks(snapshots: Snapshots, root: Path) -> None:
    """After a collection each level has what its heads lead to, and nothing else."""
    for left in (*(root / "scratch").iterdir(), *(root / "store/new").iterdir()):
        os.utime(left, (1, 1))
    snapshots.collect()
    head = snapshots.store.head("owner")
    assert head is not None
    named = set(head.manifests)
    for manifest in head.manifests:
        named |= {layer.digest for layer in snapshots.manifest(manifest).layers}
    shared, *nearer = snapshots.store.levels()
    assert {blob.digest for blob in shared.blobs()} == named
    assert all({blob.digest for blob in level.blobs()} <= named for level in nearer)
    assert os.listdir(root / "scratch") == os.listdir(root / "store/new") == []


def test_half_written_files_are_swept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "new" / "left-by-a-crash").write_text("x")
    os.utime(tmp_path / "new" / "left-by-a-crash", (1, 1))
    (tmp_path / "new" / "being-written").write_text("x")
    assert store.sweep(before_ms=10_000) == 1
    assert os.listdir(tmp_path / "new") == ["being-written"]


def test_collecting_sweeps_what_a_killed_snapshot_left(tmp_path: Path) -> None:
    root = tmp_path / "root"
    prepare(root)
    for left in (root / "scratch" / "left.layer", root / "store" / "new" / "left"):
        left.write_text("half")
        os.utime(left, (1, 1))
    (root / "scratch" / "old").mkdir()
    (root / "scratch" / "old" / "inner").write_text("half")
    os.utime(root / "scratch" / "old", (1, 1))
    (root / "scratch" / "young.layer").write_text("being written")
    Snapshots(LocalStore(root / "store"), root / "scratch").collect()
    assert os.listdir(root / "scratch") == ["young.layer"]
    assert os.listdir(root / "store" / "new") == []


def test_two_holders_at_once_leave_one_whole_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "root"
    prepare(root)
    children = [fork_child(root, "take") for _ in range(4)]
    codes = [exit_code(pid) for pid in children]
    assert 0 in codes
    snapshots = Snapshots(LocalStore(root / "store"), root / "scratch")
    snapshots.restore("owner", root / "seen", index=root / "seen.json", strict=True)
    assert (root / "seen" / "file").read_text() == "new"
