"""The framed protocol between a sandbox's runner and its clients.

A frame is two big-endian u32 (length of the head, length of the body), a JSON object (the head) and raw bytes
(the body). A request's head has `id` (unique per connection), `op` and `epoch`, then the operation's own
fields; its body is the stdin of a command, the state of a turn or a piece of a file. The answer's head
repeats `id` and has either `ok: true` with results or `error: code` with `detail`; answers come in the order
in which the work ends. Output travels in the body, stdout first; `stdout_len` in the head says where stderr
begins.
"""

from __future__ import annotations

import json
import struct
from typing import Any

SIZES = struct.Struct("!II")
MAX_HEAD_BYTES = 1 << 20  # argv and env; the kernel itself refuses more than 2 MiB of them
MAX_BODY_BYTES = 32 << 20  # stdin or output of one command; files travel in pieces
MAX_OUTPUT_BYTES = 8 << 20  # default cap of each output stream of a command, bytes

Head = dict[str, Any]


class WireError(Exception):
    """The peer sent something that is not a frame; nothing after it can be trusted."""


def pack(head: Head, body: bytes = b"") -> bytes:
    """Return the frame of `head` and `body`."""
    raw = json.dumps(head, separators=(",", ":")).encode()
    if len(raw) > MAX_HEAD_BYTES or len(body) > MAX_BODY_BYTES:
        raise WireError(f"frame too large: head {len(raw)} bytes, body {len(body)} bytes")
    return b"".join((SIZES.pack(len(raw), len(body)), raw, body))


class Decoder:
    """Turns a stream of bytes into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[Head, bytes]]:
        """Add `chunk` and return the frames that are now complete.

        Raises:
            WireError: the stream is not in our protocol, or a length is beyond its limit.
        """
        buffer = self._buffer
        buffer += chunk
        frames = []
        start = 0
        while len(buffer) - start >= SIZES.size:
            head_len, body_len = SIZES.unpack_from(buffer, start)
            if head_len > MAX_HEAD_BYTES or body_len > MAX_BODY_BYTES:
                raise WireError(f"announced head {head_len} bytes, body {body_len} bytes")
            end = start + SIZES.size + head_len + body_len
            if len(buffer) < end:
                break
            middle = start + SIZES.size + head_len
            frames.append(
                (_parse_head(bytes(buffer[start + SIZES.size : middle])), bytes(buffer[middle:end]))
            )
            start = end
        if start:
            del buffer[:start]
        return frames


def _parse_head(raw: bytes) -> Head:
    try:
        head = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"head is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise WireError("head is not a JSON object")
    return head
