"""A store of two levels: a shared one that has everything and decides, and a copy of it on this node.

What is kept goes to the shared level first, so a sandbox sleeps only when its files are safe from this node's
end; the copy makes the wake fast. The shared head decides, also about which files are the newest: this node's
copy may be of before another node had the sandbox. A copy that is missing or damaged is fetched again.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotMissing, SnapshotVersion
from sandboxes.snapshots.local_store import LocalStore
from sandboxes.snapshots.manifest import MAX_MANIFEST_BYTES, parse_manifest
from sandboxes.snapshots.store import MAX_KEPT, Head, Store, Stored

NOW_AND_EVER_MS: Final = 1 << 62  # whenever it was written


class TwoLevelStore(Store):
    """See the module. `near` is a copy that may vanish, so it need not be durable; `far` is what counts."""

    is_shared = True

    def __init__(self, near: LocalStore, far: Store) -> None:
        self.near, self.far = near, far

    def put(self, digest: str, source: Path) -> None:
        """Keep a file in both, in the shared one first."""
        self._upload(digest, source)
        self.near.put(digest, source)

    def put_bytes(self, digest: str, content: bytes) -> None:
        """Keep bytes in both, in the shared one first."""
        self.far.put_bytes(digest, content)
        self.near.put_bytes(digest, content)

    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Ask the shared one."""
        return self.far.holds(digest, stored_bytes)

    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Return the near copy, else fetch it."""
        with contextlib.suppress(SnapshotMissing):
            return self.near.fetch(digest, stored_bytes, scratch)
        file = self.far.fetch(digest, stored_bytes, scratch)
        if not file.is_relative_to(scratch):  # its own; what is kept here is moved
            shutil.copyfile(file, scratch / digest)
        return scratch / digest

    def verified(self, digest: str, file: Path) -> None:
        """Keep what was fetched."""
        if not file.is_relative_to(self.near.root):
            self.near.put(digest, file)

    def read(self, digest: str, limit: int) -> bytes:
        """Return the near copy, else fetch and keep it."""
        with contextlib.suppress(SnapshotMissing):
            return self.near.read(digest, limit)
        content = self.far.read(digest, limit)
        if sha256(content).hexdigest() == digest:
            self.near.put_bytes(digest, content)
        return content

    def distrust(self, digest: str) -> bool:
        """Drop the near copy, so that it is fetched again."""
        return self.near.remove(digest, NOW_AND_EVER_MS)

    def head(self, owner: str) -> Head | None:
        """Ask the shared one."""
        return self.far.head(owner)

    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Advance the shared head, then the copy of it."""
        head = self.far.advance(owner, epoch, manifest, keep)
        self.near.keep_head(owner, head)
        return head

    def woken(self, owner: str, head: Head) -> None:
        """Keep the copies that this head names."""
        self.near.keep_head(owner, head)

    def forget(self, owner: str) -> None:
        """Remove both heads."""
        self.far.forget(owner)
        self.near.forget(owner)

    def owners(self) -> Iterator[str]:
        """Yield those of the shared one."""
        return self.far.owners()

    def blobs(self) -> Iterator[Stored]:
        """Yield those of the shared one."""
        return self.far.blobs()

    def remove(self, digest: str, before_ms: int) -> bool:
        """Remove a blob from both unless it has been written since."""
        removed = self.far.remove(digest, before_ms)
        if removed:
            self.near.remove(digest, before_ms)
        return removed

    def sweep(self, before_ms: int) -> int:
        """Sweep both, and drop copies of heads that are no longer those of the shared one."""
        for owner in list(self.near.owners()):
            there, here = self.far.head(owner), None
            with contextlib.suppress(SnapshotCorrupt):
                here = self.near.head(owner)
            if there is None or here != there:
                self.near.forget(owner)
        return self.far.sweep(before_ms) + self.near.sweep(before_ms)

    def levels(self) -> tuple[Store, ...]:
        """Return both, the shared one first."""
        return self.far, self.near

    def cool(self, owner: str) -> int:
        """Make sure that the shared one has all of an owner's, upload what it lacks, then drop the copies."""
        head = self.far.head(owner)
        if head is None:
            raise SnapshotMissing(owner, "nothing was ever kept")
        copies: dict[str, int] = {}
        for digest in head.manifests:
            try:
                blobs = self._blobs_of(digest)
            except (SnapshotCorrupt, SnapshotMissing, SnapshotVersion):
                if digest == head.manifests[0]:
                    raise
                continue  # an older one that is damaged hinders nobody
            if digest == head.manifests[0]:
                self._complete(blobs)
            copies |= blobs
        self.near.forget(owner)
        # One that somebody else's snapshot shares is fetched again when it is needed.
        return sum(size for digest, size in copies.items() if self.near.remove(digest, NOW_AND_EVER_MS))

    def _blobs_of(self, digest: str) -> dict[str, int]:
        """Return what a snapshot consists of, with sizes."""
        raw, manifest = b"", None
        with contextlib.suppress(SnapshotMissing, SnapshotCorrupt):
            raw = self.near.read(digest, MAX_MANIFEST_BYTES)
            manifest = parse_manifest(raw, digest)
        if manifest is None:
            raw = self.far.read(digest, MAX_MANIFEST_BYTES)
            manifest = parse_manifest(raw, digest)
        return {digest: len(raw), **{layer.digest: layer.stored_bytes for layer in manifest.layers}}

    def _complete(self, blobs: dict[str, int]) -> None:
        """Upload what the shared store has not, or not whole, from copies that are."""
        for digest, size in blobs.items():
            if self.far.holds(digest, size):
                continue
            try:
                file = self.near.fetch(digest, size, self.near.root)
                if _digest(file) != digest:
                    raise SnapshotCorrupt(digest, "this node's copy, the only one, is not what was written")
                self._upload(digest, file)
            except SnapshotMissing:
                raise SnapshotMissing(digest, "neither the shared store nor this node has it") from None

    def _upload(self, digest: str, source: Path) -> None:
        """Put a file that stays, whatever the store does with it."""
        link = self.near.root / "new" / secrets.token_hex(16)
        os.link(source, link)
        try:
            self.far.put(digest, link)
        finally:
            link.unlink(missing_ok=True)


def _digest(file: Path) -> str:
    with open(file, "rb") as source:
        return file_digest(source, "sha256").hexdigest()
