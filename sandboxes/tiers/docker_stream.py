"""The engine's attached stream: raw bytes in, frames of standard output and standard error out."""

import socket
import struct
from typing import Final

HEADER: Final = struct.Struct("!BxxxI")  # which stream, how many bytes: Engine API, "Attach to a container"
STDOUT: Final = 1
CHUNK_BYTES: Final = 1 << 18


class Stream:
    """A connection to the standard streams of a process in a container (that has no terminal)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()

    def send(self, raw: bytes) -> None:
        """Write to the process's standard input.

        Raises:
            OSError: nobody reads it any more.
        """
        self._sock.sendall(raw)

    def close_input(self) -> None:
        """End the process's standard input."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Drop the connection."""
        self._sock.close()

    def receive(self, *, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """Return which stream and what it said next; None at the end.

        Raises:
            TimeoutError: it said nothing for so long.
            OSError: the connection broke.
        """
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            self._sock.settimeout(timeout_s)
            try:
                chunk = self._sock.recv(CHUNK_BYTES)
            finally:
                self._sock.settimeout(None)
            if not chunk:
                return None
            self._buffer += chunk

    def _frame(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < HEADER.size:
            return None
        which, size = HEADER.unpack_from(self._buffer)
        if len(self._buffer) < HEADER.size + size:
            return None
        raw = bytes(self._buffer[HEADER.size : HEADER.size + size])
        del self._buffer[: HEADER.size + size]
        return which, raw
