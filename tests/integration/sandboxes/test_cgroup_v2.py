"""The groups of version 2 on a real kernel, also where the host itself uses version 1.

The controllers stay in the hierarchies that the host has given them to; freezing belongs to every group.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.runner.tree import descendants
from sandboxes.spec import Limits
from sandboxes.tiers.cgroup import Cgroups, Hierarchy

pytestmark = pytest.mark.optional  # mounting is for root, and there are kernels without version 2

FORKS = """
import os, sys, time
sys.stdin.readline()
if os.fork() == 0:
    os.fork()
while True:
    time.sleep(0.001)
"""


@pytest.fixture
def cgroups(tmp_path: Path) -> Iterator[Cgroups]:
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no version 2 here: {mounted.stderr.strip()}")
    try:
        parent = f"skylease-test-{os.getpid()}"
        yield Cgroups((Hierarchy(version=2, path=tmp_path, controllers=()),), parent)
        assert not (tmp_path / parent).exists()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture
def tree(cgroups: Cgroups) -> Iterator[list[int]]:
    """Three processes, two of them forked in the group `one`."""
    cgroups.create("one", Limits())
    process = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE)
    try:
        cgroups.add("one", process.pid)
        assert process.stdin is not None
        process.stdin.close()
        deadline = time.monotonic() + 20
        while len(pids := [process.pid, *descendants(process.pid)]) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield pids
    finally:
        cgroups.thaw("one")
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, 9)
        process.wait(10)
        cgroups.remove("one")


def switches(pids: list[int]) -> list[int]:
    """How often each has given up the processor: they do nothing else."""
    rows = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids]
    return [int(line.split()[1]) for lines in rows for line in lines if line.startswith("voluntary_ctxt")]


def test_what_is_in_the_group_stops_and_goes_on(cgroups: Cgroups, tree: list[int]) -> None:
    assert sorted(cgroups.processes("one")) == sorted(tree)
    freezer = cgroups.freezer("one")
    assert freezer is not None
    assert freezer.freeze()
    frozen = switches(tree)
    time.sleep(0.1)  # a hundred rounds
    assert switches(tree) == frozen
    freezer.thaw()
    deadline = time.monotonic() + 20
    while any(now <= then for now, then in zip(switches(tree), frozen, strict=True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_frozen_group_ends_when_it_is_killed(cgroups: Cgroups, tree: list[int]) -> None:
    freezer = cgroups.freezer("one")
    assert freezer is not None
    assert freezer.freeze()
    for pid in tree:
        os.kill(pid, 9)
    deadline = time.monotonic() + 20
    while cgroups.processes("one"):  # version 2 lets the killed die frozen
        assert time.monotonic() < deadline
        time.sleep(0.01)
