"""How much is used of the memory that this node may use: of the machine, or of its own control group."""

import os
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")


def memory_used(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, cgroups: Path = CGROUPS) -> float | None:
    """Return the share that is used, 0 to 1, of whatever is shortest; None: nobody can tell."""
    shares = [share for share in (_of_machine(meminfo), *_of_groups(cgroup, cgroups)) if share is not None]
    return max(shares, default=None)


def _of_machine(meminfo: Path) -> float | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return 1 - available / total if total else None


def _of_groups(cgroup: Path, cgroups: Path) -> list[float | None]:
    """Return the share of each group from ours up to the top; those without a limit are left out."""
    try:
        rows = [line.split(":", 2) for line in cgroup.read_text().splitlines()]
    except OSError:
        return []
    found: list[float | None] = []
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers == "":
            top, files = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top, files = cgroups / "memory", names
        else:
            continue
        here = top / path.strip("/")
        while True:
            found.append(_of_group(here, *files))
            if here == top or not here.is_relative_to(top):
                break
            here = here.parent
    return found


def _of_group(directory: Path, limit_file: str, usage_file: str, cache: str) -> float | None:
    try:
        limit, usage = (int((directory / name).read_text()) for name in (limit_file, usage_file))
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit ("max"), or no such group
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not 0 < limit <= machine:
        return None
    return max(0, usage - int(stat.get(cache, 0))) / limit  # what is merely cached goes first by itself
