"""Which processes descend from which, and how a whole tree of them is ended.

A job's warden is a child subreaper: whatever its processes do (double fork, setsid), they stay its descendants.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_DUMPABLE = 4  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(yes: bool) -> None:
    """Say whether processes of the same uid may trace this one or read its memory and descriptors."""
    _libc.prctl(PR_SET_DUMPABLE, 1 if yes else 0, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt every orphan among the descendants of this process."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def processes() -> dict[int, tuple[int, str, int]]:
    """Return pid -> (parent's pid, state letter, start time in ticks) of every process that /proc shows."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = read_stat(int(name))
            if entry is not None:
                found[int(name)] = entry
    return found


def read_stat(pid: int) -> tuple[int, str, int] | None:
    """Return (parent's pid, state letter, start time in ticks) of a process, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0].decode(), int(fields[19])


def descendants(root: int) -> list[int]:
    """Return the living processes below `root`, parents first; zombies are left out."""
    table = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        queue.extend(children.get(pid, ()))
        if table[pid][1] not in "ZX":
            found.append(pid)
    return found


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each process, ignoring those that are gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_descendants(root: int, *, spare: frozenset[int] = frozenset(), freeze: bool = False) -> int:
    """Send SIGKILL to everything below `root` and return how many processes that were.

    Args:
        root: pid whose descendants must go; itself it stays.
        spare: pids that stay, with what is below them.
        freeze: stop every process of this PID namespace while looking, so that nothing can fork away. Only for the
            first process of a namespace that is ours: anywhere else it would stop the machine.
    """
    freeze = freeze and os.getpid() == 1
    if freeze:
        signal_everyone(signal.SIGSTOP)
    try:
        doomed = set(descendants(root))
        for pid in spare:
            if pid in doomed:
                doomed.discard(pid)
            doomed.difference_update(descendants(pid))
        signal_all(sorted(doomed), signal.SIGKILL)
    finally:
        if freeze:
            signal_everyone(signal.SIGCONT)
    return len(doomed)


def signal_everyone(number: int) -> None:
    """Signal every process of the PID namespace of which the caller is the first process."""
    if os.getpid() != 1:
        raise RuntimeError("only the first process of a sandbox may signal everyone")
    try:
        os.kill(-1, number)
    except (ProcessLookupError, PermissionError):
        return
