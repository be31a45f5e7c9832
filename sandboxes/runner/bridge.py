"""A connection from outside to a port inside: a process of its own that joins the two and judges nothing.

A fork of the runner per connection, so that a download never delays a turn. It has the client's socket, from
which the runner has read one request; its answer is the last frame, after it everything is the port's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import NoReturn

from .wire import pack

MAX_BRIDGES = 64
CONNECT_S = 5.0
CHUNK_BYTES = 1 << 16


def fork(client: socket.socket, request: object, port: int) -> int:
    """Return the pid of a new process that joins a client to a loopback port.

    Raises:
        OSError: no process can be made just now.
    """
    pid = os.fork()
    if pid == 0:
        _main(client.fileno(), request, port)
    return pid


def connect(port: int, timeout_s: float) -> socket.socket:
    """Return a connection to whatever listens on this port of the loopback.

    Raises:
        OSError: nothing does.
    """
    try:
        return socket.create_connection(("127.0.0.1", port), timeout_s)
    except OSError as error:
        try:
            return socket.create_connection(("::1", port), timeout_s)
        except OSError:
            raise error from None


def _main(client: int, request: object, port: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        high = os.dup2(client, 900, inheritable=False)
        os.closerange(3, high)
        os.closerange(high + 1, 1 << 20)
        outside = socket.socket(fileno=high)
        outside.setblocking(True)
        try:
            inside = connect(port, CONNECT_S)
        except OSError as error:
            message = f"port {port}: {error.strerror or error}"
            outside.sendall(pack({"id": request, "error": "port_closed", "message": message}))
            os._exit(0)
        inside.settimeout(None)
        outside.sendall(pack({"id": request, "ok": True}))
        back = threading.Thread(target=_pump, args=(inside, outside))
        back.start()
        _pump(outside, inside)
        back.join()
    finally:
        os._exit(0)


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on all that comes, then its end."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
