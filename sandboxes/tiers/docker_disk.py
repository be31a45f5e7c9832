"""The disk of a sandbox's workspace (see `disk`), where the engine finds it.

A container is started by the engine, in the host's own mount namespace. So the disk is mounted there, in the
sandbox's directory, while the container starts; from then on the container has a mount of its own, and the
host's goes. gVisor's file server may look at the host's again at any time, so there it stays until the end.
"""

import ctypes
import errno
import logging
import os
import time
from pathlib import Path
from typing import Final

from sandboxes.spec import Limits
from sandboxes.tiers import stage
from sandboxes.tiers.disk import Disks, why_no_disk

IMAGE_NAME: Final = "disk.ext4"  # in the sandbox's directory
MOUNT_NAME: Final = "disk"
PROBE_UID: Final = 19_997  # below the range of sandboxes; the other tiers' probes have the two above
RELEASE_S: Final = 0.5  # the kernel takes a few milliseconds
_MNT_DETACH: Final = 2  # linux/fs.h
_UMOUNT_NOFOLLOW: Final = 8

log = logging.getLogger(__name__)


class WorkspaceDisks:
    """Makes, shows and removes the disks of one state directory."""

    def __init__(self, root: Path) -> None:
        self._disks = Disks(root)
        self._libc = ctypes.CDLL(None, use_errno=True)

    @staticmethod
    def why_none() -> str:
        """Return why this host can make none; empty: it can."""
        if os.geteuid() != 0:
            return "only root can mount one"
        return why_no_disk(next((path for path in stage.STAGES if os.path.isdir(path)), "/tmp"), PROBE_UID)

    def make(self, directory: Path, limits: Limits) -> None:
        """Make the empty disk of the sandbox in `directory`."""
        self._disks.make(directory / IMAGE_NAME, limits)

    @staticmethod
    def source(directory: Path) -> Path:
        """Return what is bound as /workspace: where the disk is mounted, or a directory without one."""
        return directory / (MOUNT_NAME if (directory / IMAGE_NAME).exists() else "workspace")

    def show(self, directory: Path, owner: int) -> None:
        """Mount the disk, if there is one, for its owner's uid.

        Raises:
            OSError: it cannot be mounted, or another mount of it is still there.
        """
        image = directory / IMAGE_NAME
        if not image.exists() or os.path.ismount(directory / MOUNT_NAME):
            return
        self._disks.wait_released(image)  # two devices over one file would ruin it
        target = directory / MOUNT_NAME
        if target.is_dir():  # left so that the container can be started by hand; its runner then ends
            target.rmdir()
        fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        try:
            stage.mount_disk(self._libc, fd, str(target), owner)
        finally:
            os.close(fd)

    def hide(self, directory: Path) -> None:
        """Take the host's mount away; a container that has the disk keeps it."""
        target = directory / MOUNT_NAME
        if self._libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW):
            number = ctypes.get_errno()
            if number not in (errno.ENOENT, errno.EINVAL, errno.EPERM):  # not there, not mounted, not root
                raise OSError(number, f"umount {target}: {os.strerror(number)}")

    def remove(self, directory: Path) -> None:
        """Take the mount away and wait a moment until the kernel has forgotten the disk."""
        self.hide(directory)
        deadline = time.monotonic() + RELEASE_S
        while devices := self.held(directory):
            if time.monotonic() > deadline:  # a process that started meanwhile sees a copy of the mount
                log.warning("a removed disk is still seen somewhere", extra={"devices": devices})
                return
            time.sleep(0.002)

    def discard(self, directory: Path) -> None:
        """Delete the disk, unless it is still in use somewhere."""
        if not self.held(directory):
            (directory / IMAGE_NAME).unlink(missing_ok=True)

    def held(self, directory: Path) -> list[str]:
        """Return the devices through which the disk is mounted somewhere."""
        image = directory / IMAGE_NAME
        return self._disks.devices(image) if image.exists() else []
