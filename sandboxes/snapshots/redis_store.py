"""A store in Redis, for small workspaces.

PREFIX:blob:DIGEST   a hash: `bytes`, and `at`, when they were written (epoch milliseconds, Redis' own clock)
PREFIX:head:OWNER    what an owner's snapshots are; replaced only if it is still the one that was read

Everything is in Redis' memory, so the size is limited. A Redis that throws keys away when it is full is
refused: it would forget snapshots.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from sandboxes.names import check_name
from sandboxes.snapshot_policy import DEFAULT_PREFIX
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotMissing, SnapshotTooLarge, StoreUnavailable
from sandboxes.snapshots.manifest import check_digest
from sandboxes.snapshots.store import MAX_KEPT, Head, Store, Stored, advanced, head_bytes, parse_head

log = logging.getLogger(__name__)

MAX_BLOB_BYTES: Final = 16 << 20
DEADLINE_S: Final = 5.0  # of one command
RETRIES: Final = 2
HEAD_ATTEMPTS: Final = 16
_REPLACE: Final = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
_PUT: Final = """
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'bytes', ARGV[1], 'at', now[1] * 1000 + math.floor(now[2] / 1000))
"""
_REMOVE: Final = """
local at = redis.call('HGET', KEYS[1], 'at')
if not at or tonumber(at) >= tonumber(ARGV[1]) then return 0 end
return redis.call('DEL', KEYS[1])
"""


class RedisStore(Store):
    """See the module. Nothing is asked of the server until the store is used.

    Args:
        url: redis://HOST:PORT/DB or rediss://…, without credentials.
        prefix: of all keys.
        username, password: None: the server wants none.
        max_blob_bytes: what one layer may have at most.
        deadline_s: of one command, in seconds.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        prefix: str = DEFAULT_PREFIX,
        *,
        username: str | None = None,
        password: str | None = None,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.name, self._prefix, self._max_blob_bytes = url, prefix, max_blob_bytes
        self._redis: Any = redis.Redis.from_url(
            url,
            username=username,
            password=password,
            socket_timeout=deadline_s,
            socket_connect_timeout=deadline_s,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        )
        self._is_checked = False

    def put(self, digest: str, source: Path) -> None:
        """Keep a file's bytes, if they are few."""
        size = source.stat().st_size
        if size > self._max_blob_bytes:
            raise SnapshotTooLarge(
                digest, size, self._max_blob_bytes, "Redis is for small workspaces; use an s3:// store"
            )
        self.put_bytes(digest, source.read_bytes())

    def put_bytes(self, digest: str, content: bytes) -> None:
        """Keep these bytes, and when they were written."""
        self._check_server()
        with self._usable():
            self._redis.eval(_PUT, 1, self._blob(digest), content)

    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Ask for the size."""
        with self._usable():
            return bool(self._redis.hstrlen(self._blob(digest), "bytes") == stored_bytes)

    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Write the bytes into `scratch`."""
        content = self._bytes(digest)
        if len(content) != stored_bytes:
            raise SnapshotCorrupt(digest, f"{self.name} has {len(content)} bytes of {stored_bytes}")
        target = scratch / digest
        target.write_bytes(content)
        return target

    def read(self, digest: str, limit: int) -> bytes:
        """Return the bytes; none are ever large."""
        return self._bytes(digest)[: limit + 1]

    def head(self, owner: str) -> Head | None:
        """Return an owner's head."""
        raw = self._raw_head(owner)
        return None if raw is None else parse_head(owner, raw)

    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Change an owner's head if it is still the one that was read."""
        for _ in range(HEAD_ATTEMPTS):
            raw = self._raw_head(owner)
            old = None if raw is None else parse_head(owner, raw)
            head = advanced(owner, old, epoch, manifest, keep)
            with self._usable():
                if self._redis.eval(_REPLACE, 1, self._head(owner), raw or b"", head_bytes(head)):
                    return head
        raise StoreUnavailable(self.name, f"others keep writing the head of {owner}")

    def forget(self, owner: str) -> None:
        """Remove an owner's head."""
        with self._usable():
            self._redis.delete(self._head(owner))

    def owners(self) -> Iterator[str]:
        """Walk through the heads."""
        with self._usable():
            for key in self._redis.scan_iter(f"{self._prefix}:head:*", count=1000):
                yield key.decode().rpartition(":")[2]

    def blobs(self) -> Iterator[Stored]:
        """Walk through the blobs."""
        with self._usable():
            for key in self._redis.scan_iter(f"{self._prefix}:blob:*", count=1000):
                at = self._redis.hget(key, "at")
                if at is not None:
                    yield Stored(
                        digest=check_digest(key.decode().rpartition(":")[2], "of a blob"),
                        stored_bytes=self._redis.hstrlen(key, "bytes"),
                        written_ms=int(at),
                    )

    def remove(self, digest: str, before_ms: int) -> bool:
        """Remove a blob unless it has been written since."""
        with self._usable():
            return bool(self._redis.eval(_REMOVE, 1, self._blob(digest), before_ms))

    def sweep(self, before_ms: int) -> int:
        """A command is done or not: nothing is ever half written here."""
        return 0

    def _blob(self, digest: str) -> str:
        return f"{self._prefix}:blob:{check_digest(digest, 'of a blob')}"

    def _head(self, owner: str) -> str:
        return f"{self._prefix}:head:{check_name(owner)}"

    def _raw_head(self, owner: str) -> bytes | None:
        with self._usable():
            raw: bytes | None = self._redis.get(self._head(owner))
            return raw

    def _bytes(self, digest: str) -> bytes:
        with self._usable():
            content: bytes | None = self._redis.hget(self._blob(digest), "bytes")
        if content is None:
            raise SnapshotMissing(digest, f"it is not in {self.name}")
        return content

    def _check_server(self) -> None:
        """Find out once whether the server keeps what it is given, if it lets us ask.

        Raises:
            StoreUnavailable: it throws keys away when it is full.
        """
        if self._is_checked:
            return
        with self._usable():
            try:
                said = self._redis.config_get("maxmemory*", "save", "appendonly")
            except redis.ResponseError:  # a hosted one, often
                said = {}
        if said.get("maxmemory-policy", "").startswith("allkeys-"):
            raise StoreUnavailable(
                self.name, f"it forgets ({said['maxmemory-policy']}): set maxmemory-policy noeviction"
            )
        if said and not said.get("save") and said.get("appendonly") == "no":
            log.warning("this Redis forgets all snapshots when it ends", extra={"store": self.name})
        self._is_checked = True

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailable(self.name, str(error).partition("\n")[0][:300]) from error
