"""Who the agent's processes are, where the kernel around them is gVisor's.

There the runner starts as root without capabilities to speak of, keeps real uid 0 and works as the agent's
uid: so it owns what it writes as the agent does, and nobody of that uid can signal, trace or talk to it. The
units become the agent wholly.

gVisor has no subreapers (prctl fails, an orphan's parent becomes process 1; measured with 20221219). So each
unit also gets a supplementary group of its own, which its processes cannot give up, and an orphan is known by
it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

FIRST_MARK = 1 << 30  # no account's gid; one for every unit that this sandbox will ever fork
Entry = tuple[int, str, int]

_agent_uid: int | None = None
_marks = itertools.count(FIRST_MARK)
_unit_of: dict[int, int] = {}


def separate(agent_uid: int) -> None:
    """Work as the agent's uid from now on, but stay out of its reach."""
    global _agent_uid
    _agent_uid = agent_uid
    os.setresuid(0, agent_uid, 0)


@contextlib.contextmanager
def as_root() -> Iterator[None]:
    """Be root for a moment, where we are separate: for what the agent cannot reach."""
    if _agent_uid is None:
        yield
        return
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(_agent_uid)


def next_mark() -> int | None:
    """Return the mark of the next unit, None where none is needed."""
    return None if _agent_uid is None else next(_marks)


def become_agent(mark: int) -> None:
    """Become the agent for ever, with the unit's mark."""
    if _agent_uid is not None:
        os.seteuid(0)
        os.setgroups([mark])
        os.setresuid(_agent_uid, _agent_uid, _agent_uid)


def register(mark: int | None, pid: int) -> None:
    """Remember which unit has a mark."""
    if mark is not None:
        _unit_of[mark] = pid


def forget(pid: int) -> None:
    """Forget a unit that was reaped: its orphans are strays from now on."""
    for mark in [mark for mark, unit in _unit_of.items() if unit == pid]:
        del _unit_of[mark]


def orphans_returned(table: dict[int, Entry]) -> dict[int, Entry]:
    """Return a process table in which the parent of an orphan is the unit that it comes from."""
    if not _unit_of:
        return table
    units = set(_unit_of.values())
    for pid, (parent, state, started) in table.items():
        if parent == 1 and pid not in units:
            unit = _unit_of.get(_mark_of(pid))
            if unit is not None:
                table[pid] = (unit, state, started)
    return table


def _mark_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            groups = file.read().partition(b"\nGroups:")[2].partition(b"\n")[0].split()
    except OSError:
        return -1
    return max(map(int, groups), default=-1)
