"""The image as the sandbox's uid must be able to see it."""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec

MAX_COPIED_BYTES: Final = 256 << 20
MAX_ENTRIES: Final = 50_000


def readable_image(root: Path, copy: Path) -> Path:
    """Return a folder with the image's contents that every uid can read: the image itself, else a copy of it.

    A checkout made under umask 077 is not readable for the uid of a sandbox.

    Raises:
        InvalidSpec: it has to be copied and is too large for that.
    """
    total = 0
    readable = True
    for entries, (_, directories, names, fd) in enumerate(os.fwalk(root)):
        readable = readable and _has(os.fstat(fd).st_mode, 0o005)
        for name in [*directories, *names]:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            total += found.st_size
            wanted = 0o005 if stat.S_ISDIR(found.st_mode) else 0o004
            readable = readable and (stat.S_ISLNK(found.st_mode) or _has(found.st_mode, wanted))
        if entries > MAX_ENTRIES:
            raise InvalidSpec("image", f"{root} has more than {MAX_ENTRIES} directories")
    if readable:
        return root
    if total > MAX_COPIED_BYTES:
        raise InvalidSpec(
            "image", f"{root} is too large to be copied and not readable for all: chmod -R a+rX it"
        )
    shutil.copytree(root, copy, symlinks=True)
    for _, _, names, fd in os.fwalk(copy):
        os.fchmod(fd, 0o755)
        for name in names:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(name, 0o755 if mode & 0o100 else 0o644, dir_fd=fd)
    return copy


def _has(mode: int, bits: int) -> bool:
    return mode & bits == bits
