"""Snapshots: the archived workspaces of sandboxes, incremental, content-addressed, verified when read.

A snapshot is a manifest (JSON) that names its layers in order. A layer is a zstd-compressed tar of what
changed since the layer before it, named by the SHA-256 of its bytes. Nothing is skipped but what the caller
excludes and what cannot be archived (sockets), and the manifest lists both. `Snapshots` takes and restores; a
`Store` keeps the bytes.
"""

from sandboxes.snapshots.backups import Backup, Backups
from sandboxes.snapshots.local_store import LocalStore
from sandboxes.snapshots.manifest import Layer, Manifest
from sandboxes.snapshots.opening import NoStore, open_snapshots, open_store
from sandboxes.snapshots.snapshots import Restored, Snapshots, Taken
from sandboxes.snapshots.store import Store
from sandboxes.snapshots.two_level_store import TwoLevelStore

__all__ = [
    "Backup",
    "Backups",
    "Layer",
    "LocalStore",
    "Manifest",
    "NoStore",
    "Restored",
    "Snapshots",
    "Store",
    "Taken",
    "TwoLevelStore",
    "open_snapshots",
    "open_store",
]
