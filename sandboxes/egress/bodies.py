"""What follows the heads: a request's body on its way out, a response on its way in. No I/O.

llhttp (by httptools) takes the framing apart, strictly: two lengths, a length beside chunks, bare line feeds
and the like are errors. What is sent on is framed anew.
"""

from typing import Any, Final

import httptools

from sandboxes.egress.request import Body, Request

MAX_RESPONSE_HEAD_BYTES: Final = 64 << 10
_NOT_SENT_BACK: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer"}
    | {b"upgrade", b"content-length", b"transfer-encoding", b"alt-svc"}
)


class BadMessage(Exception):
    """The bytes are not the message that they claim to be; the text says why."""


class Upload:
    """The body of a request: bytes as the client sends them in, bytes for the host out.

    It is judged by the very head that was sent on, so both sides agree where it ends. What a client sends
    after the end is never sent on.
    """

    def __init__(self, request: Request) -> None:
        self.complete = False
        self._chunked = request.body is Body.CHUNKED
        self._out = bytearray()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(request.head())

    def feed(self, chunk: bytes) -> bytes:
        """Return what is to be sent on because of these bytes.

        Raises:
            BadMessage: they break the framing that the head announced.
        """
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise BadMessage(f"the body of the request is malformed ({error})") from None
        out, self._out = bytes(self._out), bytearray()
        return out

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol."""
        if not self.complete:
            self._out += _chunk(body) if self._chunked else body

    def on_message_complete(self) -> None:
        """Part of httptools' protocol."""
        if not self.complete and self._chunked:
            self._out += b"0\r\n\r\n"
        self.complete = True


class Download:
    """A response: bytes as the host sends them in, bytes for the client out."""

    def __init__(self, request: Request) -> None:
        self.complete = False
        self.status = 0
        self._bodiless = request.method == "HEAD"
        self._to_1_0 = request.keeps_to_1_0
        self._out = bytearray()
        self._head_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._length: bytes | None = None
        self._ends_by_itself = self._chunked = self._interim = False
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, chunk: bytes) -> bytes:
        """Return what is to be sent to the client because of these bytes.

        Raises:
            BadMessage: they are no response, or it has too large a head.
        """
        try:
            self._parser.feed_data(chunk)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, BadMessage) else None
            if not self.complete:
                raise cause or BadMessage(f"the host's answer is malformed ({error})") from None
        if self.status == 0:
            self._head_bytes += len(chunk)
            if self._head_bytes > MAX_RESPONSE_HEAD_BYTES:
                raise BadMessage(
                    f"the head of the host's answer is larger than {MAX_RESPONSE_HEAD_BYTES} bytes"
                )
        out, self._out = bytes(self._out), bytearray()
        return out

    def end(self) -> bytes:
        """Return what is to be sent to the client now that the host has closed.

        Raises:
            BadMessage: the response is not whole.
        """
        if self.complete:
            return b""
        if self.status == 0 or self._ends_by_itself:
            raise BadMessage("the host closed before the end of its answer")
        self.complete = True
        return b"0\r\n\r\n" if self._chunked else b""

    def on_status(self, status: bytes) -> None:
        """Part of httptools' protocol."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of httptools' protocol."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Part of httptools' protocol."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if status == 101:
            raise BadMessage("the host wants to change the protocol")
        if not self._interim and not self.complete:
            self._answer(status)
        self._headers, self._reason = [], b""

    def on_body(self, body: bytes) -> None:
        """Part of httptools' protocol."""
        if not self.complete:
            self._out += _chunk(body) if self._chunked else body

    def on_message_complete(self) -> None:
        """Part of httptools' protocol."""
        if self._interim or self.complete:
            return
        if self._chunked:
            self._out += b"0\r\n\r\n"
        self.complete = True

    def _answer(self, status: int) -> None:
        """Begin the answer to the client."""
        length = [value for name, value in self._headers if name == b"content-length"]
        empty = self._bodiless or status in (204, 304)
        self._ends_by_itself = bool(length) or any(name == b"transfer-encoding" for name, _ in self._headers)
        self._chunked = not length and not empty and not self._to_1_0
        kept = [(name, value) for name, value in self._headers if name not in _NOT_SENT_BACK]
        kept += [(b"content-length", value) for value in length]
        if self._chunked:
            kept.append((b"transfer-encoding", b"chunked"))
        lines = [b"HTTP/1.1 %d %s" % (status, self._reason)]
        lines += [name + b": " + value for name, value in (*kept, (b"connection", b"close"))]
        self._out += b"\r\n".join(lines) + b"\r\n\r\n"
        self.status = status
        self.complete = self._bodiless


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)
