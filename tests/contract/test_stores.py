"""Every snapshot store keeps one contract: a directory, a bucket (moto's server), Redis (a real one), and
a copy on this node in front of each of them. What a store does wrong is told by type, and loses nothing.
"""

import itertools
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis
from moto.server import ThreadedMotoServer

from sandboxes.snapshots import LocalStore, Snapshots, Store, TwoLevelStore
from sandboxes.snapshots.bucket_store import BucketStore
from sandboxes.snapshots.errors import (
    SnapshotCorrupt,
    SnapshotMissing,
    SnapshotStale,
    SnapshotTooLarge,
    StoreUnavailable,
)
from sandboxes.snapshots.redis_store import RedisStore

FAR = ("local", "s3", "redis")
KINDS = (*FAR, *(f"node+{far}" for far in FAR))
EVER = 1 << 62
KEYS: dict[str, Any] = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
numbers = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with OurRedis(tmp_path_factory.mktemp("redis")) as url:
        yield url


class OurRedis:
    """A Redis of our own as long as the block lasts."""

    def __init__(self, directory: Path, *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.argv = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *words]
        self.directory = directory

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self.argv, cwd=self.directory, stdout=subprocess.DEVNULL)
        client = redis.Redis(port=self.port)
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                return f"redis://127.0.0.1:{self.port}/0"
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def bucket(endpoint: str, **rest: Any) -> BucketStore:
    name = f"bucket-{next(numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10)
    return BucketStore(name, "some/prefix", config={**KEYS, "endpoint": endpoint}, **rest)


def far_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match kind:
        case "local":
            return LocalStore(tmp_path / "far")
        case "s3":
            return bucket(request.getfixturevalue("s3"))
        case _:
            return RedisStore(request.getfixturevalue("redis_url"), f"test-{next(numbers)}")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    near, _, kind = request.param.rpartition("+")
    found = far_store(kind, request, tmp_path)
    return TwoLevelStore(LocalStore(tmp_path / "near"), found) if near else found


def keep(store: Store, tmp_path: Path, content: bytes) -> str:
    digest = sha256(content).hexdigest()
    file = tmp_path / f"new-{next(numbers)}"
    file.write_bytes(content)
    store.put(digest, file)
    return digest


def content_of(store: Store, digest: str, size: int, tmp_path: Path) -> bytes:
    scratch = tmp_path / f"scratch-{next(numbers)}"
    scratch.mkdir()
    return store.fetch(digest, size, scratch).read_bytes()


def test_blobs_come_back_and_are_listed_and_removed(store: Store, tmp_path: Path) -> None:
    big = bytes(range(256)) * 40_000  # 10 MB: in several parts
    digest = keep(store, tmp_path, big)
    assert keep(store, tmp_path, big) == digest  # twice is once
    small = sha256(b"small").hexdigest()
    store.put_bytes(small, b"small")
    assert content_of(store, digest, len(big), tmp_path) == big
    assert (store.read(small, 100), store.read(small, 2)) == (b"small", b"sma")
    assert (store.holds(small, 5), store.holds(small, 4), store.holds("0" * 64, 5)) == (True, False, False)
    now_ms = time.time_ns() // 1_000_000
    blobs = {blob.digest: blob for blob in store.blobs()}
    assert {blob.stored_bytes for blob in blobs.values()} == {5, len(big)}
    assert all(abs(blob.written_ms - now_ms) < 60_000 for blob in blobs.values())
    assert not store.remove(small, 1)  # it is younger
    assert store.remove(small, EVER)
    assert not store.remove(small, EVER)
    assert [blob.digest for blob in store.blobs()] == [digest]
    with pytest.raises(SnapshotMissing):
        store.read(small, 10)
    with pytest.raises(SnapshotMissing):
        content_of(store, small, 5, tmp_path)
    assert store.sweep(0) == 0


