"""Run by root as a program of its own, just before bwrap: shows the sandbox's uid what it may see, then
becomes that uid.

The interpreter, the image, the workspace and bwrap itself may lie in directories that only root can enter (a
venv under /root). So they are bound into a small private mount namespace under an open directory first. It
ends with the sandbox, and the host's own mounts never change. The uid is dropped before bwrap starts: started
by root, bwrap leaves /proc/sys writable.
"""

import ctypes
import json
import os
import sys
from typing import Any

CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 4096, 16384, 1 << 18, 2, 4  # linux/mount.h
STAGES = ("/mnt", "/media", "/srv", "/opt", "/var/tmp", "/tmp")


def command(order: "dict[str, Any]") -> "list[str]":
    """Return the command line that carries out an order (binds, copies: name -> path; stage; uid; argv)."""
    return [sys.executable, "-I", "-S", __file__, json.dumps(order)]


def main() -> None:
    """Stage, drop, execute."""
    order = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    _mount(libc, None, "/", None, MS_REC | MS_PRIVATE)
    os.umask(0o022)
    contents = {name: _read(path) for name, path in order["copies"].items()}
    fds = {
        name: os.open(path, os.O_PATH) for name, path in order["binds"].items()
    }  # before the stage hides any
    stage = order["stage"]
    _mount(libc, "skylease", stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    for name, fd in fds.items():
        target = os.path.join(stage, name)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
        _mount(libc, f"/proc/self/fd/{fd}", target, None, MS_BIND | MS_REC)
        os.close(fd)
    for name, content in contents.items():
        target = os.path.join(stage, name)
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o755), "wb") as file:
            file.write(content)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(order["uid"], order["uid"], order["uid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    os.execve(order["argv"][0], order["argv"], {})


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
