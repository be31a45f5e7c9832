"""HTTP/1.1 client with keep-alive, for processes that must stay small: asyncio + httptools, nothing else.

Agents import this: httptools costs 2 ms and 0.3 MB at import, httpx 95 ms and 11 MB, aiohttp 160 ms and 14 MB
(benchmarks/network.py measures it again). Redirects are never followed: a DID directory or a PDS that points
elsewhere is a stranger's wish, not an address.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import httptools

from firehose.errors import HttpAddressInvalid, HttpProtocolError, HttpTimeout, HttpTooLarge, HttpUnreachable

USER_AGENT: Final = "skylease/0.1 (+https://pypi.org/project/skylease)"
MAX_BODY_BYTES: Final = (
    8 * 1024 * 1024
)  # an answer larger than this is refused unless the caller says otherwise
MAX_HEADER_BYTES: Final = 64 * 1024  # all header lines of one answer
CONNECT_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 30.0
SLOW_WINDOW_S: Final = 20.0  # how long an answer may be too slow
MAX_CONNECTIONS: Final = 16  # per session, hence per origin


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """One complete answer; header names are lower case, the last of a repeated header counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpSession:
    """Keep-alive connections to one origin; safe for concurrent requests from one event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
        connect_to: str | None = None,
    ) -> None:
        """Take the origin; nothing is opened before the first request.

        Args:
            base_url: scheme, host and optional port and path prefix, "http://127.0.0.1:2583".
            timeout_s: seconds for one whole request unless the request says otherwise.
            max_connections: requests in flight at once; further ones wait for their turn.
            connect_to: an address that was checked, to connect to instead of asking the name service again.

        Raises:
            HttpAddressInvalid: not an http(s) URL with a host.
        """
        try:
            parts = urlsplit(base_url)
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise HttpAddressInvalid(base_url, str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise HttpAddressInvalid(base_url, "expected http://host[:port] or https://host[:port]")
        self.base_url = base_url.rstrip("/")
        self.host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._host_header = parts.netloc
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_to = connect_to or parts.hostname
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(max_connections)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop every idle connection; a request still in flight ends with its own."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        min_bytes_per_s: int = 0,
    ) -> HttpResponse:
        """Send one request and read the whole answer, whatever its status.

        Args:
            method: "GET" or "POST".
            target: path and query below the base URL, beginning with "/".
            headers: extra headers, added to Host, User-Agent and Content-Length.
            body: the bytes to send; None sends none.
            timeout_s: seconds for connecting, sending and reading together.
            max_body_bytes: the largest answer to read.
            min_bytes_per_s: give up when less comes, for 20 s in a row.

        Raises:
            HttpUnreachable: no connection, or it broke, or is too slow; `is_sent` says whether the server may
                have acted.
            HttpTimeout: no whole answer in time.
            HttpTooLarge: the answer is larger than max_body_bytes.
            HttpProtocolError: what came back is not HTTP.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        head = self._head(method, target, headers or {}, body)
        try:
            async with asyncio.timeout(limit_s), self._slots:
                connection = await self._connection()
                try:
                    response = await connection.exchange(
                        head + (body or b""), max_body_bytes, min_bytes_per_s
                    )
                except BaseException:
                    connection.abort()
                    raise
        except TimeoutError:
            raise HttpTimeout(f"{method} {self.base_url}{target}", limit_s) from None
        if connection.is_reusable and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    async def _connection(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, fresh = await loop.create_connection(
                    lambda: _Connection(self.base_url),
                    self._connect_to,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self.host if self._tls else None,
                )
        except TimeoutError:
            raise HttpUnreachable(self.base_url, f"no connection in {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise HttpUnreachable(self.base_url, error.strerror or str(error)) from error
        return fresh

    def _head(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [
            f"{method} {self._prefix}{target} HTTP/1.1",
            f"Host: {self._host_header}",
            f"User-Agent: {USER_AGENT}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if body is not None or method == "POST":
            lines.append(f"Content-Length: {len(body or b'')}")
        if any("\r" in line or "\n" in line for line in lines):
            raise HttpAddressInvalid(target, "a line break in the path or a header")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._max_body_bytes = 0
        self._is_head_complete = False
        self._is_open = False
        self._speed_check: asyncio.TimerHandle | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may use this connection."""
        return self._is_open and self._answer is None

    def abort(self) -> None:
        """Close without waiting for anything to drain."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, max_body_bytes: int, min_bytes_per_s: int = 0) -> HttpResponse:
        """Send `request` and wait for the whole answer (the caller sets the deadline)."""
        if self._transport is None or not self._is_open:
            raise HttpUnreachable(self._base_url, "the connection was closed", is_sent=False)
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body, self._body_bytes, self._header_bytes = {}, [], 0, 0
        self._max_body_bytes = max_body_bytes
        self._is_head_complete = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        if not min_bytes_per_s:
            return await self._answer
        self._check_speed(min_bytes_per_s, -min_bytes_per_s * SLOW_WINDOW_S)
        try:
            return await self._answer
        finally:
            if self._speed_check is not None:
                self._speed_check.cancel()

    def _check_speed(self, min_bytes_per_s: int, before_bytes: float) -> None:
        """Fail if too little has come since there were `before_bytes`; else look again later."""
        if self._body_bytes - before_bytes < min_bytes_per_s * SLOW_WINDOW_S:
            reason = f"less than {min_bytes_per_s} bytes/s for {SLOW_WINDOW_S:g} s"
            self._fail(HttpUnreachable(self._base_url, reason, is_sent=True))
            return
        self._speed_check = asyncio.get_running_loop().call_later(
            SLOW_WINDOW_S, self._check_speed, min_bytes_per_s, self._body_bytes
        )

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._parser is None:
            self.abort()  # an answer nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._fail(
                cause if isinstance(cause, HttpTooLarge) else HttpProtocolError(self._base_url, str(error))
            )
        except httptools.HttpParserError as error:
            self._fail(HttpProtocolError(self._base_url, str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        if self._answer is None or self._answer.done():
            return
        ends_by_close = not {"content-length", "transfer-encoding"} & self._headers.keys()
        if self._is_head_complete and ends_by_close and error is None:
            self.on_message_complete()
            return
        self._fail(HttpUnreachable(self._base_url, "the connection closed before the answer", is_sent=True))

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise HttpTooLarge(self._base_url, "headers", MAX_HEADER_BYTES)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._is_head_complete = True

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._max_body_bytes:
            raise HttpTooLarge(self._base_url, "body", self._max_body_bytes)
        self._body.append(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # 1xx: the real answer follows on the same connection
            self._headers, self._is_head_complete = {}, False
            return
        if not self._parser.should_keep_alive():
            self._is_open = False
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(HttpResponse(status=status, headers=self._headers, body=b"".join(self._body)))

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        self.abort()