def test_heads_advance_in_order_and_are_fenced(store: Store) -> None:
    a, b, c, d = (character * 64 for character in "abcd")
    assert store.head("owner") is None
    for epoch, manifest in ((1, a), (1, b), (2, c), (2, d)):
        store.advance("owner", epoch, manifest)
    head = store.head("owner")
    assert head is not None
    assert (head.epoch, head.manifests) == (2, (d, c, b))
    with pytest.raises(SnapshotStale):
        store.advance("owner", 1, a)
    assert store.head("owner") == head
    assert store.advance("owner", 2, a, 2).manifests == (a, d)
    store.advance("other", 1, a)
    assert sorted(store.owners()) == ["other", "owner"]
    store.forget("owner")
    store.forget("owner")
    assert list(store.owners()) == ["other"]
    assert store.head("owner") is None


def test_of_writers_at_once_none_is_overwritten_unseen(store: Store) -> None:
    """Each finds what the one before has written: with all of them kept, all are named."""
    names = [f"{number:064x}" for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.advance("owner", 1, name, 64), names))
    head = store.head("owner")
    assert head is not None
    assert sorted(head.manifests) == names


def test_a_newer_epoch_wins_whoever_comes_first(store: Store) -> None:
    barrier, stale = threading.Barrier(4), []

    def write(epoch: int) -> None:
        barrier.wait()
        try:
            store.advance("owner", epoch, f"{epoch:064x}")
        except SnapshotStale:
            stale.append(epoch)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, (1, 2, 3, 4)))
    head = store.head("owner")
    assert head is not None
    assert head.epoch == 4
    assert head.manifests[0] == f"{4:064x}"
    assert 4 not in stale


def furnished(root: Path) -> Path:
    tree = root / "workspace"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep/file").write_bytes(b"one" * 1000)
    (tree / "link").symlink_to("deep/file")
    return tree


def test_snapshots_over_any_store(store: Store, tmp_path: Path) -> None:
    tree = furnished(tmp_path)
    snapshots = Snapshots(store, tmp_path / "scratch", clock=lambda: EVER)
    index = tmp_path / "index"
    snapshots.take("owner", tree, epoch=1, index=index)
    (tree / "more").write_text("two")
    taken = snapshots.take("owner", tree, epoch=1, index=index, image_digest="sha256:ab")
    assert (taken.is_full, taken.manifest.image_digest) == (False, "sha256:ab")
    keep(store, tmp_path, b"nobody names this")
    assert snapshots.collect() in ((1, 17), (2, 34))  # from each level
    snapshots.restore("owner", tmp_path / "back", index=tmp_path / "i", strict=True)
    assert (tmp_path / "back/link").read_bytes() == b"one" * 1000
    assert (tmp_path / "back/more").read_text() == "two"
    snapshots.forget("owner")
    assert snapshots.collect()[0] >= 4
    assert list(store.blobs()) == []
    with pytest.raises(SnapshotMissing):
        snapshots.restore("owner", tmp_path / "gone", index=tmp_path / "i")


def test_the_snapshot_before_a_damaged_one_is_used_and_that_is_said(store: Store, tmp_path: Path) -> None:
    tree, index = furnished(tmp_path), tmp_path / "index"
    snapshots = Snapshots(store, tmp_path / "scratch")
    snapshots.take("owner", tree, epoch=1, index=index)
    (tree / "deep/file").write_bytes(b"two" * 1000)
    manifest = snapshots.take("owner", tree, epoch=1, index=index).manifest
    newest = manifest.layers[-1]
    store.put_bytes(newest.digest, b"x" * newest.stored_bytes)  # in every level: the store lies
    restored = snapshots.restore("owner", tmp_path / "back", index=tmp_path / "i")
    assert [refused for refused, _ in restored.refused] == [manifest.digest]
    assert (tmp_path / "back/deep/file").read_bytes() == b"one" * 1000
    with pytest.raises(SnapshotCorrupt):
        snapshots.restore("owner", tmp_path / "strict", index=tmp_path / "i", strict=True)


class Forgetful(LocalStore):
    """Takes what it is given, and has forgotten it at once."""

    def put(self, digest: str, source: Path) -> None:
        source.unlink()


