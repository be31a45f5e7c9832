"""Who a DID is: documents from a did:plc directory or a did:web host, cached and bounded."""

import asyncio
import ipaddress
import json
import re
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import unquote

from firehose.clock import now_ms
from firehose.errors import DirectoryUnavailable, HttpError
from firehose.http import HttpResponse, HttpSession
from firehose.syntax import parse_did

Document = dict[str, Any]

HIT_TTL_MS: Final = 24 * 3600 * 1000  # a document is believed for a day: indigo's identity cache
MISS_TTL_MS: Final = 2 * 60 * 1000  # "no such DID" is believed for two minutes: same
OUTAGE_TTL_MS: Final = 1000  # a directory that did not answer is left alone for a second, per DID
MAX_CACHED_DIDS: Final = 50_000
WEB_REQUESTS: Final = 60  # ours: to one did:web host …
WEB_WINDOW_MS: Final = 60_000  # … within this time: whoever names it in a million DIDs shall not aim us at it
MAX_WEB_HOSTS: Final = 10_000
MAX_DOCUMENT_BYTES: Final = 256 * 1024
RESOLVE_TIMEOUT_S: Final = 10.0
_HOST: Final = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")


class DidResolver(Protocol):
    """What a verifier's shell asks for documents."""

    async def resolve(self, did: str) -> Document | None:
        """The document, None if there is no such DID. Raises: DirectoryUnavailable: nobody could say."""

    def purge(self, did: str) -> None:
        """Something may have changed about this DID: forget what is cached, the next `resolve` asks again."""

    def refresh(self, did: str) -> None:
        """The document was found wrong: the next `resolve` must get a newer one, past every cache."""


class StaticDirectory:
    """Documents given beforehand: for replay and tests. A list holds what each refresh would return."""

    def __init__(self, documents: Mapping[str, Document | Sequence[Document]]) -> None:
        """Take the documents; a `refresh` moves on to the next one of a DID's list, and stays on the last."""
        self._documents = {
            did: [value] if isinstance(value, dict) else list(value) for did, value in documents.items()
        }
        self._position: dict[str, int] = {}

    async def resolve(self, did: str) -> Document | None:
        """The current document of this DID, None if it has none."""
        versions = self._documents.get(did)
        return versions[self._position.get(did, 0)] if versions else None

    def purge(self, did: str) -> None:
        """Nothing is cached here: the document stays until somebody has a reason to doubt it (`refresh`)."""

    def refresh(self, did: str) -> None:
        """Move on to the next document of this DID, if there is one."""
        last = len(self._documents.get(did, ())) - 1
        self._position[did] = max(0, min(self._position.get(did, 0) + 1, last))


