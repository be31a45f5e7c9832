"""The way out, as seen inside: a process of its own that joins 127.0.0.1:PORT to the node's proxy.

It moves bytes and judges nothing: the proxy does. A fork of the runner, so that a download never delays a
turn; killed from inside, it is forked again. The runner keeps the listening socket, so nobody inside can take
the port meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from typing import Any, NoReturn

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
BACKLOG = 128
MAX_LINKS = 128  # connections at once; more wait in the backlog
CHUNK_BYTES = 1 << 16
FORK_AGAIN_S = 0.05
NOBODY = (
    b"HTTP/1.1 503 Service Unavailable: the node's proxy does not answer\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback of this sandbox."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def fork(listener: socket.socket, proxy: str) -> int:
    """Return the pid of a new process that forwards what `listener` accepts to the unix socket `proxy`.

    Raises:
        OSError: no process can be made just now.
    """
    pid = os.fork()
    if pid == 0:
        _main(listener.fileno(), proxy)
    return pid


def _main(listener: int, proxy: str) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        high = os.dup2(listener, 900, inheritable=False)
        os.closerange(3, high)
        os.closerange(high + 1, 1 << 20)
        Forwarder(socket.socket(fileno=high), proxy).run()
    finally:
        os._exit(1)


class End:
    """One end of a link: its socket, what waits to be written to it, whether it has said all."""

    __slots__ = ("ended", "other", "pending", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.pending, self.ended = sock, b"", False
        self.other: End = self


class Forwarder:
    """Joins connections. One chunk per direction waits at most: who reads slowly is sent to slowly."""

    def __init__(self, listener: socket.socket, proxy: str) -> None:
        self._listener, self._proxy = listener, proxy
        self._selector = selectors.DefaultSelector()
        self._links = 0
        self._selector.register(listener, READ, None)

    def run(self) -> None:
        """Forward until killed."""
        while True:
            for key, events in self._selector.select():
                end: End | None = key.data
                if end is None:
                    self._accept()
                elif end.sock.fileno() >= 0:  # not closed by an earlier event of this round
                    self._serve(end, events)

    def _accept(self) -> None:
        try:
            inside, _ = self._listener.accept()
        except OSError:
            return
        inside.setblocking(False)
        outside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        outside.setblocking(False)
        try:
            outside.connect(self._proxy)
        except OSError:
            outside.close()
            self._refuse(inside)
            return
        near, far = End(inside), End(outside)
        near.other, far.other = far, near
        self._enter(near, far)

    def _refuse(self, inside: socket.socket) -> None:
        """Say that nobody is there, and read on until that was heard: a close now could overtake it."""
        try:
            inside.send(NOBODY)
            inside.shutdown(socket.SHUT_WR)
        except OSError:
            inside.close()
            return
        self._enter(End(inside))  # its other end is itself: what it says goes nowhere

    def _enter(self, *ends: End) -> None:
        self._links += 1
        for end in ends:
            self._selector.register(end.sock, READ, end)
        if self._links == MAX_LINKS:
            self._selector.unregister(self._listener)

    def _serve(self, end: End, events: int) -> None:
        try:
            if end.other is end:
                if not end.sock.recv(CHUNK_BYTES):
                    self._close(end)
                return
            if events & WRITE:
                self._flush(end)
            if events & READ and not end.ended and not end.other.pending:
                self._read(end)
        except OSError:
            self._close(end)
            return
        if all(one.ended and not one.pending for one in (end, end.other)):
            self._close(end)
            return
        for one in (end, end.other):
            self._watch(one)

    def _read(self, end: End) -> None:
        try:
            chunk = end.sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""  # what it said before that is still passed on
        if chunk:
            end.other.pending = chunk
            self._flush(end.other)
        else:
            end.ended = True
            end.other.sock.shutdown(socket.SHUT_WR)

    def _flush(self, end: End) -> None:
        """Write what waits; nothing more is read for this end until it is gone."""
        with contextlib.suppress(BlockingIOError):
            while end.pending:
                end.pending = end.pending[end.sock.send(end.pending) :]

    def _watch(self, end: End) -> None:
        events = WRITE if end.pending else 0
        if not end.ended and not end.other.pending:
            events |= READ
        watched: Any = self._selector.get_map().get(end.sock)
        if watched is not None and events:
            self._selector.modify(end.sock, events, end)
        elif watched is not None:
            self._selector.unregister(end.sock)
        elif events:
            self._selector.register(end.sock, events, end)

    def _close(self, end: End) -> None:
        for one in (end, end.other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one.sock)
            one.sock.close()
        if self._links == MAX_LINKS:
            self._selector.register(self._listener, READ, None)
        self._links -= 1