def test_a_store_that_forgets_at_once_is_noticed_before_the_head_names_it(tmp_path: Path) -> None:
    store = Forgetful(tmp_path / "store")
    snapshots = Snapshots(store, tmp_path / "scratch")
    with pytest.raises(StoreUnavailable, match="has forgotten it"):
        snapshots.take("owner", furnished(tmp_path), epoch=1, index=tmp_path / "index")
    assert store.head("owner") is None


# two levels


@pytest.fixture(params=FAR)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> TwoLevelStore:
    return TwoLevelStore(LocalStore(tmp_path / "near"), far_store(request.param, request, tmp_path))


def taken_twice(two: TwoLevelStore, tmp_path: Path) -> Snapshots:
    tree = furnished(tmp_path)
    snapshots = Snapshots(two, tmp_path / "scratch")
    snapshots.take("owner", tree, epoch=1, index=tmp_path / "index")
    (tree / "more").write_text("two")
    snapshots.take("owner", tree, epoch=1, index=tmp_path / "index")
    return snapshots


def check_back(snapshots: Snapshots, target: Path) -> None:
    restored = snapshots.restore("owner", target, index=target.with_suffix(".index"), strict=True)
    assert restored.refused == ()
    assert (target / "more").read_text() == "two"
    assert (target / "link").read_bytes() == b"one" * 1000


def test_what_is_cold_is_in_the_shared_store_only_and_comes_back_here_and_elsewhere(
    two: TwoLevelStore, tmp_path: Path
) -> None:
    snapshots = taken_twice(two, tmp_path)
    held = sum(blob.stored_bytes for blob in two.near.blobs())
    assert snapshots.cool("owner") == held > 0
    assert list(two.near.blobs()) == []
    assert list(two.near.owners()) == []
    assert snapshots.cool("owner") == 0  # again is nothing
    elsewhere = TwoLevelStore(LocalStore(tmp_path / "elsewhere"), two.far)
    check_back(Snapshots(elsewhere, tmp_path / "scratch-2"), tmp_path / "there")
    check_back(snapshots, tmp_path / "here")
    assert sum(blob.stored_bytes for blob in two.near.blobs()) > 0  # and is kept for the next time
    assert list(two.near.owners()) == ["owner"]


def test_a_copy_that_is_damaged_or_gone_is_fetched_again(two: TwoLevelStore, tmp_path: Path) -> None:
    snapshots = taken_twice(two, tmp_path)
    for number, blob in enumerate(list(two.near.blobs())):
        path = two.near.root / "blobs" / blob.digest[:2] / blob.digest
        path.unlink()
        if number % 2:
            path.write_bytes(b"x" * blob.stored_bytes)
    check_back(snapshots, tmp_path / "back")


def test_what_the_shared_store_lost_is_uploaded_before_the_copy_goes(
    two: TwoLevelStore, tmp_path: Path
) -> None:
    snapshots = taken_twice(two, tmp_path)
    for blob in list(two.far.blobs()):
        two.far.remove(blob.digest, EVER)
    snapshots.cool("owner")
    check_back(snapshots, tmp_path / "back")


def test_the_last_copy_is_never_dropped(two: TwoLevelStore, tmp_path: Path) -> None:
    snapshots = taken_twice(two, tmp_path)
    newest = snapshots.newest("owner")
    assert newest is not None
    lost = newest.layers[0]
    two.far.remove(lost.digest, EVER)
    path = two.near.root / "blobs" / lost.digest[:2] / lost.digest
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    before = {blob.digest for blob in two.near.blobs()}
    with pytest.raises(SnapshotCorrupt, match="the only one"):
        snapshots.cool("owner")
    path.unlink()
    with pytest.raises(SnapshotMissing, match="neither"):
        snapshots.cool("owner")
    assert {blob.digest for blob in two.near.blobs()} == before - {lost.digest}
    path.write_bytes(whole)
    assert snapshots.cool("owner") > 0
    check_back(snapshots, tmp_path / "back")


def test_a_copy_of_a_head_is_written_only_where_it_differs(two: TwoLevelStore, tmp_path: Path) -> None:
    snapshots = taken_twice(two, tmp_path)
    copy = two.near.root / "heads/owner.json"
    written = copy.stat().st_ino
    check_back(snapshots, tmp_path / "first")
    assert copy.stat().st_ino == written
    whole = copy.read_bytes()
    for damaged in (b"{}", whole.replace(b'"epoch": 1', b'"epoch": 0')):
        copy.write_bytes(damaged)
        check_back(snapshots, tmp_path / f"after-{len(damaged)}")
        assert copy.read_bytes() == whole


