"""The group that limits a sandbox's memory: only its own, with files as kernels write them."""

import os
from pathlib import Path

import pytest

from sandboxes.pool.memory_group import MemoryGroup, memory_group_of


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/7").mkdir(parents=True)
    return tmp_path / "proc"


def group(path: Path, files: dict[str, str]) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_version_two_may_swap_only_meanwhile(proc: Path, tmp_path: Path) -> None:
    (proc / "7/cgroup").write_text("0::/skylease/a\n")
    files = {"cgroup.procs": "7\n8\n", "memory.current": "5000\n", "memory.max": "9000\n"}
    path = group(tmp_path / "groups/skylease/a", {**files, "memory.swap.max": "0\n"})
    found = memory_group_of(7, proc, tmp_path / "groups")
    assert found == MemoryGroup(path, 2)
    with found.swapping():
        assert (path / "memory.swap.max").read_text() == "9000"
        found.reclaim()
    assert (path / "memory.swap.max").read_text() == "0"
    assert (path / "memory.reclaim").read_text() == "5000"


def test_version_one_is_told_to_be_empty(proc: Path, tmp_path: Path) -> None:
    (proc / "7/cgroup").write_text("5:freezer:/x\n4:memory:/skylease/a\n")
    path = group(
        tmp_path / "groups/memory/skylease/a", {"cgroup.procs": "7\n", "memory.usage_in_bytes": "5000\n"}
    )
    found = memory_group_of(7, proc, tmp_path / "groups")
    assert found == MemoryGroup(path, 1)
    with found.swapping():
        assert found.reclaim() == 0  # files do not shrink by being told to
    assert (path / "memory.force_empty").read_text() == "0"


def test_a_group_that_we_are_in_is_left_alone(proc: Path, tmp_path: Path) -> None:
    (proc / "7/cgroup").write_text("0::/session\n")
    group(tmp_path / "groups/session", {"cgroup.procs": f"7\n{os.getpid()}\n", "memory.current": "5000\n"})
    assert memory_group_of(7, proc, tmp_path / "groups") is None
    assert memory_group_of(6, proc, tmp_path / "groups") is None
