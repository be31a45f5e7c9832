"""Control groups, over directories that stand for the kernel's."""

import os
from pathlib import Path

import pytest

from sandboxes import Limits
from sandboxes.tiers.cgroup import OVERHEAD_PIDS, Cgroups, Hierarchy, find_hierarchies

LIMITS = Limits(memory_bytes=100 << 20, pids=50, cpu=0.5)


def mount_line(path: Path, kind: str, options: str = "rw") -> str:
    return f"30 20 0:25 / {path} rw,nosuid - {kind} {kind} {options}"


def version_1(tmp_path: Path) -> str:
    names = ("memory", "pids", "cpu", "freezer", "blkio")
    for name in names:
        (tmp_path / name).mkdir()
    return "\n".join(mount_line(tmp_path / name, "cgroup", f"rw,{name}") for name in names)


def version_2(tmp_path: Path, controllers: str, enabled: str | None = None) -> str:
    for group in (tmp_path, tmp_path / "user.slice", tmp_path / "user.slice" / "app.slice"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text(controllers)
        (group / "cgroup.subtree_control").write_text(controllers if enabled is None else enabled)
        (group / "cgroup.procs").write_text("")
    return mount_line(tmp_path, "cgroup2")


def test_version_1_needs_root(tmp_path: Path) -> None:
    mountinfo = version_1(tmp_path)
    found, reason = find_hierarchies(mountinfo, "", is_root=True)
    assert sorted(name for entry in found for name in entry.controllers) == [
        "cpu",
        "freezer",
        "memory",
        "pids",
    ]
    assert reason == ""
    found, reason = find_hierarchies(mountinfo, "", is_root=False)
    assert found == ()
    assert reason == "no writable cgroup for cpu, memory, pids"


def test_no_hierarchy_is_said() -> None:
    assert find_hierarchies("", "", is_root=True) == ((), "no cgroup hierarchy is mounted")


def test_version_2_as_root(tmp_path: Path) -> None:
    found, reason = find_hierarchies(version_2(tmp_path, "cpu io memory pids"), "0::/", is_root=True)
    assert found == (Hierarchy(version=2, path=tmp_path, controllers=("memory", "pids", "cpu")),)
    assert reason == ""


def test_version_2_as_a_user_takes_the_nearest_delegated_group(tmp_path: Path) -> None:
    mountinfo = version_2(tmp_path, "cpu memory pids")
    found, reason = find_hierarchies(mountinfo, "0::/user.slice/app.slice/term.scope", is_root=False)
    nearest = tmp_path / "user.slice" / "app.slice"
    assert found == (Hierarchy(version=2, path=nearest, controllers=("memory", "pids", "cpu")),)
    assert reason == ""


def test_version_2_without_a_controller_says_which(tmp_path: Path) -> None:
    mountinfo = version_2(tmp_path, "memory pids")
    found, reason = find_hierarchies(mountinfo, "0::/user.slice/app.slice/term.scope", is_root=False)
    assert found[0].controllers == ("memory", "pids")
    assert reason == "no writable cgroup for cpu"


def test_the_top_is_nobodys_delegation(tmp_path: Path) -> None:
    found, reason = find_hierarchies(version_2(tmp_path, "memory pids cpu"), "0::/own", is_root=False)
    assert found == ()
    assert "cpu, memory, pids" in reason


def test_hybrid_hosts_use_version_1(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    mountinfo = version_1(tmp_path) + "\n" + mount_line(tmp_path / "unified", "cgroup2")
    found, _ = find_hierarchies(mountinfo, "0::/", is_root=True)
    assert {entry.version for entry in found} == {1}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            1,
            {
                "memory.limit_in_bytes": "104857600",
                "pids.max": str(50 + OVERHEAD_PIDS),
                "cpu.cfs_quota_us": "50000",
            },
        ),
        (
            2,
            {
                "memory.max": "104857600",
                "memory.swap.max": "0",
                "pids.max": str(50 + OVERHEAD_PIDS),
                "cpu.max": "50000 100000",
            },
        ),
    ],
)
def test_limits_are_written(tmp_path: Path, version: int, expected: dict[str, str]) -> None:
    hierarchy = Hierarchy(version=version, path=tmp_path, controllers=("memory", "pids", "cpu"))
    group = tmp_path / "skylease-x" / "one"
    group.mkdir(parents=True)
    (group.parent / "cgroup.subtree_control").touch()
    for name in (*expected, "cpu.cfs_period_us", "cgroup.procs"):
        (group / name).touch()
    groups = Cgroups((hierarchy,), "skylease-x")
    groups.create("one", LIMITS)
    groups.add("one", 4242)
    assert {name: (group / name).read_text() for name in expected} == expected
    assert groups.processes("one") == [4242]
    assert groups.names() == ["one"]
    assert groups.leftovers("one") == [str(group)]


def test_removing_what_is_not_there_is_done(tmp_path: Path) -> None:
    groups = Cgroups((Hierarchy(version=1, path=tmp_path, controllers=("memory",)),), "skylease-x")
    groups.remove("one")
    (tmp_path / "skylease-x" / "one").mkdir(parents=True)
    groups.remove("one")
    assert os.listdir(tmp_path) == []


def group_of(hierarchy: Hierarchy) -> Path:
    group = hierarchy.path / "parent" / "one"
    group.mkdir(parents=True)
    return group


def test_version_2_freezes_by_its_own_files(tmp_path: Path) -> None:
    hierarchy = Hierarchy(version=2, path=tmp_path, controllers=("memory",))
    group = group_of(hierarchy)
    cgroups = Cgroups((hierarchy,), "parent")
    assert cgroups.freezer("one") is None
    (group / "cgroup.freeze").write_text("0")
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    freezer = cgroups.freezer("one")
    assert freezer is not None
    assert freezer.freeze()
    assert (group / "cgroup.freeze").read_text() == "1"
    assert (freezer.path, freezer.thawed) == (group / "cgroup.freeze", "0")
    cgroups.thaw("one")
    assert (group / "cgroup.freeze").read_text() == "0"


def test_what_does_not_freeze_in_time_runs_on(tmp_path: Path) -> None:
    hierarchy = Hierarchy(version=2, path=tmp_path, controllers=("memory",))
    group = group_of(hierarchy)
    (group / "cgroup.freeze").write_text("0")
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    freezer = Cgroups((hierarchy,), "parent").freezer("one")
    assert freezer is not None
    assert not freezer.freeze(deadline_s=0.01)
    assert (group / "cgroup.freeze").read_text() == "0"


def test_version_1_freezes_by_the_freezers_hierarchy(tmp_path: Path) -> None:
    memory = Hierarchy(version=1, path=tmp_path / "memory", controllers=("memory",))
    freezer_at = Hierarchy(version=1, path=tmp_path / "freezer", controllers=("freezer",))
    group_of(memory)
    group = group_of(freezer_at)
    (group / "freezer.state").write_text("THAWED")
    freezer = Cgroups((memory, freezer_at), "parent").freezer("one")
    assert freezer is not None
    assert freezer.freeze()  # a plain file says what was written to it, as the kernel's does
    freezer.thaw()
    assert (group / "freezer.state").read_text().startswith("THAWED")
