"""A process on the node that stands at a sandbox's socket and carries bytes to the runner in its container,
over the engine: for engines that share no directory with us, and for kernels that share no socket (gVisor).

One per sandbox, one `docker exec` per client's connection, none per request. It ends with the container, and
with it the sandbox counts as dead; should it alone end, `connect` starts it again.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandboxes.tiers.docker_engine import Engine, EngineDown, EngineError
from sandboxes.tiers.docker_launch import INSIDE_SOCKET, ROOT_INSIDE, TOKEN_CHARS
from sandboxes.tiers.docker_stream import STDOUT, Stream

WAIT_S: Final = 3600.0  # one question to the engine whether the container has ended
LOST_S: Final = 60.0  # without the engine for so long: given up, and the sandbox counts as dead
RETRY_S: Final = 0.5
CHUNK_BYTES: Final = 1 << 18
MODULE: Final = "sandboxes.tiers.docker_bridge"

# Runs inside, as root without any capability: nobody else there can see what passes through it.
PUMP: Final = f"""\
import os, select, socket
sock = socket.socket(socket.AF_UNIX)
sock.connect({INSIDE_SOCKET!r})
while True:
    for ready in select.select([0, sock], [], [])[0]:
        chunk = os.read(0, {CHUNK_BYTES}) if ready == 0 else sock.recv({CHUNK_BYTES})
        if not chunk:
            os._exit(0)
        if ready == 0:
            sock.sendall(chunk)
            continue
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view):]
"""
PUMP_ARGV: Final = ["python3", "-I", "-S", "-c", PUMP]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a bridge is told on its command line."""

    host: str
    container: str
    listen_fd: int
    go_fd: int  # the runner's token comes here once it listens; the end of it: it never will


def start_bridge(order: Order, tag: str, log: Path) -> int:
    """Start a bridge that outlives us and return its pid; while it starts, so can the container.

    Args:
        tag: the word that marks a sandbox's processes.
    """
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {MODULE} import main; main()"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("DOCKER_", "SSH_")) or name in ("HOME", "PATH")
    }
    with open(log, "ab") as file:
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", code, json.dumps(sys.path), json.dumps(asdict(order)), tag],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            pass_fds=[order.listen_fd, order.go_fd],
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    return child.pid


def main() -> None:
    """Serve until the container has ended."""
    order = Order(**json.loads(sys.argv[1]))
    listener = socket.socket(fileno=order.listen_fd)
    engine = Engine(order.host)
    engine.version()  # connects, while the runner still starts
    token = os.read(order.go_fd, TOKEN_CHARS)
    if len(token) != TOKEN_CHARS:
        return
    threading.Thread(target=_end_with, args=(engine, order.container), daemon=True).start()
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(engine, order.container, client, token), daemon=True).start()


def _end_with(engine: Engine, container: str) -> None:
    """End this process once the container has ended, or nobody could say for a minute."""
    heard = time.monotonic()
    while True:
        engine.wait(container, WAIT_S)
        try:
            found = engine.inspect(container)
            if found is None or not found.running:
                os._exit(0)
            heard = time.monotonic()
        except EngineDown:
            if time.monotonic() - heard > LOST_S:
                os._exit(1)
        time.sleep(RETRY_S)


def _serve(engine: Engine, container: str, client: socket.socket, token: bytes) -> None:
    """Carry one client's bytes both ways until either side ends."""
    with client:
        try:
            stream = Stream(engine.exec(container, PUMP_ARGV, user=f"{ROOT_INSIDE}:{ROOT_INSIDE}"))
        except EngineError:
            return  # the client sees its connection close, and so that the sandbox is gone
        back = threading.Thread(target=_carry_back, args=(stream, client), daemon=True)
        back.start()
        try:
            stream.send(token)
            while chunk := client.recv(CHUNK_BYTES):
                stream.send(chunk)
            stream.close_input()
        except OSError:
            stream.close()
        back.join()
        stream.close()


def _carry_back(stream: Stream, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while (frame := stream.receive()) is not None:
            if frame[0] == STDOUT:
                client.sendall(frame[1])
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # wakes the other direction
