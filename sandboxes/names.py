"""Names of sandboxes: one name for the directory, the cgroup and everything else, derived once from the
lease's key.
"""

import hashlib
import re
from typing import Final

from sandboxes.errors import InvalidSpec

MAX_NAME_CHARS: Final = 48  # leaves room for prefixes within the 63 of a DNS label and a container name
HASH_CHARS: Final = 16  # hex of SHA-256 of the whole key: 64 bits, so two keys never meet in practice
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def runtime_name(agent_did: str, environment_id: str) -> str:
    """Return the name of the sandbox of a lease: a readable slug and a hash of the whole key.

    >>> runtime_name("did:plc:alice234567", "catan-7")
    'alice234567-catan-7-8fd2596643ef313a'
    """
    key = f"{agent_did}::{environment_id}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:HASH_CHARS]
    agent = agent_did.rsplit(":", 1)[-1]
    slug = "-".join(part for part in (_slug(agent)[:15], _slug(environment_id)[:15].strip("-")) if part)
    return f"{slug}-{digest}" if slug not in ("", "slot") else f"s-{digest}"  # slot-…: warm slots


def check_name(name: str) -> str:
    """Return `name` if it can be a sandbox's name.

    Raises:
        InvalidSpec: it is empty, too long, or has other characters than a-z, 0-9 and inner '-'.
    """
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidSpec("name", f"{name!r} is not 1-{MAX_NAME_CHARS} of a-z, 0-9 and inner '-'")
    return name


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
