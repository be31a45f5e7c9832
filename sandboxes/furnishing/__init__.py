"""What a workspace starts with: entries that are written inside the sandbox, and a projection that is
renewed.

Enters: tables (image.toml, the settings) and a sandbox that nobody uses yet. Leaves: the same sandbox with
the files that it should have. `entries` says what there can be, `parse` reads it, `hostfiles` reads the
host's side, `plan` decides what has to be written, `furnish` writes it.
"""

from sandboxes.furnishing.entries import (
    NOTHING,
    BindMount,
    Directory,
    Entry,
    File,
    GitRepo,
    LocalDir,
    LocalFile,
    Projection,
    Source,
    WorkspaceSpec,
)
from sandboxes.furnishing.furnish import Furnished, Furnisher, furnish_once
from sandboxes.furnishing.parse import parse_workspace, read_workspace
from sandboxes.furnishing.plan import Start

__all__ = [
    "NOTHING",
    "BindMount",
    "Directory",
    "Entry",
    "File",
    "Furnished",
    "Furnisher",
    "GitRepo",
    "LocalDir",
    "LocalFile",
    "Projection",
    "Source",
    "Start",
    "WorkspaceSpec",
    "furnish_once",
    "parse_workspace",
    "read_workspace",
]
