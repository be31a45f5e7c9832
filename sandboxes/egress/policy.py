"""What a sandbox may reach: frozen data, checked when it is made, and one question: `Egress.allows`.

Pure and light: every holder of a `SandboxSpec` imports this. A policy names secrets, it never holds one.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from sandboxes.errors import InvalidSpec

MIB: Final = 1 << 20
TLS_PORT: Final = 443
MAX_HOSTS: Final = 256
MAX_HOST_CHARS: Final = 253  # RFC 1035, section 2.3.4, in text form
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")  # RFC 1123; "_" is met in practice
_NUMBER: Final = re.compile(
    r"[0-9]+|0x[0-9a-f]*"
)  # as a last label it makes an IPv4 address: WHATWG URL, 3.5
_SECRET: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62})")
_TOKEN: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")  # RFC 9110, section 5.6.2, in lower case
_PREFIX: Final = re.compile(r"[\x20-\x7e]{0,64}")
# What frames a message or names its target is never a credential.
_NOT_A_CREDENTIAL: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade", "expect"}
)


def parse_host(text: str) -> str:
    """Return a host name in its one canonical form: lower case, at least two labels, no dot at the end.

    Names only: every way to write an address (1.2.3.4, 0x7f000001, 2130706433, [::1]) is refused, and so are
    characters beyond ASCII (write xn--…), user names, ports and percent signs.

    >>> parse_host("API.Example.com")
    'api.example.com'

    Raises:
        ValueError: it is no such name.
    """
    host = text.lower()
    labels = host.split(".")
    if not text.isascii() or len(host) > MAX_HOST_CHARS or len(labels) < 2:
        raise ValueError(f"{text[:80]!r} is not a full host name")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:80]!r} is not a host name")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{text[:80]!r} is an address, and only names can be allowed")
    return host


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A header that the proxy adds on the way out: `prefix`, then the secret that has this name on the node.

    Whatever the sandbox itself sends in that header is dropped.
    """

    secret: str
    header: str = "authorization"
    prefix: str = "Bearer "

    def __post_init__(self) -> None:
        if not _SECRET.fullmatch(self.secret):
            raise InvalidSpec("egress.credential.secret", f"{self.secret!r} is not 1-63 of a-z, 0-9, _ and -")
        if not _TOKEN.fullmatch(self.header) or self.header in _NOT_A_CREDENTIAL:
            raise InvalidSpec("egress.credential.header", f"{self.header!r} cannot carry a credential")
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSpec("egress.credential.prefix", "it must be at most 64 printable ASCII characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedHost:
    """One entry of the list: a host name, or `*.example.com` for all below example.com (not itself)."""

    host: str
    ports: tuple[int, ...] = (TLS_PORT,)
    credential: Credential | None = None

    def __post_init__(self) -> None:
        name = self.host.removeprefix("*.")
        try:
            if parse_host(name) != name:
                raise ValueError(f"{self.host!r} must be in lower case")
        except ValueError as error:
            raise InvalidSpec("egress.hosts", str(error)) from None
        if not self.ports or not all(0 < port < 1 << 16 for port in self.ports):
            raise InvalidSpec("egress.hosts", f"{self.host}: the ports {self.ports!r} are not all 1-65535")
        if self.credential is not None and name != self.host:
            raise InvalidSpec("egress.hosts", f"{self.host}: a credential needs one host, not a pattern")

    def matches(self, host: str, port: int) -> bool:
        """Whether this entry allows a host in canonical form at a port."""
        if port not in self.ports:
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """All that a sandbox may reach, and how much; everything else is refused. Only TLS leaves the node."""

    hosts: tuple[AllowedHost, ...]
    max_connections: int = 16  # at once; more wait
    connections_per_s: float = 10.0  # in the long run
    max_sent_bytes: int = 64 * MIB  # of one connection, towards the host
    max_received_bytes: int = 1024 * MIB  # of one connection, towards the sandbox
    connect_timeout_s: float = 10.0  # name, TCP and TLS together
    idle_timeout_s: float = 120.0  # no byte in either direction; a model may think for long
    total_timeout_s: float = 900.0  # of one connection

    def __post_init__(self) -> None:
        if not 0 < len(self.hosts) <= MAX_HOSTS:
            raise InvalidSpec("egress.hosts", f"{len(self.hosts)} entries are not 1-{MAX_HOSTS}")
        for name in self.__slots__[1:]:
            if not getattr(self, name) > 0:
                raise InvalidSpec(f"egress.{name}", "must be above 0")

    def allows(self, host: str, port: int) -> AllowedHost | None:
        """Return the entry that allows a host in canonical form at a port, an exact one first; else None."""
        found = [entry for entry in self.hosts if entry.matches(host, port)]
        return min(found, key=lambda entry: entry.host.startswith("*."), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the policy that `to_json` described.

        Raises:
            InvalidSpec, TypeError, KeyError: it describes none.
        """
        hosts = tuple(
            AllowedHost(
                host=entry["host"],
                ports=tuple(entry["ports"]),
                credential=Credential(**entry["credential"]) if entry["credential"] else None,
            )
            for entry in stored["hosts"]
        )
        return cls(**{**stored, "hosts": hosts})
