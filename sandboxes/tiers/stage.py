"""Run by root as a program of its own, just before bwrap or runsc: shows them what they may see, then becomes
the sandbox's uid.

The interpreter, the image, the workspace and bwrap itself may lie in directories that only root can enter (a
venv under /root). So they are bound into a small private mount namespace under an open directory first. It
ends with the sandbox, and the host's own mounts never change. The uid is dropped before bwrap starts: started
by root, bwrap leaves /proc/sys writable.
"""

import ctypes
import errno
import fcntl
import json
import os
import struct
import sys
from typing import Any

CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 4096, 16384, 1 << 19, 2, 4  # linux/mount.h
MS_RDONLY, MS_REMOUNT = 1, 32
LOOP_CONFIGURE, LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82  # linux/loop.h
LOOP_CONFIG_BYTES, LOOP_FLAGS_OFFSET, LO_FLAGS_AUTOCLEAR = 304, 60, 4
LOOP_ATTEMPTS = 100  # somebody else may take the free device first
DISK_OPTIONS = "nobarrier,discard,noinit_itable"  # it need not survive a power cut, but must give room back
STAGES = ("/mnt", "/media", "/srv", "/opt", "/var/tmp", "/tmp")


def command(order: "dict[str, Any]") -> "list[str]":
    """Return the command line that carries out an order.

    Keys: binds and copies (name -> path), stage, uid (None: stay root), argv; and where there are any: trees
    (name -> directory to copy), disks (name -> ext4 image, which the uid will own, or another `owner`),
    scratch (name -> options of a tmpfs), read_only (names of binds), groups (cgroup.procs files to join).
    """
    return [sys.executable, "-I", "-S", __file__, json.dumps(order)]


def main() -> None:
    """Stage, drop, execute."""
    order = json.loads(sys.argv[1])
    for group in order.get("groups", ()):
        with open(group, "w", encoding="utf-8") as file:
            file.write("0")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    # nothing of ours goes out; what the host unmounts goes here, too, or we would keep its disks busy
    _mount(libc, None, "/", None, MS_REC | MS_SLAVE)
    os.umask(0o022)
    contents = {name: _read(path) for name, path in order["copies"].items()}
    fds = {
        name: os.open(path, os.O_PATH) for name, path in order["binds"].items()
    }  # before the stage hides any
    disks = {name: os.open(path, os.O_RDWR | os.O_CLOEXEC) for name, path in order.get("disks", {}).items()}
    stage = order["stage"]
    trees = order.get("trees", {})
    flags = (
        0 if trees else MS_NOSUID | MS_NODEV
    )  # runsc remounts its root without these, which would be refused
    _mount(libc, "skylease", stage, "tmpfs", flags, "mode=755,size=16m")
    for name, source in trees.items():
        _copy_tree(source, os.path.join(stage, name))
    for name, fd in fds.items():
        target = os.path.join(stage, name)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(target, 0o755, exist_ok=True)
        elif not os.path.exists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
        _mount(libc, f"/proc/self/fd/{fd}", target, None, MS_BIND | MS_REC)
        if name in order.get("read_only", ()):
            _mount(libc, None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
        os.close(fd)
    for name, options in order.get("scratch", {}).items():
        target = os.path.join(stage, name)
        os.mkdir(target)
        _mount(libc, "skylease", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,{options}")
    for name, fd in disks.items():
        mount_disk(libc, fd, os.path.join(stage, name), order.get("owner", order["uid"]))
        os.close(fd)
    for name, content in contents.items():
        target = os.path.join(stage, name)
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o755), "wb") as file:
            file.write(content)
    os.chdir("/")
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    os.execve(order["argv"][0], order["argv"], {})


def _copy_tree(source: str, target: str) -> None:
    os.mkdir(target, 0o755)
    for entry in os.scandir(source):
        path = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir():
            _copy_tree(entry.path, path)
        else:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
                file.write(_read(entry.path))


def mount_disk(libc: ctypes.CDLL, image: int, target: str, owner: int) -> None:
    """Make a directory and mount an ext4 image there; the device goes with the last mount of it."""
    os.mkdir(target, 0o755)
    device, path = attach_loop(image)
    try:
        _mount(libc, path, target, "ext4", MS_NOSUID | MS_NODEV, DISK_OPTIONS)
    finally:
        os.close(device)
    lost = os.path.join(target, "lost+found")
    if os.path.isdir(lost):
        os.rmdir(lost)
    os.chown(target, owner, owner)
    os.chmod(target, 0o700)


def attach_loop(image: int) -> "tuple[int, str]":
    """Return a loop device (descriptor and path) that stands for an open file."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(LOOP_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            config = bytearray(LOOP_CONFIG_BYTES)
            struct.pack_into("I", config, 0, image)
            struct.pack_into("I", config, LOOP_FLAGS_OFFSET, LO_FLAGS_AUTOCLEAR)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, bytes(config))
                return device, path
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
        raise OSError(errno.EBUSY, "no free loop device")
    finally:
        os.close(control)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _mount(
    libc: ctypes.CDLL,
    source: str | None,
    target: str,
    kind: str | None,
    flags: int,
    options: str | None = None,
) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
