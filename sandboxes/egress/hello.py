"""Reads the server name out of the first bytes of a TLS connection (RFC 8446, section 4.1.2). Pure."""

import struct
from typing import Final

from sandboxes.egress.policy import parse_host

MAX_HELLO_BYTES: Final = 16 << 10  # of the message; the largest met carry post-quantum keys and take 2 KiB
MAX_RECORDS: Final = 16  # that it comes in, and the pieces that they come in; one in practice
UNRECOGNIZED_NAME: Final = bytes((21, 3, 1, 0, 2, 2, 112))  # a fatal alert, RFC 8446, section 6.2
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


class NotAHello(Exception):
    """These bytes do not begin a TLS connection, or not one with exactly one server name."""


def server_name(stream: bytes) -> str | None:
    """Return the server name that a client asks for, in canonical form; None: more bytes are needed.

    Raises:
        NotAHello: this is no TLS, or it names no host, two, or an address.
    """
    message = _message(stream)
    if message is None:
        return None
    try:
        names = [_name(body) for kind, body in _extensions(message) if kind == _SERVER_NAME]
    except (struct.error, IndexError):
        raise NotAHello("its first message is cut short") from None
    if len(names) != 1:
        raise NotAHello("it names no server" if not names else "it names its server twice")
    try:
        return parse_host(names[0].decode("ascii"))
    except ValueError as error:
        raise NotAHello(f"it asks for a server that cannot be ({error})") from None


def _message(stream: bytes) -> bytes | None:
    """Return the body of the ClientHello, put together from its records; None: more bytes are needed."""
    message = bytearray()
    at = 0
    for _ in range(MAX_RECORDS):
        head = stream[at : at + 2]
        if head != bytes((_HANDSHAKE, 3))[: len(head)]:
            raise NotAHello("only TLS may pass a tunnel")
        if len(stream) < at + 5:
            return None
        (length,) = struct.unpack_from("!H", stream, at + 3)
        if not 0 < length <= 1 << 14:
            raise NotAHello("a TLS record has an impossible length")
        message += stream[at + 5 : at + 5 + length]
        at += 5 + length
        if message and message[0] != _CLIENT_HELLO:
            raise NotAHello("a TLS client must begin with a ClientHello")
        if len(message) >= 4:
            wanted = int.from_bytes(message[1:4]) + 4
            if wanted > MAX_HELLO_BYTES:
                raise NotAHello(f"its first message is larger than {MAX_HELLO_BYTES} bytes")
            if len(message) >= wanted:
                return bytes(message[4:wanted])
    raise NotAHello(f"its first message comes in more than {MAX_RECORDS} records")


def _extensions(message: bytes) -> list[tuple[int, bytes]]:
    at = 2 + 32  # version, random
    at += 1 + message[at]  # session id
    at += 2 + struct.unpack_from("!H", message, at)[0]  # cipher suites
    at += 1 + message[at]  # compression methods
    (total,) = struct.unpack_from("!H", message, at)
    at += 2
    if at + total != len(message):
        raise NotAHello("its extensions do not fill its first message")
    found = []
    while at < len(message):
        kind, length = struct.unpack_from("!HH", message, at)
        if at + 4 + length > len(message):
            raise NotAHello("an extension is longer than its message")
        found.append((kind, message[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


def _name(body: bytes) -> bytes:
    total, kind, length = struct.unpack_from("!HBH", body)  # RFC 6066, section 3: a list, of one in practice
    if kind != _HOST_NAME or total != length + 3 or len(body) != length + 5:
        raise NotAHello("its server name is malformed")
    return body[5:]
