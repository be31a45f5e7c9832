"""How much memory is used, from files as kernels write them; and paging out what is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.pool.memory import memory_used
from sandboxes.pool.pageout import page_out, why_no_doze

MEMINFO = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n"


def test_the_machine_and_its_groups(tmp_path: Path) -> None:
    """The shortest counts, here or above; what is merely cached does not; a group without a limit neither."""
    meminfo, cgroup, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    assert memory_used(meminfo, cgroup, groups) is None
    meminfo.write_text(MEMINFO)
    assert memory_used(meminfo, cgroup, groups) == pytest.approx(0.6)
    cgroup.write_text("0::/a/b\n")
    for name, limit, current in (("a", "1000000", "900000"), ("a/b", "max", "800000")):
        (groups / name).mkdir(parents=True)
        (groups / name / "memory.max").write_text(limit)
        (groups / name / "memory.current").write_text(current)
        (groups / name / "memory.stat").write_text("anon 1\ninactive_file 150000\n")
    assert memory_used(meminfo, cgroup, groups) == pytest.approx(0.75)


def test_version_one_groups(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/x\n3:cpu,cpuacct:/x\n")
    group = tmp_path / "groups" / "memory" / "x"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("2000000")
    (group / "memory.usage_in_bytes").write_text("1900000")
    (group / "memory.stat").write_text("total_inactive_file 0\n")
    assert memory_used(tmp_path / "none", tmp_path / "cgroup", tmp_path / "groups") == pytest.approx(0.95)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712")  # how version 1 says "no limit"
    assert memory_used(tmp_path / "none", tmp_path / "cgroup", tmp_path / "groups") is None


def test_without_swap_nothing_dozes_and_the_reason_is_told(tmp_path: Path) -> None:
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename Type Size Used Priority\n/swapfile file 100000 99000 -2\n")
    assert "no swap" in why_no_doze(swaps)
    assert "no swap" in why_no_doze(tmp_path / "none")


def test_the_kernel_takes_the_memory_of_another_process() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root pages out another's memory")
    code = "x = bytearray(b'1' * (8 << 20)); print('up', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert page_out(process.pid) > 8 << 20
        process.communicate("\n", timeout=10)
        assert process.returncode == 0  # it has all that it had
    finally:
        process.kill()
    assert page_out(process.pid) == 0
