"""One request to a runner, asked by a thread that may wait."""

import socket
from pathlib import Path
from typing import Final

from sandboxes.channel import connect_socket
from sandboxes.errors import SandboxBusy, SandboxGone, StaleEpoch
from sandboxes.runner.wire import Decoder, Head, WireError, pack

ANSWER_DEADLINE_S: Final = 10.0


def ask(path: Path, name: str, epoch: int, op: str, *, body: bytes = b"", until_closed: bool = False) -> Head:
    """Send one request to a runner and return its answer's head, if wanted once it has closed the connection.

    Raises:
        SandboxGone, StaleEpoch, SandboxBusy: it did not do it.
    """
    try:
        with connect_socket(path) as sock:
            sock.settimeout(ANSWER_DEADLINE_S)
            sock.sendall(pack({"id": 1, "op": op, "epoch": epoch}, body))
            decoder = Decoder()
            frames: list[tuple[Head, bytes]] = []
            while not frames:
                frames = decoder.feed(_chunk(sock, name))
            while until_closed and "error" not in frames[0][0] and sock.recv(1 << 16):
                pass
    except (OSError, WireError) as error:
        raise SandboxGone(name, str(error)) from None
    head = frames[0][0]
    if head.get("error") == "stale_epoch":
        raise StaleEpoch(name, epoch, int(head["detail"]["current"]))
    if "error" in head:
        raise SandboxBusy(name, str(head.get("message") or head["error"]))
    return head


def _chunk(sock: socket.socket, name: str) -> bytes:
    chunk = sock.recv(1 << 16)
    if not chunk:
        raise SandboxGone(name, "the connection broke")
    return chunk
