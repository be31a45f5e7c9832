"""Control groups of the tiers: memory, pids and cpu limits, version 1 and 2, where we may write them.

The groups of one tier root live under one parent, `skylease-XXXXXXXX/NAME`; the parent goes with the last of
them.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.spec import Limits

CONTROLLERS: Final = ("memory", "pids", "cpu")
V1_EXTRA: Final = ("freezer",)
CPU_PERIOD_US: Final = 100_000
OVERHEAD_PIDS: Final = 8  # the runner, a spare warden and its main process
FREEZE_DEADLINE_S: Final = 2.0  # it takes a tenth of a millisecond, unless a process is stuck in the kernel
EMPTY_DEADLINE_S: Final = 5.0  # a killed group empties within milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A mounted hierarchy in which we may make groups."""

    version: int
    path: Path  # where our parent group goes
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Freezer:
    """The files of a group by which all its processes are stopped and let go."""

    group: Path
    file: str
    frozen: str
    thawed: str
    state_file: str
    state: str  # a line of `state_file` once all have stopped

    @property
    def path(self) -> Path:
        """The file to write."""
        return self.group / self.file

    def freeze(self, deadline_s: float = FREEZE_DEADLINE_S) -> bool:
        """Stop everything; False if not all have stopped in time, and then all run on.

        Raises:
            OSError: the group is gone or not ours.
        """
        _write(self.path, self.frozen)
        deadline = time.monotonic() + deadline_s
        while self.state not in (self.group / self.state_file).read_text().splitlines():
            if time.monotonic() > deadline:
                self.thaw()
                return False
            time.sleep(0.0005)
            _write(self.path, self.frozen)  # version 1 tries again only when told again
        return True

    def thaw(self) -> None:
        """Let everything run.

        Raises:
            OSError: the group is gone or not ours.
        """
        _write(self.path, self.thawed)


