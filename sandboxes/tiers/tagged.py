"""Finding a sandbox's processes by the word in their command line, for when its record lacks the pid."""

import contextlib
import os
from pathlib import Path


def find_tagged(tag: str) -> list[int]:
    """Return the pids of living processes that are marked with `tag` and were started by us.

    Only our own kind counts: a process of the host's PID namespace (the stage, bwrap) or the first process of
    a namespace (the runner). A process inside another sandbox may write any text into its command line.
    """
    marked = tag.encode()
    own_depth = _depth(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            is_marked = marked in words or any(b'"' + marked + b'"' in word for word in words)
            if is_marked and _is_ours(int(name), own_depth):
                found.append(int(name))
    return found


def _is_ours(pid: int, own_depth: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    if "\nState:\tZ" in status:
        return False
    numbers = status.partition("\nNSpid:")[2].partition("\n")[0].split()
    return len(numbers) <= own_depth or numbers[-1] == "1"


def _depth(pid: int) -> int:
    return len(Path(f"/proc/{pid}/status").read_text().partition("\nNSpid:")[2].partition("\n")[0].split())
