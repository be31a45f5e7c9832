"""Take a TCP address, or say in one line why not."""

import errno
import socket
from typing import Final

from firehose.errors import ListenFailed, PortInUse

BACKLOG: Final = 512
MAX_PORT: Final = 65_535  # getaddrinfo takes larger ones modulo 65,536


def listening_socket(host: str, port: int) -> socket.socket:
    """A non-blocking socket that listens on host:port (port 0: any free one).

    Raises:
        PortInUse: somebody else listens there.
        ListenFailed: the address is not ours, or not allowed.
    """
    if not 0 <= port <= MAX_PORT:
        raise ListenFailed(host, port, f"a port is a number from 0 to {MAX_PORT}")
    try:
        family, _, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError) as error:
        raise ListenFailed(host, port, f"not an address of this machine: {error}") from None
    # The protocol by number: asyncio turns Nagle off only where it reads IPPROTO_TCP (else 40 ms an
    # answer).
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once, past TIME_WAIT
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        raise ListenFailed(host, port, str(error)) from None
    listener.setblocking(False)
    return listener
