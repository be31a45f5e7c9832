"""What the names of secrets in a policy stand for. Read on the node at each use: a new key needs no restart.

A secret is a variable of the node's environment (`env:NAME`) or a file that only its owner can read
(`file:/path`, mode 0600). It is bound to hosts here as well, so that no policy can send it elsewhere.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.errors import InvalidSpec

MAX_SECRET_BYTES: Final = 8 << 10
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")  # as a header may carry it


class SecretMissing(Exception):
    """A secret cannot be had; the text says which and why, and never anything of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where a secret is, and the hosts that may get it."""

    source: str
    hosts: frozenset[str]

    def __post_init__(self) -> None:
        kind, colon, where = self.source.partition(":")
        if kind not in ("env", "file") or not colon or not where:
            raise InvalidSpec(
                "egress.secrets", "a secret is named env:VARIABLE or file:/path, never written down"
            )


class Secrets:
    """The secrets of a node, by name."""

    def __init__(self, known: Mapping[str, Secret]) -> None:
        self._known = dict(known)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._known))})"

    def read(self, name: str, host: str) -> str:
        """Return a secret for a host.

        Raises:
            SecretMissing: it is not known, not for this host, or cannot be read safely.
        """
        secret = self._known.get(name)
        if secret is None or host not in secret.hosts:
            raise SecretMissing(f"the node has no secret {name} for {host}")
        kind, _, where = secret.source.partition(":")
        value = os.environ.get(where, "") if kind == "env" else _read_file(name, Path(where).expanduser())
        if not _VALUE.fullmatch(value.strip()):
            raise SecretMissing(f"the secret {name} is empty, or nothing that a header can carry")
        return value.strip()


def _read_file(name: str, path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise SecretMissing(f"the file of the secret {name} must be a file of mode 0600")
            if found.st_uid not in (0, os.geteuid()):
                raise SecretMissing(f"the file of the secret {name} belongs to somebody else")
            return file.read(MAX_SECRET_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise SecretMissing(f"the file of the secret {name} cannot be read ({error.strerror})") from None
