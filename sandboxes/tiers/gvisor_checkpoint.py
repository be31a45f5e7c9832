"""Saving a living gVisor sandbox to disk, processes and memory included, and starting it again.

DIRECTORY/checkpoint.json   what it was; written last, so a directory without it is none
DIRECTORY/processes/        runsc's image: memory, processes, /tmp
DIRECTORY/disk.ext4         /workspace, or where it is a plain directory: DIRECTORY/workspace/

A sandbox can be saved only without sockets of the host: the runner gives its own up beforehand ("park") and
makes it again afterwards. gVisor ends a sandbox whose saving fails, so what would make it fail is looked for
first.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec, SandboxBusy, SandboxGone
from sandboxes.tiers.ask import ANSWER_DEADLINE_S, ask
from sandboxes.tiers.gvisor_machine import WRITABLE

MANIFEST: Final = "checkpoint.json"
PROCESSES: Final = "processes"
POLL_S: Final = 0.005
COPY_DEADLINE_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was saved, and what it takes to start it again."""

    name: str
    epoch: int
    uid: int
    runsc: str  # version: an image is read only by the runsc that wrote it
    python: str  # version of the runner's interpreter, whose files it has mapped
    version: int = 1


def load(directory: Path) -> Manifest:
    """Return the manifest of a saved sandbox.

    Raises:
        InvalidSpec: there is none in this directory.
    """
    try:
        return Manifest(**json.loads((directory / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSpec("checkpoint", f"{directory} holds no saved sandbox ({error})") from None


def save(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, when everything else is there."""
    temporary = directory / f"{MANIFEST}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)


def make_directory(directory: Path, state: Path) -> None:
    """Make the directory for what will be saved.

    Raises:
        InvalidSpec: it exists, or lies in the state directory, whose debris is swept away.
    """
    if Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(state)):
        raise InvalidSpec("checkpoint", f"{directory} lies in the state directory")
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise InvalidSpec("checkpoint", f"{directory} exists") from None


def check(manifest: Manifest, wanted: Manifest) -> None:
    """Check that a saved sandbox can be started as this one.

    Raises:
        InvalidSpec: it is another one, or was saved by other versions.
    """
    for field in ("version", "name", "runsc", "python"):
        was, is_now = getattr(manifest, field), getattr(wanted, field)
        if was != is_now:
            raise InvalidSpec("checkpoint", f"it was saved with {field} {was}, here it is {is_now}")


def check_no_socket(bundle: Path, root: Path, name: str) -> None:
    """Check that nothing inside listens at a socket in a directory of the host: saving would end it.

    Args:
        bundle: directory of the sandbox.
        root: where everything that it sees can be found.
        name: of the sandbox.

    Raises:
        SandboxBusy: something may.
    """
    config = json.loads((bundle / "config.json").read_bytes())
    for target in json.loads(config["annotations"][WRITABLE]):
        top = str(root) + target
        for path, _, names, fd in os.fwalk(top):
            for entry in names:
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISSOCK(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
                        inside = os.path.relpath(os.path.join(path, entry), top)
                        raise SandboxBusy(
                            name, f"a socket at {inside} cannot be saved: end what listens there"
                        )


def park(path: Path, name: str, epoch: int) -> None:
    """Have the runner give up its socket; returns when it has.

    Raises:
        SandboxGone, StaleEpoch, SandboxBusy: it does not.
    """
    # Whether one can still connect says nothing: gVisor's file server closes sockets later, in batches.
    ask(path, name, epoch, "park", until_closed=True)


def await_socket(path: Path, name: str, epoch: int) -> None:
    """Return when the runner answers again.

    Raises:
        SandboxGone, StaleEpoch: it does not.
    """
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    while True:
        try:
            ask(path, name, epoch, "renew")
            return
        except SandboxGone:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def move_tree(source: Path, target: Path) -> None:
    """Move a directory with all it holds, owners and times kept, also to another file system.

    Raises:
        OSError: not all of it could be moved; the source is whole.
    """
    if target.is_dir():
        shutil.rmtree(target)
    try:
        os.rename(source, target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    try:
        subprocess.run(
            ["cp", "-a", "--", str(source), str(target)],
            capture_output=True,
            timeout=COPY_DEADLINE_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise OSError(f"{source} could not be copied: {error}") from error
