"""A disk of its own for each workspace, so that its size and its number of files are hard limits.

The disk is a sparse file that holds an ext4. It is mounted by `stage` in the private mount namespace of the
sandbox alone: nothing is ever mounted on the host, and however the sandbox ends, the kernel takes the mount
and its loop device back. Making one costs a copy of the few blocks that an empty file system has.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final

from sandboxes.spec import Limits
from sandboxes.tiers import stage

MKFS_DEADLINE_S: Final = 30.0
RELEASE_DEADLINE_S: Final = 20.0  # for the kernel to write what was not written yet, and forget the disk
BLOCK_BYTES: Final = 4096
INODE_BYTES: Final = 256
BYTES_PER_FILE: Final = 8192  # at most one file per so many bytes: ext4 has no room for more inodes
MIN_FILES: Final = 1024
OVERHEAD_BYTES: Final = 2 << 20  # superblocks and maps
_FEATURES: Final = "^has_journal,^resize_inode"  # it is new each time: there is nothing to recover


class Disks:
    """Makes disks for the sandboxes of one state directory; empty file systems are kept as templates."""

    def __init__(self, root: Path) -> None:
        self._templates = root / ".disks"

    def make(self, path: Path, limits: Limits, parked: Path | None = None) -> None:
        """Make an empty disk, or move one there that was parked, if it has the size that an empty one would
        have.

        Raises:
            OSError: the host cannot.
        """
        files = file_limit(limits)
        size = limits.disk_bytes + files * INODE_BYTES + OVERHEAD_BYTES
        size += -size % BLOCK_BYTES
        if parked is not None and _moved(parked, path, size):
            return
        template = self._templates / f"{size}-{files}.ext4"
        if not template.exists():
            self._templates.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = template.with_suffix(f".{secrets.token_hex(4)}")
            try:
                _make_file_system(fresh, size, files)
                os.replace(fresh, template)
            finally:
                fresh.unlink(missing_ok=True)
        _copy_sparse(template, path)

    @staticmethod
    def devices(path: Path) -> list[str]:
        """Return the loop devices through which a disk is mounted somewhere."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir("/sys/block"):
                with contextlib.suppress(OSError):
                    backing = Path(f"/sys/block/{name}/loop/backing_file").read_text().rstrip("\n")
                    if backing == str(path):
                        found.append(f"/dev/{name}")
        return found

    def wait_released(self, path: Path) -> None:
        """Return once no device holds a disk any more.

        Raises:
            OSError: one still does.
        """
        deadline = time.monotonic() + RELEASE_DEADLINE_S
        pause = 0.001
        while path.exists() and (devices := self.devices(path)):
            if time.monotonic() > deadline:
                raise OSError(f"{', '.join(devices)} still holds {path}")
            time.sleep(pause)
            pause = min(pause * 2, 0.05)


def _moved(parked: Path, path: Path, size: int) -> bool:
    try:
        if parked.stat().st_size != size:
            return False
        os.rename(parked, path)
    except OSError:
        return False
    return True


def file_limit(limits: Limits) -> int:
    """Return how many files and directories a disk of these limits holds."""
    return max(MIN_FILES, min(limits.disk_files, limits.disk_bytes // BYTES_PER_FILE))


@cache
def why_no_disk(stage_path: str, uid: int) -> str:
    """Return why this host cannot give a sandbox a disk of its own; empty: it can. Found by trying, once."""
    if find_mkfs() is None:
        return "mkfs.ext4 is not installed (package e2fsprogs)"
    with tempfile.TemporaryDirectory(prefix="skylease-probe-") as directory:
        disk = Path(directory) / "disk"
        order = {"binds": {}, "copies": {}, "disks": {"disk": str(disk)}, "stage": stage_path, "uid": uid}
        try:
            Disks(Path(directory)).make(disk, Limits(disk_bytes=1 << 20))
            done = subprocess.run(
                stage.command({**order, "argv": ["/bin/true"]}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MKFS_DEADLINE_S,
                env={},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return done.stderr.strip().rpartition("\n")[2][:300] if done.returncode else ""


def find_mkfs() -> str | None:
    """Return the program that makes an ext4, None if it is not installed."""
    path = ":".join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    return shutil.which("mkfs.ext4", path=path)


def _make_file_system(path: Path, size: int, files: int) -> None:
    mkfs = find_mkfs()
    if mkfs is None:
        raise OSError("mkfs.ext4 is not installed (package e2fsprogs)")
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.truncate(size)
    words = [mkfs, "-q", "-F", "-m", "0", "-O", _FEATURES, "-E", "lazy_itable_init=1,nodiscard"]
    words += ["-b", str(BLOCK_BYTES), "-I", str(INODE_BYTES), "-N", str(files), str(path)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MKFS_DEADLINE_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"mkfs.ext4 did not end within {MKFS_DEADLINE_S:g} s") from None
    if done.returncode != 0:
        raise OSError(f"mkfs.ext4: {' '.join(done.stderr.split())[-300:]}")


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a file without its holes."""
    with (
        open(source, "rb") as old,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as new,
    ):
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        position = 0
        while position < size:
            try:
                begin = os.lseek(old.fileno(), position, os.SEEK_DATA)
            except OSError:
                return  # a hole up to the end
            end = os.lseek(old.fileno(), begin, os.SEEK_HOLE)
            os.pwrite(new.fileno(), os.pread(old.fileno(), end - begin, begin), begin)
            position = end
