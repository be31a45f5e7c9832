"""Where snapshots are kept: one small interface, so that a directory, S3 or anything else can stand behind
it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandboxes.snapshot_policy import DEFAULT_KEEP
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotStale
from sandboxes.snapshots.manifest import check_digest

MAX_KEPT: Final = DEFAULT_KEEP  # snapshots of one owner that stay restorable, the newest first
MAX_NAMED: Final = 64  # by a head that is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an owner's snapshots are: `manifests` the newest first; `epoch` of the newest."""

    epoch: int
    manifests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A blob of the store, for collecting garbage."""

    digest: str
    stored_bytes: int
    written_ms: int


class Store(ABC):
    """Blobs named by their SHA-256, and one head per owner. Synchronous; a caller with an event loop uses a
    thread.

    What was put is whole or not there, and durable before `advance` writes a head; a crash leaves the old
    head or the new one. Every method raises StoreUnavailable when the store cannot be reached or is full.
    What is read is unverified: whoever reads compares it with its digest.
    """

    keeps = True  # False: nothing can be kept here
    is_shared = False  # whether other nodes reach it

    @abstractmethod
    def put(self, digest: str, source: Path) -> None:
        """Keep a file's bytes, in place of what may be there. The file may be moved away, or stay.

        Raises:
            SnapshotTooLarge: the store does not take so much.
        """

    @abstractmethod
    def put_bytes(self, digest: str, content: bytes) -> None:
        """Keep these bytes, in place of what may be there."""

    @abstractmethod
    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Say whether there is a blob of this size."""

    @abstractmethod
    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Return a file with these bytes, not yet verified: the store's own, or a copy in the directory
        `scratch`.

        Raises:
            SnapshotMissing: there is none.
            SnapshotCorrupt: it has another size than `stored_bytes`; it is not copied.
        """

    @abstractmethod
    def read(self, digest: str, limit: int) -> bytes:
        """Return at most `limit` + 1 of these bytes, not yet verified.

        Raises:
            SnapshotMissing: there are none.
        """

    @abstractmethod
    def head(self, owner: str) -> Head | None:
        """Return an owner's head; None: it has none.

        Raises:
            SnapshotCorrupt: it is not readable as one.
        """

    @abstractmethod
    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Make this manifest the owner's newest, in one step; the last `keep` stay named.

        Of several writers at once each finds what the one before has written; none is overwritten unseen.

        Raises:
            SnapshotStale: the head is of a newer epoch.
        """

    @abstractmethod
    def forget(self, owner: str) -> None:
        """Remove an owner's head; its blobs become garbage."""

    @abstractmethod
    def owners(self) -> Iterator[str]:
        """Yield every owner that has a head."""

    @abstractmethod
    def blobs(self) -> Iterator[Stored]:
        """Yield every blob."""

    @abstractmethod
    def remove(self, digest: str, before_ms: int) -> bool:
        """Remove a blob unless it has been written since; it may be absent. Returns whether there was one."""

    @abstractmethod
    def sweep(self, before_ms: int) -> int:
        """Remove what crashes left half written before this time; returns how many files."""

    # what only a store of several levels does

    def levels(self) -> "tuple[Store, ...]":
        """Return the stores that this one is made of."""
        return (self,)

    def distrust(self, digest: str) -> bool:
        """A blob turned out to be damaged: drop the nearer copy of it; False: there is no other."""
        return False

    def verified(self, digest: str, file: Path) -> None:  # noqa: B027  # most stores have one level
        """A file that `fetch` returned holds what it should: a nearer level may keep it."""

    def woken(self, owner: str, head: Head) -> None:  # noqa: B027
        """The owner's files were restored here: a nearer level may keep what it has of them."""

    def cool(self, owner: str) -> int:
        """Let the copies of an owner's snapshots on this node go, once the shared level has all of them.

        Returns:
            how many bytes were given back; 0 where there is but one level, whose copy is the only one.

        Raises:
            SnapshotError: the shared level does not have all of it and cannot get it; nothing was removed.
        """
        return 0


def advanced(owner: str, head: Head | None, epoch: int, manifest: str, keep: int) -> Head:
    """Return the head after this manifest; the rule that every store keeps.

    Raises:
        SnapshotStale: the head is of a newer epoch.
    """
    if head is not None and head.epoch > epoch:
        raise SnapshotStale(owner, epoch, head.epoch)
    older = () if head is None else tuple(name for name in head.manifests if name != manifest)
    return Head(epoch=epoch, manifests=(manifest, *older)[:keep])


def head_bytes(head: Head) -> bytes:
    """Return a head as JSON."""
    return json.dumps({"epoch": head.epoch, "manifests": list(head.manifests)}).encode()


def parse_head(owner: str, raw: bytes) -> Head:
    """Return the head in these bytes.

    Raises:
        SnapshotCorrupt: they are none.
    """
    try:
        value: dict[str, Any] = json.loads(raw)
        epoch, names = value["epoch"], value["manifests"]
        if not isinstance(epoch, int) or not isinstance(names, list) or not 0 < len(names) <= MAX_NAMED:
            raise ValueError("unexpected shape")
        return Head(epoch=epoch, manifests=tuple(check_digest(name, owner) for name in names))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotCorrupt(owner, f"its head is none ({error!r})") from None
