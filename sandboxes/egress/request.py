"""Reads the head of the one request that a connection through the proxy carries. Pure and strict.

Two forms are taken: `CONNECT host:port` for a tunnel, and `METHOD http://host/path` for a request that the
proxy sends on over TLS. What goes on is written anew from what was understood, never copied, so nobody
behind the proxy can read another message out of it than we did (RFC 9112, section 11.2).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandboxes.egress.policy import TLS_PORT, parse_host

MAX_HEAD_BYTES: Final = 32 << 10
MAX_HEADERS: Final = 100
METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
)  # TRACE tells headers
END_OF_HEAD: Final = b"\r\n\r\n"
_LINE: Final = re.compile(r"([A-Z]{1,16}) ([\x21-\x7e]{1,16384}) HTTP/1\.([01])")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\t\x80-\xff]*")
_URL: Final = re.compile(r"https?://([^/?#]+)(/[^#]*|\?[^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"([^:@\[\]]+)(?::([0-9]{1,5}))?")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
# Said between two neighbours only (RFC 9110, section 7.6.1), or written anew by us.
_NOT_SENT_ON: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade"}
    | {"host", "content-length", "transfer-encoding", "expect"}
)


class BadRequest(Exception):
    """The request is refused unread: `status` is an HTTP status, the text one line for whoever sent it."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(status, line)
        self.status, self.line = status, line


class Body(StrEnum):
    """How long a request's body is said to be."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for. `tunnel`: CONNECT, of which only host and port count."""

    tunnel: bool
    method: str
    host: str
    port: int
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # without what is written anew; names in lower case
    body: Body = Body.NONE
    length: int = 0  # of the body, bytes, if it is said
    expects_continue: bool = False
    keeps_to_1_0: bool = False  # the client speaks HTTP/1.0: no chunked answer

    def head(self, added: tuple[tuple[str, str], ...] = (), authority: str | None = None) -> bytes:
        """Return the head that is sent on: these headers, and the `added` ones in place of any of theirs.

        Args:
            added: names in lower case, and values.
            authority: what the host is called; default: as it was asked for.
        """
        ours = {name for name, _ in added}
        if authority is None:
            authority = self.host if self.port == TLS_PORT else f"{self.host}:{self.port}"
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {authority}"]
        lines += [f"{name}: {value}" for name, value in (*self.headers, *added) if name not in ours]
        lines += [f"{name}: {value}" for name, value in added]
        if self.body is Body.LENGTH:
            lines.append(f"content-length: {self.length}")
        elif self.body is Body.CHUNKED:
            lines.append("transfer-encoding: chunked")
        lines += ["connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1")


def parse_request(head: bytes) -> Request:
    """Return the request whose head, up to and with its empty line, this is.

    Raises:
        BadRequest: it is not exactly one of the two forms; says why.
    """
    lines = _lines(head)
    match = _LINE.fullmatch(lines[0])
    if match is None:
        raise BadRequest(400, "the first line is no request of HTTP/1.1")
    method, target, minor = match.groups()
    headers = _headers(lines[1:])
    if method == "CONNECT":
        host, port = _authority(target, None)
        _check_host(headers, host, port)
        return Request(tunnel=True, method=method, host=host, port=port, keeps_to_1_0=minor == "0")
    if method not in METHODS:
        raise BadRequest(405, f"the method {method} is not sent on")
    url = _URL.fullmatch(target)
    if url is None:
        raise BadRequest(400, "this is a proxy: the request must name a whole URL, http://host/path")
    host, port = _authority(url[1], TLS_PORT)
    _check_host(headers, host, port)
    path = url[2] or "/"
    body, length = _framing(headers)
    return Request(
        tunnel=False,
        method=method,
        host=host,
        port=port,
        path=path if path.startswith("/") else f"/{path}",
        headers=tuple((name, value) for name, value in headers if name not in _dropped(headers)),
        body=body,
        length=length,
        expects_continue=_expects_continue(headers),
        keeps_to_1_0=minor == "0",
    )


def _lines(head: bytes) -> list[str]:
    text = head.decode("latin-1")
    if not text.endswith("\r\n\r\n"):
        raise BadRequest(400, "the head of the request does not end")
    lines = text[:-4].split("\r\n")
    if len(lines) > MAX_HEADERS + 1:
        raise BadRequest(431, f"the request has more than {MAX_HEADERS} headers")
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise BadRequest(400, "the head of the request has a line that does not end in CR LF")
    return lines


def _headers(lines: list[str]) -> list[tuple[str, str]]:
    found = []
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest(400, "a header of the request is malformed")
        found.append((name.lower(), value))
    return found


def _all(headers: list[tuple[str, str]], wanted: str) -> list[str]:
    return [value for name, value in headers if name == wanted]


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    """Return host and port. An http URL's port 80, said or not, means TLS at 443: nothing else leaves."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise BadRequest(400, "the host must be a name and a port, with no user, bracket or anything else")
    port = default_port if match[2] is None else int(match[2])
    if default_port is not None and port == 80:
        port = default_port
    if port is None or not 0 < port < 1 << 16:
        raise BadRequest(400, "the port must be said, 1-65535")
    try:
        return parse_host(match[1]), port
    except ValueError as error:
        raise BadRequest(403, str(error)) from None


def _check_host(headers: list[tuple[str, str]], host: str, port: int) -> None:
    """A Host header is not needed, since the target names the host; but it must not name another."""
    said = _all(headers, "host")
    if len(said) > 1:
        raise BadRequest(400, "the request has two Host headers")
    for value in said:
        if _authority(value, TLS_PORT)[0] != host:
            raise BadRequest(400, "the Host header names another host than the request")


def _framing(headers: list[tuple[str, str]]) -> tuple[Body, int]:
    lengths, codings = _all(headers, "content-length"), _all(headers, "transfer-encoding")
    if lengths and codings:
        raise BadRequest(400, "the request has both Content-Length and Transfer-Encoding")
    if codings:
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise BadRequest(501, "the only Transfer-Encoding sent on is chunked")
        return Body.CHUNKED, 0
    if not lengths:
        return Body.NONE, 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadRequest(400, "the Content-Length is not one number")
    return Body.LENGTH, int(lengths[0])


def _expects_continue(headers: list[tuple[str, str]]) -> bool:
    expected = _all(headers, "expect")
    if expected and [value.lower() for value in expected] != ["100-continue"]:
        raise BadRequest(417, "the only expectation understood is 100-continue")
    return bool(expected)


def _dropped(headers: list[tuple[str, str]]) -> frozenset[str]:
    """What is not sent on: the fixed list, and what the Connection header names (RFC 9110, 7.6.1)."""
    named = {part.strip().lower() for value in _all(headers, "connection") for part in value.split(",")}
    return _NOT_SENT_ON | named
