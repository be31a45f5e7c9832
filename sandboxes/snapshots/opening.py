"""Opening the store that a URL of a SnapshotPolicy means."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sandboxes.errors import InvalidSpec
from sandboxes.snapshot_policy import DEFAULT_PREFIX, SnapshotPolicy, check_url
from sandboxes.snapshots.errors import SnapshotsOff, StoreUnavailable
from sandboxes.snapshots.local_store import LocalStore
from sandboxes.snapshots.snapshots import Snapshots
from sandboxes.snapshots.store import MAX_KEPT, Head, Store, Stored
from sandboxes.snapshots.two_level_store import TwoLevelStore

MAX_CREDENTIALS_BYTES: Final = 64 << 10
DEFAULT_REGION: Final = "us-east-1"
_AWS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
}
_REDIS: Final = {"REDIS_USERNAME": "username", "REDIS_PASSWORD": "password"}


class NoStore(Store):
    """Keeps nothing, and says so."""

    keeps = False

    def put(self, digest: str, source: Path) -> None:
        """Raise SnapshotsOff."""
        self._off()

    def put_bytes(self, digest: str, content: bytes) -> None:
        """Raise SnapshotsOff."""
        self._off()

    def holds(self, digest: str, stored_bytes: int) -> bool:
        """Return False."""
        return False

    def fetch(self, digest: str, stored_bytes: int, scratch: Path) -> Path:
        """Raise SnapshotsOff."""
        self._off()

    def read(self, digest: str, limit: int) -> bytes:
        """Raise SnapshotsOff."""
        self._off()

    def head(self, owner: str) -> Head | None:
        """Return None."""
        return None

    def advance(self, owner: str, epoch: int, manifest: str, keep: int = MAX_KEPT) -> Head:
        """Raise SnapshotsOff."""
        self._off()

    def forget(self, owner: str) -> None:
        """Do nothing: there is nothing."""

    def owners(self) -> Iterator[str]:
        """Yield nobody."""
        return iter(())

    def blobs(self) -> Iterator[Stored]:
        """Yield nothing."""
        return iter(())

    def remove(self, digest: str, before_ms: int) -> bool:
        """Return False."""
        return False

    def sweep(self, before_ms: int) -> int:
        """Return 0."""
        return 0

    def _off(self) -> NoReturn:
        raise SnapshotsOff()


def open_snapshots(
    policy: SnapshotPolicy,
    root: Path,
    *,
    clock: Callable[[], int] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Snapshots:
    """Return the snapshots of a node whose copies and scratch files are in the directory `root`.

    Raises:
        InvalidSpec, StoreUnavailable: as `open_store`.
    """
    store = open_store(policy.url, root, credentials=policy.credentials)
    return Snapshots(
        store, root / "scratch", clock=clock, max_bytes=policy.max_bytes, keep=policy.keep, watch=watch
    )


def open_store(url: str, root: Path, *, credentials: str = "") -> Store:
    """Return the store that a URL means; a server is not talked to before the store is used.

    Args:
        url: see the module.
        root: directory of this node for what is kept here; copies of what a server has are in
            `root/copies`.
        credentials: file:/path, mode 0600; empty: the environment.

    Raises:
        InvalidSpec: the URL means no store, or credentials are in it.
        StoreUnavailable: the client library is missing, or the credentials cannot be read.
    """
    parts = urlsplit(check_url(url))
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "":
            return LocalStore(root / "store")
        case "file":
            return LocalStore(Path(parts.path))
        case "none":
            return NoStore()
        case "s3":
            far = _bucket(parts, options, _secrets(credentials, _AWS))
        case _:
            far = _redis(parts, options, _secrets(credentials, _REDIS))
    return TwoLevelStore(LocalStore(root / "copies", is_copy=True), far)


def _bucket(parts: SplitResult, options: dict[str, str], secrets: Mapping[str, str]) -> Store:
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        options.setdefault("region", DEFAULT_REGION)
    try:
        from sandboxes.snapshots.bucket_store import BucketStore
    except ImportError:
        raise StoreUnavailable("s3://", "obstore is not installed: pip install 'skylease[s3]'") from None
    return BucketStore(parts.netloc, parts.path.strip("/"), config={**options, **secrets})


def _redis(parts: SplitResult, options: dict[str, str], secrets: Mapping[str, str]) -> Store:
    try:
        from sandboxes.snapshots.redis_store import RedisStore
    except ImportError:
        raise StoreUnavailable("redis://", "redis is not installed: pip install 'skylease[redis]'") from None
    return RedisStore(
        parts._replace(query="").geturl(),
        options.get("prefix", DEFAULT_PREFIX),
        username=secrets.get("username"),
        password=secrets.get("password"),
    )


def _secrets(credentials: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return what these names stand for, in the file or else the environment."""
    found: Mapping[str, str] = os.environ
    if credentials:
        kind, _, path = credentials.partition(":")
        if kind != "file" or not path:
            raise InvalidSpec("snapshots.credentials", "it is file:/path, of mode 0600, or empty")
        found = _read_credentials(Path(path).expanduser())
    return {inner: found[name] for name, inner in names.items() if found.get(name)}


def _read_credentials(path: Path) -> dict[str, str]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise StoreUnavailable(str(path), "the credentials must be in a file of mode 0600")
            if status.st_uid not in (0, os.geteuid()):
                raise StoreUnavailable(str(path), "the file with the credentials belongs to somebody else")
            text = file.read(MAX_CREDENTIALS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise StoreUnavailable(str(path), f"the credentials cannot be read ({error.strerror})") from None
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
