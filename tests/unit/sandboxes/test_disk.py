"""Disks of workspaces: as large as the limits say, sparse, and made from one template."""

from pathlib import Path

import pytest

from sandboxes import Limits
from sandboxes.tiers.disk import Disks, file_limit, find_mkfs

MIB = 1 << 20


@pytest.mark.parametrize(
    ("disk_bytes", "disk_files", "expected"),
    [
        pytest.param(1024 * MIB, 131_072, 131_072, id="default"),
        pytest.param(8 * MIB, 131_072, 1024, id="small-disk"),
        pytest.param(1024 * MIB, 5000, 5000, id="few-files"),
        pytest.param(1024 * MIB, 1, 1024, id="never-none"),
    ],
)
def test_how_many_files_a_disk_holds(disk_bytes: int, disk_files: int, expected: int) -> None:
    assert file_limit(Limits(disk_bytes=disk_bytes, disk_files=disk_files)) == expected


@pytest.mark.skipif(find_mkfs() is None, reason="mkfs.ext4 is not installed")
def test_disks_are_sparse_copies_of_one_template(tmp_path: Path) -> None:
    disks, limits = Disks(tmp_path), Limits(disk_bytes=512 * MIB)
    for name in ("one", "two"):
        disks.make(tmp_path / name, limits)
        found = (tmp_path / name).stat()
        assert found.st_size > 512 * MIB
        assert found.st_blocks * 512 < 8 * MIB
        assert disks.devices(tmp_path / name) == []
    assert (tmp_path / "one").read_bytes()[:4096] == (tmp_path / "two").read_bytes()[:4096]
    assert len(list((tmp_path / ".disks").iterdir())) == 1
    with pytest.raises(FileExistsError):
        disks.make(tmp_path / "one", limits)
    disks.wait_released(tmp_path / "one")


def test_without_the_program_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.tiers.disk.find_mkfs", lambda: None)
    with pytest.raises(OSError, match="e2fsprogs"):
        Disks(tmp_path).make(tmp_path / "one", Limits())
    assert not (tmp_path / "one").exists()