def test_the_shared_head_decides_which_files_are_the_newest(two: TwoLevelStore, tmp_path: Path) -> None:
    snapshots = taken_twice(two, tmp_path)
    elsewhere = Snapshots(TwoLevelStore(LocalStore(tmp_path / "b"), two.far), tmp_path / "scratch-b")
    tree, index = tmp_path / "tree-b", tmp_path / "index-b"
    elsewhere.restore("owner", tree, index=index)
    (tree / "more").write_text("three")
    elsewhere.take("owner", tree, epoch=2, index=index)
    with pytest.raises(SnapshotStale):
        snapshots.take("owner", tmp_path / "workspace", epoch=1, index=tmp_path / "index")
    snapshots.restore("owner", tmp_path / "back", index=tmp_path / "i", strict=True)
    assert (tmp_path / "back/more").read_text() == "three"
    elsewhere.forget("owner")
    snapshots.collect()
    assert list(two.near.owners()) == []  # the copy of a head that is gone


# what servers do


def test_a_bucket_that_is_down_or_not_there_says_so_and_loses_nothing(s3: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    down = BucketStore("bucket", config={**KEYS, "endpoint": nobody}, retries=0)
    absent = BucketStore("no-such-bucket", config={**KEYS, "endpoint": s3}, retries=0)
    tree = furnished(tmp_path)
    for store in (down, absent):
        snapshots = Snapshots(
            TwoLevelStore(LocalStore(tmp_path / store.name[-6:]), store), tmp_path / "scratch"
        )
        with pytest.raises(StoreUnavailable, match=store.name):
            store.head("owner")  # not None: that would be a fresh start
        with pytest.raises(StoreUnavailable):
            snapshots.take("owner", tree, epoch=1, index=tmp_path / "i")
        assert list((tmp_path / "scratch").iterdir()) == []


class Silent:
    """A server that accepts and never answers."""

    def __enter__(self) -> int:
        self._server = socket.create_server(("127.0.0.1", 0))
        return int(self._server.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._server.close()


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with Silent() as port:
        endpoint = {**KEYS, "endpoint": f"http://127.0.0.1:{port}"}
        for store in (
            BucketStore("bucket", config=endpoint, request_s=0.2, retries=0),
            RedisStore(f"redis://127.0.0.1:{port}/0", deadline_s=0.2),
        ):
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable):
                store.head("owner")
            assert time.monotonic() - begun < 10


def test_a_bucket_that_ignores_conditions_is_refused(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    store, real = bucket(s3), obstore.put
    monkeypatch.setattr(
        obstore, "put", lambda bucket, key, content, mode="overwrite", **rest: real(bucket, key, content)
    )
    with pytest.raises(StoreUnavailable, match="ignores conditional writes"):
        store.advance("owner", 1, "a" * 64)
    monkeypatch.undo()
    assert store.head("owner") is None


def test_redis_is_for_small_workspaces_and_must_not_forget(redis_url: str, tmp_path: Path) -> None:
    store = RedisStore(redis_url, "small", max_blob_bytes=1000)
    with pytest.raises(SnapshotTooLarge, match="small workspaces") as caught:
        keep(store, tmp_path, b"x" * 1001)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (1001, 1000)
    with OurRedis(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as url:
        full = RedisStore(url)
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            keep(full, tmp_path, bytes(5 << 20))
        client = redis.Redis.from_url(url)
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match="noeviction"):
            keep(RedisStore(url), tmp_path, b"x")


def test_redis_with_a_password(tmp_path: Path) -> None:
    with OurRedis(tmp_path) as url:
        redis.Redis.from_url(url).config_set("requirepass", "open sesame")
        with pytest.raises(StoreUnavailable, match="authenticate"):
            RedisStore(url).head("owner")
        assert RedisStore(url, password="open sesame").head("owner") is None
