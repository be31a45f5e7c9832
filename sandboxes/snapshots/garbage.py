"""Collecting garbage: what crashes left half written, and blobs that no head leads to.

A blob is written before the head that leads to it, so a young one is left alone; one that is written again
meanwhile is young again.
"""

from collections.abc import Callable

from sandboxes.snapshots.manifest import Manifest
from sandboxes.snapshots.store import Store


def collect(store: Store, manifest: Callable[[str], Manifest], oldest_kept_ms: int) -> tuple[int, int]:
    """Remove from every level of a store what nobody names and was written before `oldest_kept_ms`.

    Returns:
        how many blobs were removed, and their bytes.

    Raises:
        SnapshotError: a head or manifest cannot be read; of that level nothing is removed, since it may name
            anything.
    """
    store.sweep(oldest_kept_ms)
    removed = freed = 0
    for level in store.levels():
        named = _named(level, manifest)
        for blob in list(level.blobs()):
            is_old = blob.digest not in named and blob.written_ms < oldest_kept_ms
            if is_old and level.remove(blob.digest, oldest_kept_ms):
                removed, freed = removed + 1, freed + blob.stored_bytes
    return removed, freed


def _named(level: Store, manifest: Callable[[str], Manifest]) -> set[str]:
    named: set[str] = set()
    for owner in level.owners():
        head = level.head(owner)
        for digest in () if head is None else head.manifests:
            named.add(digest)
            named.update(layer.digest for layer in manifest(digest).layers)
    return named
