"""Showing directories of this host in a mount namespace that exists already: what comes with the claim of a
warm slot (/data, the way out, mounts).

A mount is cloned here, detached (open_tree). A thread of its own enters the sandbox's namespace, attaches the
clone there (move_mount), and ends. The namespace of everybody else in this process stays what it is, nothing
is ever mounted on the host, and the mount goes with the sandbox.
"""

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Final

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000  # linux/sched.h
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_OPEN_TREE_CLONE: Final = 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_F_EMPTY_PATH: Final = 0x4  # MOVE_MOUNT_F_EMPTY_PATH
_RDONLY, _NOSUID, _NODEV = 1, 2, 4  # MOUNT_ATTR_*, linux/mount.h
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 16384, 1 << 18, 1 << 19
_DEADLINE_S: Final = 10.0  # it takes a tenth of a millisecond
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlay:
    """A directory or file of the host, and where it appears inside."""

    source: str
    target: str
    read_only: bool


class _Attributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def inlay(
    pid: int, inlays: Sequence[Inlay], *, is_alive: Callable[[], bool], bars_devices: bool = True
) -> None:
    """Show things in the mount namespace of a process.

    Args:
        pid: in our numbering.
        inlays: what to show, in this order.
        is_alive: says whether the pid is still that of the process that is meant.
        bars_devices: device files and set-uid programs in them do not work (nodev, nosuid).

    Raises:
        OSError: not all of them could be shown.
    """
    if not inlays:
        return
    fds: list[int] = []  # the thread's: a mount that hangs must not find other files under these numbers

    def show() -> None:
        try:
            _show(pid, inlays, fds, is_alive, _NOSUID | _NODEV if bars_devices else 0)
        finally:
            for fd in fds:
                os.close(fd)

    _in_a_thread(show)


def _show(
    pid: int, inlays: Sequence[Inlay], fds: list[int], is_alive: Callable[[], bool], flags: int
) -> None:
    for path in (f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt"):
        fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    namespace, ours = fds
    if not is_alive() or os.path.sameopenfile(namespace, ours):
        raise OSError(errno.ESRCH, f"process {pid} has no namespace of its own (any more)")
    trees = []
    for entry in inlays:
        tree = _clone(entry.source, _AT_RECURSIVE)
        fds.append(tree)
        read_only = _RDONLY if entry.read_only else 0
        _set(tree, _Attributes(flags | read_only, 0, _MS_SLAVE, 0), _AT_RECURSIVE)
        trees.append((tree, PurePosixPath(entry.target), stat.S_ISDIR(os.fstat(tree).st_mode)))
    _call("unshare", _libc.unshare(_CLONE_FS))  # a namespace is entered with a root of one's own
    _call("setns", _libc.setns(namespace, _CLONE_NEWNS))
    shown: list[PurePosixPath] = []
    for tree, target, is_directory in trees:
        if not any(target.is_relative_to(earlier) for earlier in shown):  # that would be on the host
            _make_room(target, is_directory=is_directory)
        _attach(tree, str(target))
        shown.append(target)


@cache
def why_no_inlay() -> str:
    """Return why nothing can be shown in namespaces that exist on this host; empty: it can. Found by trying,
    once, in a namespace that ends with the attempt.
    """
    if os.geteuid() != 0:
        return "only root can mount a directory into a namespace that exists"

    def attempt() -> None:
        _call("unshare", _libc.unshare(_CLONE_NEWNS))
        private = ctypes.c_ulong(_MS_REC | _MS_PRIVATE)
        _call("mount", _libc.mount(None, b"/", None, private, None))
        tree = _clone("/proc", 0)
        try:
            _set(tree, _Attributes(_NOSUID, 0, _MS_SLAVE, 0), 0)
            _attach(tree, "/proc")
            namespace = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _call("setns", _libc.setns(namespace, _CLONE_NEWNS))
            finally:
                os.close(namespace)
        finally:
            os.close(tree)

    try:
        _in_a_thread(attempt)
    except OSError as error:
        return f"mounting into a namespace that exists takes Linux 5.12 and CAP_SYS_ADMIN ({error})"
    return ""


def _own(fds: list[int]) -> int:
    fds.append(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
    return fds[-1]


def _make_room(parent: PurePosixPath, *, is_directory: bool) -> None:
    """Make the mount point, also where all that is mounted is read-only: through a clone that is not."""
    missing = []
    while not os.path.exists(parent):
        missing.append(parent.name)
        parent = parent.parent
    if not missing:
        return
    fd = _clone(str(parent), 0)
    owner = os.fstat(fd).st_uid  # the only user whom a file system in a user namespace knows for sure
    try:
        _set(fd, _Attributes(0, _RDONLY, 0, 0), 0)
        _libc.setfsgid(owner)
        _libc.setfsuid(owner)  # of this thread alone
        while missing:
            name = missing.pop()
            if missing or is_directory:
                os.mkdir(name, 0o755, dir_fd=fd)
                os.chmod(name, 0o755, dir_fd=fd)  # whatever the umask
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
                fd, outer = inner, fd
                os.close(outer)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd))
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
        os.close(fd)


def _clone(path: str, flags: int) -> int:
    """Return a detached clone of what is mounted at a path."""
    words = ctypes.c_char_p(os.fsencode(path)), ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | flags)
    return _call(f"open_tree {path}", _libc.syscall(_OPEN_TREE, _AT_FDCWD, *words))


def _set(tree: int, attributes: _Attributes, flags: int) -> None:
    words = ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("mount_setattr", _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | flags, *words))


def _attach(tree: int, target: str) -> None:
    words = _AT_FDCWD, ctypes.c_char_p(os.fsencode(target)), _F_EMPTY_PATH
    _call(f"move_mount {target}", _libc.syscall(_MOVE_MOUNT, tree, b"", *words))


def _call(what: str, answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


def _in_a_thread(work: Callable[[], None]) -> None:
    """Do in a thread of its own, and end it, what changes the namespace of whoever does it."""
    failed: list[OSError] = []
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        except OSError as error:
            failed.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="inlay", daemon=True).start()
    if not ended.wait(_DEADLINE_S):
        raise OSError(errno.ETIMEDOUT, f"a mount did not end within {_DEADLINE_S:g} s")
    if failed:
        raise failed[0]