class DidDirectory:
    """Resolver over HTTP: did:plc at one directory, did:web at its own host."""

    def __init__(
        self,
        base_url: str,
        *,
        clock: Callable[[], int] = now_ms,
        timeout_s: float = RESOLVE_TIMEOUT_S,
    ) -> None:
        """Take the directory's address; nothing is opened before the first `resolve`.

        Args:
            base_url: of the did:plc directory, "https://plc.directory" or an embedded network's url.
            clock: epoch milliseconds, for the age of what is cached.
            timeout_s: seconds for one resolution.

        Raises:
            HttpAddressInvalid: not an http(s) URL.
        """
        self._plc = HttpSession(base_url, timeout_s=timeout_s)
        self._clock = clock
        self._timeout_s = timeout_s
        # On a developer's machine did:web hosts and PDSs live on the loopback; elsewhere that is an attack.
        self._is_local = is_loopback(self._plc.host)
        self._cache: OrderedDict[str, tuple[int, Document | str | None]] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._web_requests: OrderedDict[str, deque[int]] = OrderedDict()  # by host, when

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the directory."""
        await self._plc.close()

    def purge(self, did: str) -> None:
        """Forget what is cached about this DID."""
        self._cache.pop(did, None)

    def refresh(self, did: str) -> None:
        """Forget what is cached about this DID: there is no cache behind ours to get past."""
        self.purge(did)

    async def resolve(self, did: str) -> Document | None:
        """The DID's document, from the cache if it is fresh; None if there is no such DID (or no longer).

        Raises:
            SyntaxInvalid: not a DID.
            DirectoryUnavailable: nobody could say: no answer, a broken answer, or a method that is not
                supported.
        """
        parse_did(did)
        lock = self._locks.setdefault(did, asyncio.Lock())
        try:
            async with lock:  # a burst of commits of one new account asks once
                return await self._resolve(did)
        finally:
            if not lock.locked():
                self._locks.pop(did, None)

    async def _resolve(self, did: str) -> Document | None:
        cached = self._cache.get(did)
        now = self._clock()
        if cached is not None and now < cached[0]:
            self._cache.move_to_end(did)
            if isinstance(cached[1], str):
                raise DirectoryUnavailable(did, cached[1])
            return cached[1]
        try:
            document = await self._fetch(did)
        except DirectoryUnavailable as error:
            self._remember(did, now + OUTAGE_TTL_MS, error.reason)
            raise
        self._remember(did, now + (MISS_TTL_MS if document is None else HIT_TTL_MS), document)
        return document

    def _remember(self, did: str, until_ms: int, answer: Document | str | None) -> None:
        self._cache[did] = (until_ms, answer)
        self._cache.move_to_end(did)
        while len(self._cache) > MAX_CACHED_DIDS:
            self._cache.popitem(last=False)

    async def _fetch(self, did: str) -> Document | None:
        try:
            if did.startswith("did:plc:"):
                response = await self._plc.request("GET", f"/{did}", max_body_bytes=MAX_DOCUMENT_BYTES)
            elif did.startswith("did:web:"):
                response = await self._fetch_web(did)
            else:
                raise DirectoryUnavailable(did, "only did:plc and did:web are supported")
        except HttpError as error:
            raise DirectoryUnavailable(did, str(error)) from error
        if response.status in (404, 410):
            return None
        if response.status != 200:
            raise DirectoryUnavailable(did, f"the directory answered {response.status}")
        return _parse_document(did, response.body)

    async def _fetch_web(self, did: str) -> HttpResponse:
        host, port = _web_host(did, allow_port=self._is_local)
        self._count_web(did, host)
        address = await self._public_address(did, host, port)
        scheme = "http" if self._is_local and is_loopback(host) else "https"
        url = f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
        async with HttpSession(url, timeout_s=self._timeout_s, connect_to=address) as session:
            return await session.request("GET", "/.well-known/did.json", max_body_bytes=MAX_DOCUMENT_BYTES)

    def _count_web(self, did: str, host: str) -> None:
        """Raises: DirectoryUnavailable: this host was asked too often lately."""
        now = self._clock()
        recent = self._web_requests.setdefault(host, deque(maxlen=WEB_REQUESTS))
        self._web_requests.move_to_end(host)
        while len(self._web_requests) > MAX_WEB_HOSTS:
            self._web_requests.popitem(last=False)
        if len(recent) == WEB_REQUESTS and now - recent[0] < WEB_WINDOW_MS:
            raise DirectoryUnavailable(did, f"{host} was asked {WEB_REQUESTS} times in a minute")
        recent.append(now)

    async def _public_address(self, did: str, host: str, port: int | None) -> str:
        """The address to connect to, checked; asking again later could give another (DNS rebinding)."""
        try:
            return await public_address(
                host, port or 443, allow_loopback=self._is_local, timeout_s=self._timeout_s
            )
        except OSError as error:
            raise DirectoryUnavailable(did, str(error)) from None


def _parse_document(did: str, body: bytes) -> Document:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise DirectoryUnavailable(did, "the document is not JSON") from None
    if not isinstance(document, dict) or document.get("id") != did:
        raise DirectoryUnavailable(did, "the document is not about this DID")
    return document


def _web_host(did: str, *, allow_port: bool) -> tuple[str, int | None]:
    """Host and port of a did:web; no paths and, except on a developer's machine, no ports: specs/did."""
    rest = did.removeprefix("did:web:")
    if ":" in rest:
        raise DirectoryUnavailable(did, "did:web with a path is not supported")
    host, _, port_text = unquote(rest).partition(":")
    if not _HOST.match(host) or (port_text and not (allow_port and port_text.isdecimal())):
        raise DirectoryUnavailable(did, "not a did:web host name")
    return host, int(port_text) if port_text else None


async def public_address(host: str, port: int, *, allow_loopback: bool, timeout_s: float) -> str:
    """An address of `host` that a stranger may name: a global one, or the loopback where that is allowed.

    Raises: OSError: it has none, or nobody could say in `timeout_s` seconds.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise OSError(f"no address for {host}: {error}") from None
    for *_, endpoint in found:
        address = ipaddress.ip_address(str(endpoint[0]).partition("%")[0])
        if address.is_global or (allow_loopback and address.is_loopback):
            return str(address)
    raise OSError(f"{host} has no public address: refused")


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine, by its name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
