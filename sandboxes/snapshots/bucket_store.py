"""A store in an S3-compatible bucket, through obstore.

PREFIX/blobs/ab/abcdef…   layers and manifests, by digest
PREFIX/heads/OWNER.json   what an owner's snapshots are; changed by conditional writes only

Two nodes that write one head at once cannot both win: a head is written on the condition that it is still the
one that was read. A bucket that ignores the condition is found out before the first head is written to it.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from sandboxes.names import check_name
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotMissing, StoreUnavailable
from sandboxes.snapshots.manifest import check_digest
from sandboxes.snapshots.store import MAX_KEPT, Head, Store, Stored, advanced, head_bytes, parse_head

CONNECT_DEADLINE_S: Final = 5
REQUEST_DEADLINE_S: Final = 30  # of one request; no request carries more than PIECE_BYTES
RETRY_DEADLINE_S: Final = 60
MAX_RETRIES: Final = 3
PIECE_BYTES: Final = 8 << 20
HEAD_ATTEMPTS: Final = 16  # against other writers of one owner, of whom there should be none
MAX_HEAD_BYTES: Final = 64 << 10
_NO_BUCKET: Final = "NoSuchBucket"  # S3's error code
_LOST: Final = (AlreadyExistsError, PreconditionError)  # somebody else has written meanwhile


class BucketStore(Store):
    """See the module. Nothing is asked of the bucket until it is used.

    Args:
        bucket: its name.
        prefix: of all keys; empty: none.
        config: obstore's settings for S3 (endpoint, region, access_key_id …).
        request_s: deadline of one request, in seconds.
        retries: how often a request that failed is sent again.
    """

    is_shared = True

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        request_s: float = REQUEST_DEADLINE_S,
        retries: int = MAX_RETRIES,
    ) -> None:
        self.name = f"s3://{bucket}/{prefix}".rstrip("/")
        settings = dict(config or {})
        plain = str(settings.get("endpoint", "")).startswith("http://")
        self._bucket: Any = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": plain,
                "timeout": timedelta(seconds=request_s),
                "connect_timeout": timedelta(seconds=min(request_s, CONNECT_DEADLINE_S)),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=RETRY_DEADLINE_S)},
            **settings,
        )
        self._is_checked = False

    def put(self, digest: str, source: Path) -> None:
        """Upload the file; a large one in parts."""
        with self._usable():
            obstore.put(self._bucket, _blob(digest), source, chunk_size=PIECE_BYTES)

    def put_bytes(self, digest: str, content: bytes) -> None:
        """Upload the bytes."""
        with self._usable():
            obstore.put(self._bucket, _blob(digest), content)

    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Ask for the size."""
        with self._usable():
            try:
                return int(obstore.head(self._bucket, _blob(digest))["size"]) == stored_bytes
            except FileNotFoundError:
                return False

    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Download into `scratch`, piece by piece."""
        target = scratch / digest
        with self._usable(), self._missing(digest):
            size = int(obstore.head(self._bucket, _blob(digest))["size"])
            if size != stored_bytes:
                raise SnapshotCorrupt(digest, f"{self.name} has {size} bytes of {stored_bytes}")
            with open(target, "wb") as file:
                for begin in range(0, size, PIECE_BYTES):
                    end = min(begin + PIECE_BYTES, size)
                    file.write(obstore.get_range(self._bucket, _blob(digest), start=begin, end=end))
        return target

    def read(self, digest: str, limit: int) -> bytes:
        """Download a small blob."""
        with self._usable(), self._missing(digest):
            return self._small(_blob(digest), limit)[0]

    def head(self, owner: str) -> Head | None:
        """Download an owner's head."""
        return self._head(owner)[0]

    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Change an owner's head, on the condition that nobody else has since it was read."""
        self._check_conditions()
        for _ in range(HEAD_ATTEMPTS):
            old, version = self._head(owner)
            head = advanced(owner, old, epoch, manifest, keep)
            with self._usable(), contextlib.suppress(*_LOST):
                obstore.put(self._bucket, _head(owner), head_bytes(head), mode=version or "create")
                return head
        raise StoreUnavailable(self.name, f"others keep writing the head of {owner}")

    def forget(self, owner: str) -> None:
        """Remove an owner's head."""
        self._delete(_head(owner))

    def owners(self) -> Iterator[str]:
        """List the heads."""
        with self._usable():
            for page in obstore.list(self._bucket, "heads"):
                for item in page:
                    yield str(item["path"]).rpartition("/")[2].removesuffix(".json")

    def blobs(self) -> Iterator[Stored]:
        """List the blobs."""
        with self._usable():
            for page in obstore.list(self._bucket, "blobs"):
                for item in page:
                    with contextlib.suppress(SnapshotCorrupt):  # what is not ours stays
                        yield _stored(item)

    def remove(self, digest: str, before_ms: int) -> bool:
        """Remove a blob unless it has been written since."""
        with self._usable():
            try:
                found = obstore.head(self._bucket, _blob(digest))
            except FileNotFoundError:
                return False
            if _written_ms(found) >= before_ms:
                return False
        self._delete(_blob(digest))
        return True

    def sweep(self, before_ms: int) -> int:
        """An upload appears whole or not at all: nothing is ever half written here."""
        return 0

    def _head(self, owner: str) -> tuple[Head | None, Any]:
        """Return the head, and what the next write is conditional on."""
        with self._usable():
            try:
                raw, version = self._small(_head(owner), MAX_HEAD_BYTES)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):  # that is not an owner without snapshots
                    raise
                return None, None
        return parse_head(owner, raw), version

    def _small(self, key: str, limit: int) -> tuple[bytes, Any]:
        got = obstore.get(self._bucket, key)
        version = {word: value for word in ("e_tag", "version") if (value := got.meta.get(word))}
        content = bytearray()
        for piece in got.stream():
            content += piece
            if len(content) > limit:
                break
        return bytes(content[: limit + 1]), version

    def _delete(self, key: str) -> None:
        with self._usable(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._bucket, key)

    def _check_conditions(self) -> None:
        """Find out once whether the bucket keeps to conditions.

        Raises:
            StoreUnavailable: it does not.
        """
        if self._is_checked:
            return
        key = f"probes/{secrets.token_hex(16)}"
        with self._usable():
            first = obstore.put(self._bucket, key, b"first", mode="create")
            stale: Any = {word: value for word, value in first.items() if value}
            obstore.put(self._bucket, key, b"second")
            for mode in ("create", stale):
                try:
                    obstore.put(self._bucket, key, b"third", mode=mode)
                except _LOST:
                    continue
                raise StoreUnavailable(self.name, "it ignores conditional writes: two nodes could both win")
        self._delete(key)
        self._is_checked = True

    @contextlib.contextmanager
    def _missing(self, digest: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise
            raise SnapshotMissing(digest, f"it is not in {self.name}") from None

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except _LOST:
            raise
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and _NO_BUCKET not in str(error):
                raise
            raise StoreUnavailable(self.name, str(error).partition("\n")[0][:300]) from error


def _blob(digest: str) -> str:
    return f"blobs/{check_digest(digest, 'of a blob')[:2]}/{digest}"


def _head(owner: str) -> str:
    return f"heads/{check_name(owner)}.json"


def _written_ms(item: Any) -> int:
    return int(item["last_modified"].timestamp() * 1000)


def _stored(item: Any) -> Stored:
    digest = check_digest(str(item["path"]).rpartition("/")[2], "of a blob")
    return Stored(digest=digest, stored_bytes=int(item["size"]), written_ms=_written_ms(item))
