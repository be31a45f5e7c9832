"""The control group that limits one sandbox's memory, as far as paging it out needs it."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
MIN_RECLAIMED_BYTES: Final = 64 * 1024  # a round that gives less was the last
RECLAIM_DEADLINE_S: Final = 5.0  # 50 MiB take a fifth of a second
# kernel documentation: cgroup-v1/memory "force_empty", cgroup-v2 "memory.reclaim"
_USAGE: Final = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group that a tier, or the engine, made for one sandbox."""

    path: Path
    version: int

    @contextlib.contextmanager
    def swapping(self) -> Iterator[None]:
        """Let it swap meanwhile: version 2 keeps a sandbox from that, since it counts swap by itself.

        What is in swap afterwards stays there until it is used.
        """
        limit = self.path / "memory.swap.max"
        before = _read(limit) if self.version == 2 else ""
        if not before:
            yield
            return
        try:
            with contextlib.suppress(OSError):  # not ours to change: it swaps if it may
                limit.write_text(_read(self.path / "memory.max") or "max")
            yield
        finally:
            with contextlib.suppress(OSError):  # the sandbox has ended meanwhile, and its group with it
                limit.write_text(before)

    def reclaim(self) -> int:
        """Have the kernel take what it can; returns how many bytes that were.

        It gives up early (version 1 takes as little as 2 MiB at a time), so it is asked until nothing goes.
        """
        before = left = self._usage()
        deadline = time.monotonic() + RECLAIM_DEADLINE_S
        while left and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # EAGAIN, EBUSY: not all of it went
                if self.version == 2:
                    (self.path / "memory.reclaim").write_text(str(left))
                else:
                    (self.path / "memory.force_empty").write_text("0")
            if (now := self._usage()) > left - MIN_RECLAIMED_BYTES:
                break
            left = now
        return max(0, before - self._usage())

    def _usage(self) -> int:
        return int(_read(self.path / _USAGE[self.version]) or 0)


def memory_group_of(root: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> MemoryGroup | None:
    """Return the group that limits the memory of `root`; None: there is none, or we are in it ourselves.

    Args:
        root: a process of a sandbox.
        proc: where the kernel tells of processes.
        cgroups: where the hierarchies are mounted.
    """
    for row in _read(proc / str(root) / "cgroup").splitlines():
        _, _, rest = row.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            group = MemoryGroup(cgroups / path.strip("/"), 2)
        elif "memory" in controllers.split(","):
            group = MemoryGroup(cgroups / "memory" / path.strip("/"), 1)
        else:
            continue
        members = {int(word) for word in _read(group.path / "cgroup.procs").split()}
        if root in members and os.getpid() not in members and (group.path / _USAGE[group.version]).exists():
            return group
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
