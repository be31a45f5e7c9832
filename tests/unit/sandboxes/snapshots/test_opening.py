"""Which store a URL means, and that credentials are never part of it."""

import os
from pathlib import Path

import pytest

from sandboxes.errors import InvalidSpec
from sandboxes.snapshot_policy import SnapshotPolicy, check_url
from sandboxes.snapshots import LocalStore, NoStore, TwoLevelStore, open_snapshots, open_store
from sandboxes.snapshots.errors import SnapshotsOff, StoreUnavailable


def test_a_url_means_a_store(tmp_path: Path) -> None:
    here, there = open_store("", tmp_path), open_store(f"file:{tmp_path}/elsewhere", tmp_path)
    assert isinstance(here, LocalStore)
    assert isinstance(there, LocalStore)
    assert (here.root, there.root) == (tmp_path / "store", tmp_path / "elsewhere")
    for url in ("s3://bucket/some/prefix?endpoint=http://127.0.0.1:1", "redis://127.0.0.1:1/0?prefix=a"):
        store = open_store(url, tmp_path)  # nobody listens there: nothing is asked before it is used
        assert isinstance(store, TwoLevelStore)
        assert (store.is_shared, here.is_shared) == (True, False)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/", "is no store"),
        ("/a/path", "is no store"),
        ("file:relative", "is no store"),
        ("none", "is no store"),
        ("s3:///prefix", "is no bucket"),
        ("s3://Bucket_/x", "is no bucket"),
        ("s3://bucket/../up", "is no prefix"),
        ("s3://bucket/x?secret_access_key=hunter2", "no option"),
        ("redis://host/0?prefix=a*", "is no prefix"),
        ("redis://host/0?prefix=", "is no prefix"),
    ],
)
def test_what_is_no_store_is_refused_by_name(url: str, says: str, tmp_path: Path) -> None:
    for refused in (lambda: check_url(url), lambda: open_store(url, tmp_path)):
        with pytest.raises(InvalidSpec, match=says) as caught:
            refused()
        assert caught.value.field == "snapshots.url"
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/x", "redis://:hunter2@host/0", "rediss://u:hunter2@host"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidSpec, match="credentials do not belong") as caught:
        check_url(url)
    assert "hunter2" not in str(caught.value)


def test_credentials_come_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("# of the bucket\nAWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY = hunter2\n")
    file.chmod(0o644)
    url = "s3://bucket/x"
    with pytest.raises(StoreUnavailable, match="mode 0600") as caught:
        open_store(url, tmp_path, credentials=f"file:{file}")
    assert "hunter2" not in str(caught.value)
    file.chmod(0o600)
    assert open_store(url, tmp_path, credentials=f"file:{file}").is_shared
    if os.geteuid() == 0:
        os.chown(file, 1234, 1234)
        with pytest.raises(StoreUnavailable, match="somebody else"):
            open_store(url, tmp_path, credentials=f"file:{file}")
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        open_store(url, tmp_path, credentials=f"file:{tmp_path}/absent")
    with pytest.raises(InvalidSpec, match="file:/path"):
        open_store(url, tmp_path, credentials="hunter2")


def test_with_none_nothing_is_kept_and_that_is_said(tmp_path: Path) -> None:
    snapshots = open_snapshots(SnapshotPolicy(url="none:"), tmp_path / "snapshots")
    assert isinstance(snapshots.store, NoStore)
    (tmp_path / "workspace").mkdir()
    with pytest.raises(SnapshotsOff, match="nothing sleeps"):
        snapshots.take("owner", tmp_path / "workspace", epoch=1, index=tmp_path / "index")
    assert not snapshots.has("owner")
    assert snapshots.collect() == (0, 0)
    snapshots.forget("owner")
