"""Removing hostile trees."""

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.runner.removal import remove_entries, remove_tree


def remove(directory: Path, name: str) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)


def test_absent_files_links_and_directories(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "link").symlink_to(kept)
    (top / "a" / "b" / "link").symlink_to("/")
    os.mkfifo(top / "fifo")
    (top / ".skylease-removal-0").mkdir()  # as if to be in the way of our own names
    (top / ".skylease-removal-1").touch()
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0)
    remove(tmp_path, "top")
    remove(tmp_path, "top")
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(kept) == ["file"]


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    remove(tmp_path, "link")
    assert os.listdir(tmp_path) == ["kept"]


def test_depth_does_not_matter(tmp_path: Path) -> None:
    before = os.getcwd()
    os.mkdir(tmp_path / "deep")
    os.chdir(tmp_path / "deep")
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(before)
    remove(tmp_path, "deep")
    assert os.listdir(tmp_path) == []


@settings(max_examples=30, deadline=None)
@given(
    paths=st.lists(
        st.lists(st.sampled_from(["a", "b", ".skylease-removal-2"]), min_size=1, max_size=5), max_size=8
    )
)
def test_any_tree(paths: list[list[str]]) -> None:

    with tempfile.TemporaryDirectory() as name:
        for parts in paths:
            os.makedirs(os.path.join(name, "top", *parts), exist_ok=True)
        remove(Path(name), "top")
        assert os.listdir(name) == []


def test_entries_are_removed_but_the_kept_ones(tmp_path: Path) -> None:
    for entry in ("a", "b", "c"):
        (tmp_path / entry).mkdir()
    remove_entries(str(tmp_path), frozenset({"b"}))
    assert os.listdir(tmp_path) == ["b"]
    remove_entries(str(tmp_path / "absent"))
