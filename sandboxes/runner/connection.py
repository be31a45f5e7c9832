"""The runner's clients: one object for each, and the gate before it where strangers can see our socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from .loop import READ, WRITE
from .operations import Refused
from .wire import Decoder, Head, WireError, pack

if TYPE_CHECKING:
    from .serve import Runner

GATE_S = 5.0  # for a client to show its token
MAX_UNSENT_BYTES = 128 << 20  # answers waiting for one client


class Connection:
    """One client."""

    def __init__(self, runner: Runner, sock: socket.socket) -> None:
        self._runner, self._sock = runner, sock
        self._decoder = Decoder()
        self._unsent = bytearray()
        runner.connections.add(self)
        self.on_close: list[Callable[[], None]] = []
        self.cancels: dict[object, Callable[[], None]] = {}
        sock.setblocking(False)
        runner.loop.watch(sock.fileno(), READ, self._on_ready)

    def reply(self, request: object, head: Head, body: bytes = b"") -> None:
        """Answer a request."""
        self.send(pack({"id": request, "ok": True, **head}, body))

    def send(self, frame: bytes) -> None:
        """Send a frame, now or when the client reads on."""
        if self._sock.fileno() < 0:
            return
        self._unsent += frame
        if len(self._unsent) > MAX_UNSENT_BYTES:
            self.close()
            return
        self._flush()

    def hand_over(self, give: Callable[[socket.socket], int]) -> int:
        """Let another process have this connection, and forget it here.

        Raises:
            Refused: something else was asked over it.
        """
        if self._unsent or self.cancels or self.on_close:
            raise Refused("invalid", "a bridge needs a connection of its own")
        pid = give(self._sock)
        self.close()
        return pid

    def close(self) -> None:
        """Drop the client: what it asked for is cancelled."""
        if self._sock.fileno() < 0:
            return
        self._runner.loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._runner.connections.discard(self)
        for call in [*self.cancels.values(), *self.on_close]:
            call()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        events = READ | WRITE if self._unsent else READ
        self._runner.loop.watch(self._sock.fileno(), events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if not events & READ or self._sock.fileno() < 0:
            return
        try:
            chunk = self._sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        try:
            for head, body in self._decoder.feed(chunk):
                self._runner.handle(self, head, body)
        except WireError:
            self.close()


class Gate:
    """A client that must show the token first: our socket can be seen inside, where nobody knows it."""

    def __init__(self, runner: Runner, sock: socket.socket, token: bytes) -> None:
        self._runner, self._sock, self._token = runner, sock, token
        self._shown = b""
        sock.setblocking(False)
        runner.loop.watch(sock.fileno(), READ, self._on_ready)
        self._timer = runner.loop.later(GATE_S, self._leave)

    def _on_ready(self, _: int) -> None:
        try:
            chunk = self._sock.recv(len(self._token) - len(self._shown))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._shown += chunk
        if not chunk or not self._token.startswith(self._shown):
            self._leave()
        elif len(self._shown) == len(self._token):
            self._timer.cancel()
            self._runner.loop.unwatch(self._sock.fileno())
            Connection(self._runner, self._sock)

    def _leave(self) -> None:
        self._timer.cancel()
        self._runner.loop.unwatch(self._sock.fileno())
        self._sock.close()
