"""The manifest of a snapshot: which layers, in which order, make a workspace."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotVersion

FORMAT_VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_LAYERS: Final = 64  # of a manifest that is read; ours are compacted long before
MAX_LISTED: Final = 1_000  # names in `skipped`
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One archive: `digest` is the SHA-256 of its `stored_bytes` compressed bytes; `raw_bytes` is what its
    files hold in all, `entries` how many there are.
    """

    digest: str
    stored_bytes: int
    raw_bytes: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A snapshot. `owner` is the sandbox's name, `epoch` the fencing token of the lease that took it.

    `parent` is the manifest before it, `excludes` what the caller left out, `skipped` what cannot be
    archived, `note` what whoever took it wants to know of it.
    """

    owner: str
    epoch: int
    created_ms: int
    layers: tuple[Layer, ...]
    parent: str | None = None
    image_digest: str | None = None
    excludes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    note: str | None = None
    version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """Return the canonical JSON, whose SHA-256 is the manifest's digest."""
        fields = asdict(self)
        if self.note is None:
            del fields["note"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """What this manifest is stored under."""
        return sha256(self.to_bytes()).hexdigest()

    @property
    def stored_bytes(self) -> int:
        """What all its layers take in the store."""
        return sum(layer.stored_bytes for layer in self.layers)


def check_digest(word: object, of: str) -> str:
    """Return a digest, or raise SnapshotCorrupt."""
    if not isinstance(word, str) or not _DIGEST.fullmatch(word):
        raise SnapshotCorrupt(of, f"{str(word)[:80]!r} is no digest")
    return word


def parse_manifest(raw: bytes, digest: str) -> Manifest:
    """Return the manifest that is stored under `digest`.

    Raises:
        SnapshotCorrupt: these are not the bytes that the digest names, or they are no manifest.
        SnapshotVersion: it has another format version.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise SnapshotCorrupt(digest, f"its manifest has {len(raw)} bytes, more than {MAX_MANIFEST_BYTES}")
    if sha256(raw).hexdigest() != digest:
        raise SnapshotCorrupt(digest, "its manifest is not the one that was written")
    try:
        value = json.loads(raw)
        if value["version"] != FORMAT_VERSION:
            raise SnapshotVersion(digest, f"version {value['version']!r}, this is {FORMAT_VERSION}")
        return _manifest(value, digest)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotCorrupt(digest, f"its manifest is none ({error!r})") from None


def _manifest(value: Mapping[str, Any], digest: str) -> Manifest:
    layers = value["layers"]
    if not 0 < len(layers) <= MAX_LAYERS:
        raise SnapshotCorrupt(digest, f"it has {len(layers)} layers")
    return Manifest(
        owner=_text(value["owner"]),
        epoch=_count(value["epoch"]),
        created_ms=_count(value["created_ms"]),
        layers=tuple(_layer(layer, digest) for layer in layers),
        parent=None if value["parent"] is None else check_digest(value["parent"], digest),
        image_digest=None if value["image_digest"] is None else _text(value["image_digest"]),
        excludes=tuple(_text(item) for item in value["excludes"]),
        skipped=tuple(_text(item) for item in value["skipped"]),
        note=None if value.get("note") is None else _text(value["note"]),
    )


def _layer(value: Mapping[str, Any], digest: str) -> Layer:
    return Layer(
        digest=check_digest(value["digest"], digest),
        stored_bytes=_count(value["stored_bytes"]),
        raw_bytes=_count(value["raw_bytes"]),
        entries=_count(value["entries"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value
