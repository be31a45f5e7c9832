"""What every process inside a sandbox starts with: its environment and its limits."""

from typing import Final

from sandboxes.spec import Limits

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MAX_FILES: Final = 65_536  # in /tmp; the kernel keeps about a kilobyte for each
MAX_OPEN_FILES: Final = 1024


def environment(home: str) -> dict[str, str]:
    """Return the basic variables; with the spec's own these are all that a process inside sees."""
    return {
        "PATH": f"{home}/.local/bin:{PATH}",
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONUSERBASE": f"{home}/.local",  # what is installed lies in the workspace, and so in its snapshot
        "NPM_CONFIG_PREFIX": f"{home}/.local",
    }


def scratch_limits(limits: Limits) -> tuple[int, int]:
    """Return how many bytes and how many files /tmp holds, and as many /dev/shm: both are memory, of which
    enough must be left to the processes even when they are full.
    """
    return min(limits.disk_bytes, limits.memory_bytes // 4), min(MAX_FILES, limits.memory_bytes // 16_384)


def rlimits(limits: Limits, *, memory_by_cgroup: bool, pids: bool) -> dict[str, int]:
    """Return the names and values of the resource limits of each process inside."""
    found = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": MAX_OPEN_FILES,
        "RLIMIT_FSIZE": limits.disk_bytes,
    }
    if pids:  # counted per user namespace: without one, all of the user's processes would count
        found["RLIMIT_NPROC"] = limits.pids
    if not memory_by_cgroup:
        found["RLIMIT_DATA"] = limits.memory_bytes
    return found