# kernel documentation: cgroup-v1/freezer-subsystem, cgroup-v2 "cgroup.freeze" and "cgroup.events"
_FREEZERS: Final = {
    1: ("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
    2: ("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
}


class Cgroups:
    """Makes, fills and removes the groups of one tier root."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...], parent: str) -> None:
        self._hierarchies, self._parent = hierarchies, parent

    @property
    def controllers(self) -> frozenset[str]:
        """The limits that are enforced."""
        return frozenset(name for hierarchy in self._hierarchies for name in hierarchy.controllers)

    def create(self, name: str, limits: Limits) -> None:
        """Make the groups of a sandbox with its limits.

        Raises:
            OSError: a limit could not be set.
        """
        for hierarchy in self._hierarchies:
            group = self._group(hierarchy, name)
            group.mkdir(parents=True, exist_ok=True)
            if hierarchy.version == 2:
                enable = " ".join(f"+{controller}" for controller in hierarchy.controllers)
                _write(group.parent / "cgroup.subtree_control", enable)
            for file, value in _settings(hierarchy, limits):
                if (group / file).exists():
                    _write(group / file, value)

    def add(self, name: str, pid: int) -> None:
        """Move a process into the groups of a sandbox; what it forks from now on follows."""
        for hierarchy in self._hierarchies:
            _write(self._group(hierarchy, name) / "cgroup.procs", str(pid))

    def files(self, name: str) -> tuple[str, ...]:
        """Return the files of a sandbox's groups to which a process writes 0 to join."""
        groups = (self._group(hierarchy, name) for hierarchy in self._hierarchies)
        return tuple(str(group / "cgroup.procs") for group in groups)

    def processes(self, name: str) -> list[int]:
        """Return the pids in the groups of a sandbox."""
        found: set[int] = set()
        for hierarchy in self._hierarchies:
            with contextlib.suppress(OSError):
                text = (self._group(hierarchy, name) / "cgroup.procs").read_text()
                found.update(int(line) for line in text.split() if line != "0")
        return sorted(found)

    def freezer(self, name: str) -> Freezer | None:
        """Return what freezes all of a sandbox at once, None if no writable hierarchy can."""
        for hierarchy in self._hierarchies:
            group = self._group(hierarchy, name)
            found = _FREEZERS[hierarchy.version]
            if (group / found[0]).exists():
                return Freezer(group, *found)
        return None

    def thaw(self, name: str) -> None:
        """Let frozen processes run, so that they can die."""
        freezer = self.freezer(name)
        if freezer is not None:
            with contextlib.suppress(OSError):
                freezer.thaw()

    def remove(self, name: str) -> None:
        """Remove the groups of a sandbox, and the parent if it was the last.

        Raises:
            OSError: a group is not empty.
        """
        deadline = time.monotonic() + EMPTY_DEADLINE_S
        for hierarchy in self._hierarchies:
            group = self._group(hierarchy, name)
            while group.exists():
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.002)
            with contextlib.suppress(OSError):
                group.parent.rmdir()

    def leftovers(self, name: str) -> list[str]:
        """Return the groups of a sandbox that exist."""
        groups = [self._group(hierarchy, name) for hierarchy in self._hierarchies]
        return [str(group) for group in groups if group.exists()]

    def names(self) -> list[str]:
        """Return the names of all sandboxes that have a group."""
        found: set[str] = set()
        for hierarchy in self._hierarchies:
            with contextlib.suppress(OSError):
                found.update(
                    entry.name for entry in os.scandir(hierarchy.path / self._parent) if entry.is_dir()
                )
        return sorted(found)

    def _group(self, hierarchy: Hierarchy, name: str) -> Path:
        return hierarchy.path / self._parent / name


def freezer_of(pid: int) -> Freezer | None:
    """Return what freezes the group in which a process is, made by somebody else; None if we may not."""
    try:
        own = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, fields = right.split(" ", 1)[0], left.split()
        version = 1 if kind == "cgroup" and "freezer" in right.rsplit(" ", 1)[1].split(",") else 2
        if (version == 2 and kind != "cgroup2") or fields[3] != "/":
            continue
        for entry in own.splitlines():
            _, controllers, group = entry.split(":", 2)
            is_ours = "freezer" in controllers.split(",") if version == 1 else not controllers
            path = Path(fields[4] + group)
            if is_ours and group != "/" and os.access(path / _FREEZERS[version][0], os.W_OK):
                return Freezer(path, *_FREEZERS[version])
    return None


def our_cgroups(tag_prefix: str) -> tuple[Cgroups, str]:
    """Return the groups that a tier's root may make on this host, and why there are none or not all."""
    hierarchies, reason = find_hierarchies(
        Path("/proc/self/mountinfo").read_text(),
        Path("/proc/self/cgroup").read_text(),
        is_root=os.geteuid() == 0,
    )
    return Cgroups(hierarchies, f"skylease-{tag_prefix}"), reason


def find_hierarchies(mountinfo: str, own_groups: str, *, is_root: bool) -> tuple[tuple[Hierarchy, ...], str]:
    """Return the hierarchies in which we may make groups, and why there are none or not all.

    Args:
        mountinfo: contents of /proc/self/mountinfo.
        own_groups: contents of /proc/self/cgroup.
        is_root: whether we may expect to write at the top.
    """
    version_1: dict[str, Path] = {}
    unified: Path | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, fields = right.split(" ", 1)[0], left.split()
        if kind == "cgroup":
            for name in right.rsplit(" ", 1)[1].split(","):
                if name in CONTROLLERS + V1_EXTRA:
                    version_1[name] = Path(fields[4])
        elif kind == "cgroup2":
            unified = Path(fields[4])
    found = [
        Hierarchy(version=1, path=path, controllers=(name,))
        for name, path in version_1.items()
        if is_root and os.access(path, os.W_OK)
    ]
    if not version_1 and unified is not None:
        base = unified if is_root else _delegated(unified, own_groups)
        usable = _usable_controllers(base) if base is not None else ()
        if base is not None and usable:
            found.append(Hierarchy(version=2, path=base, controllers=usable))
    missing = sorted(set(CONTROLLERS) - {name for entry in found for name in entry.controllers})
    if not missing:
        return tuple(found), ""
    if not version_1 and unified is None:
        return tuple(found), "no cgroup hierarchy is mounted"
    return tuple(found), f"no writable cgroup for {', '.join(missing)}"


def _delegated(unified: Path, own_groups: str) -> Path | None:
    """Return the nearest group above our own that was delegated to us."""
    own = next((line[3:] for line in own_groups.splitlines() if line.startswith("0::")), None)
    if own is None:
        return None
    group = unified / own.lstrip("/")
    for candidate in group.parents:  # not our own: a group with processes cannot have limited children
        if candidate == unified or not candidate.is_relative_to(unified):
            return None
        if os.access(candidate, os.W_OK) and os.access(candidate / "cgroup.procs", os.W_OK):
            return candidate
    return None


def _usable_controllers(base: Path) -> tuple[str, ...]:
    """Return which of our controllers children of `base` can have; enables them if need be."""
    try:
        available = (base / "cgroup.controllers").read_text().split()
        wanted = [name for name in CONTROLLERS if name in available]
        enabled = (base / "cgroup.subtree_control").read_text().split()
        for name in wanted:
            if name not in enabled:
                with contextlib.suppress(OSError):
                    _write(base / "cgroup.subtree_control", f"+{name}")
        enabled = (base / "cgroup.subtree_control").read_text().split()
    except OSError:
        return ()
    return tuple(name for name in wanted if name in enabled)


def _settings(hierarchy: Hierarchy, limits: Limits) -> list[tuple[str, str]]:
    memory, pids = str(limits.memory_bytes), str(limits.pids + OVERHEAD_PIDS)
    quota = str(max(1000, int(limits.cpu * CPU_PERIOD_US)))
    if hierarchy.version == 2:
        table = {
            "memory": [("memory.max", memory), ("memory.swap.max", "0"), ("memory.oom.group", "0")],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.max", f"{quota} {CPU_PERIOD_US}")],
        }
    else:
        table = {
            "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)],
        }
    return [setting for name in hierarchy.controllers for setting in table.get(name, [])]


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
