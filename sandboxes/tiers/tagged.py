"""Finding a sandbox's processes by the word in their command line, for when its record lacks the pid."""

import os

from sandboxes.tiers.pids import read_proc


def find_tagged(*tags: str) -> list[int]:
    """Return the pids of living processes that are marked with one of `tags` and were started by us.

    Only our own kind counts: a process of the host's PID namespace (the stage, bwrap) or the first process of
    a namespace (the runner). A process inside another sandbox may write any text into its command line.
    """
    marks = [tag.encode() for tag in tags]
    own_depth = _depth(read_proc(os.getpid(), "status"))
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            line = read_proc(int(name), "cmdline")
            if any(mark in line and _is_marked(line, mark) for mark in marks) and _is_ours(
                read_proc(int(name), "status"), own_depth
            ):
                found.append(int(name))
        except (OSError, ValueError):  # it has ended
            continue
    return found


def _is_marked(line: bytes, mark: bytes) -> bool:
    words = line.split(b"\0")
    return mark in words or any(b'"' + mark + b'"' in word for word in words)


def _is_ours(status: bytes, own_depth: int) -> bool:
    if b"\nState:\tZ" in status:
        return False
    numbers = _numbers(status)
    return len(numbers) <= own_depth or numbers[-1] == b"1"


def _depth(status: bytes) -> int:
    return len(_numbers(status))


def _numbers(status: bytes) -> list[bytes]:
    """Return a process's number in each PID namespace that it is in, from the outermost on."""
    return status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
