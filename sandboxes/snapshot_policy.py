"""What the settings say of snapshots: where they are kept, and what of a workspace.

A URL means a store:

    (empty)                            this node's directory
    file:/path                         a directory, such as one that all nodes mount
    s3://BUCKET/PREFIX?endpoint=…      an S3-compatible bucket, with a copy on this node; also region=…
    redis://HOST:PORT/DB?prefix=…      Redis, for small workspaces, with a copy on this node; rediss:// for
    TLS none:                              nothing is kept, so nothing sleeps

Credentials are never part of it. They are variables of the node's environment (AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; REDIS_USERNAME, REDIS_PASSWORD), or lines NAME=VALUE of a file that
only its owner can read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sandboxes.errors import InvalidSpec

FIELD: Final = "snapshots.url"
DEFAULT_KEEP: Final = 3
DEFAULT_PREFIX: Final = "skylease"
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("endpoint", "region"),
    "redis": ("prefix",),
    "rediss": ("prefix",),
}
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_/-][A-Za-z0-9._/-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """See the module.

    `credentials` is file:/path or empty (the environment). `excludes` are paths within every workspace that
    are left out, `max_bytes` is what a workspace may hold to be kept (0: no limit), `keep` how many snapshots
    of one owner stay restorable.
    """

    url: str = ""
    credentials: str = ""
    excludes: tuple[str, ...] = ()
    max_bytes: int = 0
    keep: int = DEFAULT_KEEP


def check_url(url: str) -> str:
    """Return a URL that means a store.

    Raises:
        InvalidSpec: it means none, or has credentials in it (which are not repeated).
    """
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise InvalidSpec(FIELD, "credentials do not belong into the URL: use snapshots.credentials")
    if url in ("", "none:") or _is_directory(parts):
        return url
    if parts.scheme not in _OPTIONS:
        known = "empty, file:/path, s3://bucket/prefix, redis://host:port/db or none:"
        raise InvalidSpec(FIELD, f"{url!r} is no store: {known}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options.keys() - set(_OPTIONS[parts.scheme]):
        known = ", ".join(_OPTIONS[parts.scheme])
        raise InvalidSpec(FIELD, f"{parts.scheme}:// has no option {name!r}: there is {known}")
    prefix = parts.path.strip("/") if parts.scheme == "s3" else options.get("prefix", DEFAULT_PREFIX)
    if parts.scheme == "s3" and not _BUCKET.fullmatch(parts.netloc):
        raise InvalidSpec(FIELD, f"{parts.netloc!r} is no bucket")
    if (prefix or parts.scheme != "s3") and (not _PREFIX.fullmatch(prefix) or ".." in prefix):
        raise InvalidSpec(FIELD, f"{prefix!r} is no prefix")
    return url


def _is_directory(parts: SplitResult) -> bool:
    return parts.scheme == "file" and parts.path.startswith("/") and not (parts.netloc or parts.query)
