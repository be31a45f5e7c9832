"""Paging out what is frozen: its memory goes to swap, and comes back page by page as it is used.

process_madvise(2) with MADV_PAGEOUT, Linux 5.10; it needs swap (zram is enough: 80-99 % of an idle
Python goes into a fifth of the room), and the right to do that to another user's process.
"""

import ctypes
import errno
import logging
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from sandboxes.pool.memory_group import memory_group_of
from sandboxes.runner.tree import descendants

log = logging.getLogger(__name__)

SYS_PROCESS_MADVISE: Final = 440  # on every architecture
MADV_PAGEOUT: Final = 21
AT_ONCE: Final = 64  # ranges in a call
MIN_FREE_SWAP_KIB: Final = 64 * 1024
_RANGE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)")
_GVISOR_MEMORY: Final = "/memfd:runsc-memory"
_KERNELS: Final = frozenset({"[vdso]", "[vvar]", "[vsyscall]", "[vvar_vclock]"})


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def why_no_doze(swaps: Path = Path("/proc/swaps")) -> str:
    """Return why frozen memory cannot be paged out here; empty: it can."""
    try:
        rows = [line.split() for line in swaps.read_text().splitlines()[1:]]
        free_kib = sum(int(row[2]) - int(row[3]) for row in rows)
    except (OSError, ValueError, IndexError):
        free_kib = 0
    if free_kib < MIN_FREE_SWAP_KIB:
        return f"there is no swap to page out to ({free_kib // 1024} MiB free; zram is enough)"
    error = _advise_nothing()
    return f"process_madvise does not work here ({os.strerror(error)})" if error else ""


def page_out(root: int) -> int:
    """Page out a process and all below it; returns the bytes that the kernel was asked for and took.

    Two processes map each page of a gVisor sandbox, which is one more than MADV_PAGEOUT takes; its group can
    be asked for them. For other sandboxes that is the worse way: what is shared with neighbours would go too.
    """
    group = memory_group_of(root)
    with group.swapping() if group is not None else nullcontext():
        taken = sum(_page_out(pid) for pid in (root, *descendants(root)))
        if group is not None and _is_gvisor(root):
            taken += group.reclaim()
    return taken


def _is_gvisor(pid: int) -> bool:
    try:
        return _GVISOR_MEMORY in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _page_out(pid: int) -> int:
    try:
        ranges = _ranges(pid)
        fd = os.pidfd_open(pid)
    except OSError:  # it has ended
        return 0
    try:
        taken = 0
        for begin in range(0, len(ranges), AT_ONCE):
            taken += max(0, _madvise(fd, ranges[begin : begin + AT_ONCE]))
        return taken
    finally:
        os.close(fd)


def _ranges(pid: int) -> list[tuple[int, int]]:
    """Return the private mappings of a process, as (begin, bytes)."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        matched = _RANGE.match(line)
        if matched is not None and matched[3].endswith("p") and matched[4] not in _KERNELS:
            begin, end = int(matched[1], 16), int(matched[2], 16)
            found.append((begin, end - begin))
    return found


def _madvise(pidfd: int, ranges: list[tuple[int, int]]) -> int:
    vector = (_Iovec * len(ranges))(*(_Iovec(*each) for each in ranges))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    count = ctypes.c_size_t(len(ranges))
    call = ctypes.c_long(SYS_PROCESS_MADVISE)
    done = int(libc.syscall(call, pidfd, vector, count, MADV_PAGEOUT, ctypes.c_uint(0)))
    if done < 0:
        log.debug("not paged out", extra={"error": os.strerror(ctypes.get_errno())})
    return done


def _advise_nothing() -> int:
    """Return the error number of paging out nothing of ourselves; 0: it works."""
    fd = os.pidfd_open(os.getpid())
    try:
        return 0 if _madvise(fd, []) >= 0 else (ctypes.get_errno() or errno.ENOSYS)
    finally:
        os.close(fd)
