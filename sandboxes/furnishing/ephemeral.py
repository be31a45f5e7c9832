"""What snapshots of a sandbox leave out: a list in its own directory, which nothing inside can see."""

import json
import os
from pathlib import Path
from typing import Final

from sandboxes.furnishing.entries import WorkspaceSpec

EPHEMERAL_NAME: Final = "ephemeral.json"


def note_ephemeral(directory: Path, spec: WorkspaceSpec) -> None:
    """Write down, in a sandbox's directory, what its snapshots leave out."""
    file = directory / EPHEMERAL_NAME
    if not spec.ephemeral:
        file.unlink(missing_ok=True)
        return
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(spec.ephemeral), encoding="utf-8")
    os.replace(temporary, file)


def left_out(directory: Path, tree: Path) -> tuple[str, ...]:
    """Return what a snapshot of a sandbox has to leave out: its ephemeral paths, as far as they are there.

    Args:
        directory: the sandbox's.
        tree: its workspace, on this node; nothing in it runs.
    """
    try:
        paths = json.loads((directory / EPHEMERAL_NAME).read_bytes())
    except FileNotFoundError:
        return ()
    return tuple(path for path in paths if _is_within(tree, path))


def _is_within(tree: Path, path: str) -> bool:
    """Whether a path exists with no link on the way: what a scan of the tree comes to."""
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, name = path.split("/")
        for part in above:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
