"""Paths beneath roots, without a sandbox around them: here a mistake would reach the host."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.runner import files
from sandboxes.runner.files import Files, PathRefused, open_beneath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "inner" / "file").write_text("inside")
    (tmp_path / "root" / "good").symlink_to("inner/file")
    (tmp_path / "root" / "bad").symlink_to("../outside")
    (tmp_path / "root" / "absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "up").symlink_to("..")
    (tmp_path / "root" / "loop").symlink_to("loop")
    return tmp_path / "root"


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open: the kernel's, and ours for kernels without it."""
    if request.param == "walk":
        monkeypatch.setattr(files, "_OPENAT2", 0xFFFF)  # no such call: ENOSYS
    return str(request.param)


def test_what_is_inside_is_opened(root: Path, way: str) -> None:
    fd = os.open(root, os.O_RDONLY)
    os.close(open_beneath(fd, "inner/file", os.O_RDONLY))
    if way == "openat2":
        os.close(open_beneath(fd, "good", os.O_RDONLY))
    os.close(fd)


@pytest.mark.parametrize("path", ["bad", "absolute", "up/outside", "loop"])
def test_no_link_leads_out(root: Path, way: str, path: str) -> None:
    fd = os.open(root, os.O_RDONLY)
    with pytest.raises((PathRefused, NotADirectoryError)):
        open_beneath(fd, path, os.O_RDONLY)
    os.close(fd)


@given(path=st.text(st.sampled_from("ab./\\~$\0"), max_size=20))
def test_any_path_stays_beneath_or_is_refused(path: str) -> None:
    files_object = Files({"/workspace": "/usr/share"})
    try:
        where, parts = files_object._locate(path)
    except PathRefused:
        return
    assert where == "/workspace"
    assert ".." not in parts
    assert all(part not in ("", ".") and "/" not in part for part in parts)


def test_an_abandoned_upload_leaves_nothing(root: Path) -> None:
    box = Files({"/workspace": str(root)})
    answer = box.write({"path": "new", "last": False}, b"half")
    assert len([name for name in os.listdir(root) if name.startswith(".skylease-upload")]) == 1
    box.abandon(answer["token"])
    assert "new" not in os.listdir(root)
    assert not [name for name in os.listdir(root) if name.startswith(".skylease-upload")]
    box.abandon("unknown")


def test_a_file_is_replaced_at_once(root: Path) -> None:
    box = Files({"/workspace": str(root)})
    answer = box.write({"path": "inner/file", "last": False}, b"new ")
    assert (root / "inner" / "file").read_text() == "inside"
    box.write({"path": "inner/file", "last": True, "token": answer["token"]}, b"text")
    assert (root / "inner" / "file").read_text() == "new text"
