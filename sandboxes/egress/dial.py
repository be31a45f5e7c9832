"""Opens connections to hosts: looks the name up itself, refuses what is not public, connects to that address.

The name is looked up once and the connection goes to the address that was judged, so a name that changes its
mind in between (DNS rebinding) gains nothing.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sandboxes.egress.addresses import refusal
from sandboxes.egress.verdict import Refusal, Verdict

Resolver = Callable[[str, int], Awaitable[list[str]]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MAX_ADDRESSES: Final = 4  # tried, in the order of the answer
BUFFER_BYTES: Final = 64 << 10  # read ahead of what the other side takes
# Threads of their own: names that nobody answers for must not hold up the node's other work.
_RESOLVING: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="egress-resolver")


async def system_resolver(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the node's own resolver knows them."""
    # With the dot, no search domain of the node is tried.
    ask = functools.partial(socket.getaddrinfo, f"{host}.", port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVING, ask)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def own_resolver(host: str, port: int) -> list[str]:
    """Return the addresses of a host that the operator named: short names and addresses will do."""
    ask = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVING, ask)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def strict_tls() -> ssl.SSLContext:
    """Return how the proxy itself speaks TLS: certificates and names checked, HTTP/1.1 only."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A server of the operator's own choice, wherever it is, such as a model on the loopback of the node."""

    host: str
    port: int
    encrypt: bool

    @property
    def authority(self) -> str:
        """What it is called in a request."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.encrypt else 80) else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """How a node reaches hosts. One per node; nothing of it comes from a lease.

    Args:
        resolver: looks a name up.
        origins: what is behind a name that sandboxes use for a server of the operator's. Requests for it go
            there and nowhere else; its address is not judged.
        own_resolver: looks the host of an origin up.
        tls: for the connections that the proxy itself encrypts.
        allow_private: connect to any address. For tests on one machine; it takes away the protection of
            everything that listens on the node and beside it.
    """

    resolver: Resolver = system_resolver
    origins: Mapping[str, Origin] = field(default_factory=dict)
    own_resolver: Resolver = own_resolver
    tls: ssl.SSLContext = field(default_factory=strict_tls)
    allow_private: bool = False

    async def open(self, host: str, port: int, *, encrypt: bool) -> Streams:
        """Return a connection to a host, encrypted by us or left to the client.

        Raises:
            Refusal: the name is unknown or leads to an address that is refused, or nobody answers.
        """
        origin = self.origins.get(host)
        if origin is None:
            return await self._connect(await self._addresses(host, port), host, port, encrypt=encrypt)
        if not encrypt:
            line = f"{host} is asked by http://{host}/, never through a tunnel"
            raise Refusal(403, Verdict.HOST_NOT_ALLOWED, line)
        try:
            found = await self.own_resolver(origin.host, origin.port)
        except (OSError, UnicodeError):
            raise Refusal(502, Verdict.NO_SUCH_HOST, f"the node cannot find what is behind {host}") from None
        return await self._connect(found, origin.host, origin.port, encrypt=origin.encrypt)

    async def _connect(self, addresses: list[str], host: str, port: int, *, encrypt: bool) -> Streams:
        reason = "it has no address"
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await asyncio.open_connection(
                    address,
                    port,
                    limit=BUFFER_BYTES,
                    ssl=self.tls if encrypt else None,
                    server_hostname=host if encrypt else None,
                )
            except ssl.SSLCertVerificationError as error:
                raise Refusal(502, Verdict.UNREACHABLE, f"{host}: {error.verify_message}") from None
            except OSError as error:
                reason = error.strerror or str(error)
        raise Refusal(502, Verdict.UNREACHABLE, f"{host}:{port} cannot be reached: {reason}")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = await self.resolver(host, port)
        except (OSError, UnicodeError):
            raise Refusal(502, Verdict.NO_SUCH_HOST, f"there is no host {host}") from None
        for address in found:
            reason = None if self.allow_private else refusal(address)
            if reason is not None:  # one bad address is enough: such a name is not to be trusted
                line = f"{host} leads to an address that is refused ({reason})"
                raise Refusal(403, Verdict.ADDRESS_REFUSED, line)
        return found
