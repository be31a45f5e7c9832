"""Taking snapshots of workspaces and restoring them.

Order, so that a kill between any two steps loses nothing: layer into the store → manifest into the store →
the owner's head names it (fenced by the lease's epoch) → the index beside the workspace. Whoever stops a
sandbox does so after that. All is synchronous: a caller with an event loop uses a thread.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import UUID

from sandboxes.runner.removal import remove_entries, remove_tree
from sandboxes.snapshots import garbage
from sandboxes.snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
    SnapshotRefused,
    SnapshotsOff,
    SnapshotStale,
    SnapshotTooLarge,
    SnapshotVersion,
    StoreUnavailable,
)
from sandboxes.snapshots.extract import apply_layer, verify_file
from sandboxes.snapshots.layer import write_layer
from sandboxes.snapshots.manifest import MAX_LISTED, MAX_MANIFEST_BYTES, Layer, Manifest, parse_manifest
from sandboxes.snapshots.parking import Parked, Parking
from sandboxes.snapshots.scan import Scan, changed, load_index, save_index, scan, sweep_old
from sandboxes.snapshots.store import MAX_KEPT, Store

MAX_CHAIN: Final = 8  # layers; a longer chain costs every restore more than writing it anew costs once
MAX_WASTE: Final = 2.0  # bytes in the layers for each byte of the workspace, beyond which it is written anew
GRACE_MS: Final = 3_600_000  # a blob this young may belong to a snapshot that is being taken
BACKUP: Final = "backup-"
DATA: Final = "data-"
_DATA: Final = re.compile(rf"{DATA}[0-9a-f]{{32}}")
_DAMAGED = (SnapshotCorrupt, SnapshotMissing, SnapshotRefused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A snapshot that was taken: `written_bytes` is what it added to the store; 0: nothing had changed.
    `absent` are paths that were to be left out and are not there; `size_bytes` is what the workspace's files
    hold.
    """

    manifest: Manifest
    written_bytes: int
    is_full: bool
    absent: tuple[str, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A snapshot that was restored; `refused` are newer ones that could not be, with the reason for each."""

    manifest: Manifest
    refused: tuple[tuple[str, str], ...]


class Snapshots:
    """See the module.

    Args:
        store: where the bytes are kept.
        scratch: a directory for what is being written, on the store's file system if it is a local one.
        clock: wall clock, epoch milliseconds.
        max_bytes: what a workspace may hold to be kept; 0: no limit.
        keep: how many snapshots of one owner stay restorable.
        watch: called with the size of each file that was archived or restored, in bytes.
    """

    def __init__(
        self,
        store: Store,
        scratch: Path,
        *,
        clock: Callable[[], int] | None = None,
        max_bytes: int = 0,
        keep: int = MAX_KEPT,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self.store, self._scratch = store, scratch
        self._max_bytes, self._keep = max_bytes, keep
        self._watch = watch or (lambda size: None)
        self.parking = Parking(scratch.with_name("parked"))
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(
        self,
        owner: str,
        tree: Path,
        *,
        epoch: int,
        index: Path,
        image_digest: str | None = None,
        excludes: Sequence[str] = (),
        note: str | None = None,
    ) -> Taken:
        """Archive a workspace, in full or what has changed since the owner's newest snapshot.

        Args:
            owner: the sandbox's name.
            tree: its workspace; nothing in it runs.
            epoch: the lease's fencing token.
            index: file beside the workspace that remembers what the newest snapshot holds; read and
                rewritten.
            image_digest: what the sandbox was started from.
            excludes: paths within the workspace to leave out; the manifest lists them.
            note: text for the manifest.

        Raises:
            SnapshotStale: a newer epoch has written; this holder must stop.
            StoreUnavailable: it could not be kept; the one before it still is.
            SnapshotTooLarge: it is more than the settings or the store allow.
            SnapshotsOff: the store keeps nothing.
            InvalidSpec: an excluded path is not one within the workspace.
            SnapshotError: the workspace cannot be archived.
        """
        if not self.store.keeps:
            raise SnapshotsOff()
        newest = self._newest(owner, epoch)
        now = scan(tree, excludes)
        if self._max_bytes and now.size_bytes > self._max_bytes:
            remedy = "see the setting snapshots.max_mib"
            raise SnapshotTooLarge(owner, now.size_bytes, self._max_bytes, remedy)
        known = self._known(newest, index, now, excludes)
        if newest is None or known is None:
            layers, written = self._add((), tree, now, sorted(now.index), [])
        else:
            new, removed = changed(now, known.index, known.at_ns)
            layers, written = newest.layers, 0
            if new or removed:
                layers, written = self._add(layers, tree, now, new, removed)
        manifest = Manifest(
            owner=owner,
            epoch=epoch,
            created_ms=self._clock(),
            layers=layers,
            parent=None if newest is None else newest.digest,
            image_digest=image_digest,
            excludes=tuple(excludes),
            skipped=now.skipped[:MAX_LISTED],
            note=note,
        )
        raw = manifest.to_bytes()
        self.store.put_bytes(manifest.digest, raw)
        if not self.store.holds(manifest.digest, len(raw)) or not self._has_all(layers[-1:]):
            raise StoreUnavailable(owner, "the store took the snapshot and has forgotten it")
        self.store.advance(owner, epoch, manifest.digest, self._keep)
        save_index(index, manifest.digest, now)
        return Taken(
            manifest=manifest,
            written_bytes=written,
            is_full=len(layers) == 1,
            absent=now.absent,
            size_bytes=now.size_bytes,
        )

    def restore(
        self, owner: str, target: Path, *, index: Path, uid: int | None = None, strict: bool = False
    ) -> Restored:
        """Make the directory `target` hold the owner's newest snapshot that is whole.

        Args:
            owner: the sandbox's name.
            target: must not exist; appears at once and whole.
            index: rewritten, so that the next snapshot is incremental.
            uid: the owner of all in it (only root can give one).
            strict: raise when the newest one is damaged, instead of using the one before it.

        Raises:
            SnapshotMissing: the owner has none.
            SnapshotCorrupt, SnapshotRefused: none is whole; the newest one's reason.
            SnapshotVersion: it is of another format version; it is whole, so none before it takes its place.
            StoreUnavailable: the store cannot be read. OSError: it cannot be written.
        """
        if target.exists():
            raise FileExistsError(target)
        return self._newest_whole(
            owner, lambda manifest: self.extract(manifest, target, uid=uid), target, index, strict
        )

    def fill(
        self, owner: str, tree: Path, *, index: Path, uid: int | None = None, strict: bool = False
    ) -> Restored:
        """Make a directory that exists hold the owner's newest snapshot that is whole, and nothing else.

        Args and errors as `restore`. A kill in between leaves it half filled: whoever calls this knows how to
        tell.
        """

        def refill(manifest: Manifest) -> None:
            remove_entries(str(tree))
            self._apply(manifest, tree, uid)

        return self._newest_whole(owner, refill, tree, index, strict)

    def _newest_whole(
        self, owner: str, bring: Callable[[Manifest], None], tree: Path, index: Path, strict: bool
    ) -> Restored:
        head = self.store.head(owner)
        if head is None:
            raise SnapshotMissing(owner, "nothing was ever kept")
        refused: list[tuple[str, str]] = []
        first: SnapshotError | None = None
        for digest in head.manifests:
            try:
                manifest = self.manifest(digest)
                if manifest.owner != owner:
                    raise SnapshotCorrupt(digest, f"it belongs to {manifest.owner}")
                bring(manifest)
            except _DAMAGED as error:
                first = first or error
                refused.append((digest, str(error)))
                if strict:
                    raise
                continue
            # Only the newest one's index may serve the next snapshot: the chain goes on from the head.
            if digest == head.manifests[0]:
                save_index(index, digest, scan(tree))
            else:
                index.unlink(missing_ok=True)
            self.store.woken(owner, head)
            return Restored(manifest=manifest, refused=tuple(refused))
        assert first is not None  # a head names at least one manifest
        raise first

    def extract(self, manifest: Manifest, target: Path, *, uid: int | None = None) -> None:
        """Make the directory `target`, which must not exist, hold this snapshot.

        Raises:
            SnapshotCorrupt, SnapshotMissing, SnapshotRefused: it is not whole; nothing is left.
            FileExistsError: the target exists.
        """
        if target.exists():
            raise FileExistsError(target)
        half = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        half.mkdir(mode=0o700)
        try:
            if uid is not None:
                os.chown(half, uid, uid)
            self._apply(manifest, half, uid)
            os.rename(half, target)
        except BaseException:
            _discard(half)
            raise

    def _apply(self, manifest: Manifest, directory: Path, uid: int | None) -> None:
        with self._workplace() as scratch:
            for layer in manifest.layers:
                path = self._verified(layer, scratch)
                with open(path, "rb") as file:
                    self.store.verified(layer.digest, path)  # which may move it
                    apply_layer(file, layer, directory, uid, self._watch)

    @contextlib.contextmanager
    def _workplace(self) -> Iterator[Path]:
        """Give a directory for files of one reading; what a kill leaves of it is swept by `collect`."""
        directory = self._scratch / secrets.token_hex(16)
        directory.mkdir(mode=0o700)
        try:
            yield directory
        finally:
            _discard(directory)

    def _verified(self, layer: Layer, scratch: Path) -> Path:
        """Return the file of a layer, whole: where the nearer copy is damaged, another."""
        try:
            file = self.store.fetch(layer.digest, layer.stored_bytes, scratch)
            verify_file(file, layer)
        except SnapshotCorrupt:
            if not self.store.distrust(layer.digest):
                raise
            file = self.store.fetch(layer.digest, layer.stored_bytes, scratch)
            verify_file(file, layer)
        return file

    def manifest(self, digest: str) -> Manifest:
        """Return a manifest, verified.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotVersion, StoreUnavailable: it cannot be had.
        """
        try:
            return parse_manifest(self.store.read(digest, MAX_MANIFEST_BYTES), digest)
        except SnapshotCorrupt:
            if not self.store.distrust(digest):
                raise
        return parse_manifest(self.store.read(digest, MAX_MANIFEST_BYTES), digest)

    def newest(self, owner: str) -> Manifest | None:
        """Return an owner's newest manifest; None: it has none.

        Raises:
            SnapshotError: it is damaged, or the store cannot be read.
        """
        head = self.store.head(owner)
        return None if head is None else self.manifest(head.manifests[0])

    def has(self, owner: str) -> bool:
        """Say whether an owner has a snapshot, whole or not.

        Raises:
            SnapshotError: the store cannot say.
        """
        return self.store.head(owner) is not None

    def owners(self) -> list[str]:
        """Return every sandbox that has a snapshot; backups and the /data of agents have none.

        Raises:
            SnapshotError: the store cannot say.
        """
        return [owner for owner in self.store.owners() if not is_backup(owner) and not is_data(owner)]

    def epoch(self, owner: str) -> int | None:
        """Return the epoch of an owner's newest snapshot, which need not be whole; None: it has none.

        Raises:
            SnapshotError: the store cannot say.
        """
        head = self.store.head(owner)
        return None if head is None else head.epoch

    def fence(self, owner: str, epoch: int) -> bool:
        """Shut out every smaller epoch from now on; its newest snapshot stays what it is.

        Returns:
            whether the owner has a snapshot; without one there is nothing to shut out from.

        Raises:
            SnapshotStale: a newer epoch has written, or shut us out.
            SnapshotError: the store cannot say.
        """
        head = self.store.head(owner)
        if head is None:
            return False
        self.store.advance(owner, epoch, head.manifests[0], self._keep)
        return True

    def fork(self, source: str, owner: str, *, epoch: int) -> Manifest:
        """Give an owner who has no snapshot the newest one of another: the layers are shared, nothing else.

        Raises:
            SnapshotMissing: the other has none, or not all of it is there.
            SnapshotError: it is damaged, or the store cannot be used; the owner has none.
        """
        newest = self.newest(source)
        if newest is None:
            raise SnapshotMissing(source, "nothing was ever kept")
        manifest = replace(newest, owner=owner, epoch=epoch, created_ms=self._clock(), parent=None)
        self.store.put_bytes(manifest.digest, manifest.to_bytes())
        self.store.advance(owner, epoch, manifest.digest, self._keep)
        if not self._has_all(manifest.layers):  # asked last: named now, they are not collected any more
            self.store.forget(owner)
            raise SnapshotMissing(source, "a layer of it is not in the store")
        return manifest

    def parked(self, owner: str) -> Parked | None:
        """Return the disk of an owner's newest snapshot, if it is on this node.

        Raises:
            SnapshotError: the store cannot say which is the newest.
        """
        head = self.store.head(owner)
        return self.parking.find(owner, None if head is None else head.manifests[0])

    def forget(self, owner: str) -> None:
        """Let an owner's snapshots go: `collect` removes what nobody else names."""
        self.store.forget(owner)
        self.parking.drop(owner)

    def cool(self, owner: str) -> int:
        """Let the copies of an owner's snapshots on this node go; see `Store.cool`.

        Returns:
            how many bytes were given back.

        Raises:
            SnapshotError: the shared level does not have all of it; nothing was removed.
        """
        copied = self.store.cool(owner)
        return copied + self.parking.drop(owner)

    def collect(self, *, grace_ms: int = GRACE_MS) -> tuple[int, int]:
        """Remove what crashes left half written and blobs that no head leads to, if older than `grace_ms`.

        Returns:
            how many blobs were removed, and their bytes.

        Raises:
            SnapshotError: a head or manifest cannot be read; nothing is removed, since it may name anything.
        """
        oldest_kept = self._clock() - grace_ms
        sweep_old(self._scratch, oldest_kept)
        for owner in self.parking.owners():
            if self.store.head(owner) is None:
                self.parking.drop(owner)
        return garbage.collect(self.store, self.manifest, oldest_kept)

    def verify(self, owner: str) -> Manifest:
        """Read all of an owner's newest snapshot and compare it with what was written.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotVersion: it is not whole.
            StoreUnavailable: the store cannot be read.
        """
        manifest = self.newest(owner)
        if manifest is None:
            raise SnapshotMissing(owner, "nothing was ever kept")
        with self._workplace() as scratch:
            for layer in manifest.layers:
                path = self._verified(layer, scratch)
                if path.is_relative_to(scratch):
                    path.unlink()
        return manifest

    def _has_all(self, layers: Sequence[Layer]) -> bool:
        return all(self.store.holds(layer.digest, layer.stored_bytes) for layer in layers)

    def _newest(self, owner: str, epoch: int) -> Manifest | None:
        """Return what a new snapshot builds on: not one that is damaged, or of another format version."""
        head = self.store.head(owner)
        if head is None:
            return None
        if head.epoch > epoch:
            raise SnapshotStale(owner, epoch, head.epoch)
        with contextlib.suppress(*_DAMAGED, SnapshotVersion):
            return self.manifest(head.manifests[0])
        return None

    def _known(self, newest: Manifest | None, index: Path, now: Scan, excludes: Sequence[str]) -> Scan | None:
        """Return what the newest snapshot holds, if a layer can be added to it."""
        if newest is None or _is_long(newest, now) or newest.excludes != tuple(excludes):
            return None
        known = load_index(index, newest.digest)
        # A store that has lost a layer gets all of it again.
        return known if known is not None and self._has_all(newest.layers) else None

    def _add(
        self, layers: tuple[Layer, ...], tree: Path, now: Scan, new: Sequence[str], removed: Sequence[str]
    ) -> tuple[tuple[Layer, ...], int]:
        file = self._scratch / f"{secrets.token_hex(16)}.layer"
        try:
            layer = write_layer(file, tree, now.index, new, removed, self._watch)
            self.store.put(layer.digest, file)
        finally:
            file.unlink(missing_ok=True)
        return (*layers, layer), layer.stored_bytes


def owner_of_backup(backup_id: str) -> str:
    """Return the owner under which a backup is kept."""
    return BACKUP + backup_id


def is_backup(owner: str) -> bool:
    """Say whether an owner is a backup; no sandbox's name has such a form."""
    try:
        return owner.startswith(BACKUP) and str(UUID(owner[len(BACKUP) :])) == owner[len(BACKUP) :]
    except ValueError:
        return False


def owner_of_data(agent_did: str) -> str:
    """Return under which owner an agent's /data is kept; no sandbox's name has such a form."""
    return DATA + sha256(agent_did.encode()).hexdigest()[:32]


def is_data(owner: str) -> bool:
    """Say whether an owner is an agent's /data."""
    return _DATA.fullmatch(owner) is not None


def _is_long(manifest: Manifest, now: Scan) -> bool:
    """Whether to write the workspace anew instead of adding a layer."""
    if len(manifest.layers) >= MAX_CHAIN:
        return True
    held = sum(layer.raw_bytes for layer in manifest.layers)
    return len(manifest.layers) > 1 and held > MAX_WASTE * now.size_bytes + (1 << 20)


def _discard(directory: Path) -> None:
    fd = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, directory.name)
    finally:
        os.close(fd)
