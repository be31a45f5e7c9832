"""Which processes descend from which, and how a whole tree of them is ended.

Units (see `jobs.py`) are child subreapers: whatever their processes do (double fork, setsid), they stay
descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator

from . import identity

PR_SET_DUMPABLE = 4  # linux/prctl.h
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 38, 22
SECCOMP_MODE_FILTER = 2  # linux/seccomp.h

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(yes: bool) -> None:
    """Say whether processes of the same uid may trace this one or read its memory and descriptors."""
    _libc.prctl(PR_SET_DUMPABLE, 1 if yes else 0, 0, 0, 0)


def set_name(name: bytes) -> None:
    """Set the name by which tools like `ps` and `pkill` know this process, at most 15 bytes."""
    _libc.prctl(PR_SET_NAME, name, 0, 0, 0)


class _Program(ctypes.Structure):
    """struct sock_fprog, linux/filter.h."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def filter_calls(program: bytes) -> None:
    """Refuse system calls from here on, in this process and all that it forks.

    Args:
        program: BPF, 8 bytes an instruction.
    """
    order = _Program(len(program) // 8, program)
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(order), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


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
    return identity.orphans_returned(found)


def _below(root: int) -> dict[int, tuple[int, str, int]]:
    """Return what `processes` would, of the descendants of `root` only: the whole machine's list would be
    long.
    """
    found: dict[int, tuple[int, str, int]] = {}
    queue = [root]
    while queue:
        parent = queue.pop()
        children = _children(parent)
        if children is None:
            return processes()
        for pid in children:
            entry = read_stat(pid)
            if entry is not None and pid not in found:
                found[pid] = entry
                queue.append(pid)
    return found


def _children(pid: int) -> list[int] | None:
    """Return the children of all threads of a process, None if this kernel does not tell."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        return None if not os.path.exists("/proc/thread-self/children") else found
    return found


def read_stat(pid: int) -> tuple[int, str, int] | None:
    """Return (parent's pid, state letter, start time in ticks) of a process, None if there is none."""
    try:
        fd = os.open(
            f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC
        )  # plain calls: this is on the way of a turn
        try:
            fields = os.read(fd, 4096).rpartition(b") ")[2].split()
        finally:
            os.close(fd)
    except OSError:
        return None
    return int(fields[1]), fields[0].decode(), int(fields[19])


def descendants(root: int, *, but: Collection[int] = ()) -> list[int]:
    """Return the living processes below `root`, parents first.

    Args:
        root: pid; it is not in the answer.
        but: pids that are left out with all that is below them.
    """
    table = processes() if os.getpid() == 1 else _below(root)
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        if pid in but:
            continue
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


@contextlib.contextmanager
def stopped(really: bool) -> Iterator[None]:
    """Stop every process of this PID namespace for a while, so that none can fork away from being killed.

    Only the first process of a namespace may do that; for any other (`really` or not) this does nothing.
    """
    if not really or os.getpid() != 1:
        yield
        return
    signal_everyone(signal.SIGSTOP)
    try:
        yield
    finally:
        signal_everyone(signal.SIGCONT)


def signal_everyone(number: int) -> None:
    """Signal every process of the PID namespace of which the caller is the first process."""
    if os.getpid() != 1:
        raise RuntimeError("only the first process of a sandbox may signal everyone")
    try:
        os.kill(-1, number)
    except (ProcessLookupError, PermissionError):
        return
