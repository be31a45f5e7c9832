"""The runner itself: serves frames on an inherited socket until it is told to stop or nobody has talked to it
for long.

Started as `python runner.pyz BOOT_FD TAG`. BOOT_FD carries a u32 length and a JSON object (see
`LocalTier._create_locked`); a boot that is cut short ends the runner, so a creator that dies half-way leaves
nothing. TAG only names the sandbox in the process list. Inside a PID namespace the runner is process 1: it
reaps, cannot be killed from inside, and takes everything with it when it ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from . import tree
from .jobs import REHEARSAL, Unit, encoded, load_code
from .loop import READ, WRITE, Loop
from .operations import Operations, Refused, refusal
from .wire import Decoder, Head, WireError, pack

MAX_UNSENT_BYTES = 128 << 20  # answers waiting for one client


class Connection:
    """One client."""

    def __init__(self, runner: Runner, sock: socket.socket) -> None:
        self._runner, self._sock = runner, sock
        self._decoder = Decoder()
        self._unsent = bytearray()
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

    def close(self) -> None:
        """Drop the client: what it asked for is cancelled."""
        if self._sock.fileno() < 0:
            return
        self._runner.loop.unwatch(self._sock.fileno())
        self._sock.close()
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


class Runner:
    """Owns the loop, the spare unit, the epoch and the deadlines."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.loop = Loop(self._on_child)
        self.epoch: int = config["epoch"]
        self.started = time.monotonic()
        self._spare: Unit | None = None
        self._units: dict[int, Callable[[int], None]] = {}
        self._last_request = self.started
        self._hunting = False
        self.operations = Operations(self)
        self._listener = socket.socket(fileno=config["listen_fd"])
        self._listener.setblocking(False)

    def serve(self) -> None:
        """Serve until the end, then leave nothing behind."""
        signal.signal(signal.SIGTERM, lambda *_: self.loop.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._fork_spare()
        self.loop.watch(self._listener.fileno(), READ, self._accept)
        self._check_idle()
        self.loop.later(self.config["wall_deadline_s"], self.loop.stop)
        self.loop.run()
        self._listener.close()
        for _ in range(200):
            below = tree.descendants(os.getpid())
            if not below:
                break
            tree.signal_all(below, signal.SIGKILL)
            time.sleep(0.005)

    def handle(self, connection: Connection, head: Head, body: bytes) -> None:
        """Carry out a request, or say why not."""
        request = head.get("id")
        try:
            epoch = head["epoch"]
            if not isinstance(epoch, int) or epoch < self.epoch:
                raise Refused("stale_epoch", current=self.epoch)
            self.epoch = epoch
            self._last_request = time.monotonic()
            self.operations.start(connection, request, head, body)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the sandbox; the client is told
            connection.send(pack({"id": request, **refusal(error)}))

    def take_unit(self, on_exit: Callable[[int], None]) -> Unit:
        """Return a unit that has done nothing yet; `on_exit(status)` is called when it was reaped."""
        unit, self._spare = self._spare or Unit(), None
        self._units[unit.pid] = on_exit
        return unit

    def strays(self) -> list[int]:
        """Return the pids of processes whose unit has ended: our descendants that are below no unit."""
        return tree.descendants(os.getpid(), but=self._units)

    def _fork_spare(self) -> None:
        if self._spare is None and not self.operations.busy:
            load_code(self.config["script"])  # the spare inherits the compiled script
            try:
                self._spare = Unit()
            except OSError:
                return  # out of processes or memory just now: a unit is forked when it is needed
            self._units[self._spare.pid] = lambda _: None
            self._rehearse()

    def _rehearse(self) -> None:
        """Touch, right after the fork, what a request will touch (see `jobs.REHEARSAL`)."""
        for head, body in Decoder().feed(pack(REHEARSAL, b"{}")):
            pack({"id": None, **head}, encoded(head) + body)
        self.strays()

    def spare_soon(self) -> None:
        """Fork the next spare unit once the answer at hand has left."""
        self.loop.later(0.0, self._fork_spare)

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            Connection(self, self._listener.accept()[0])

    def _check_idle(self) -> None:
        idle_deadline_s = self.config["idle_deadline_s"]
        if self.operations.busy:
            self._last_request = time.monotonic()  # running work is activity
        left = self._last_request + idle_deadline_s - time.monotonic()
        if left <= 0:
            self.loop.stop()
        else:
            self.loop.later(min(left, max(0.05, idle_deadline_s / 20)), self._check_idle)

    def _on_child(self, pid: int, status: int) -> None:
        on_exit = self._units.pop(pid, None)
        if self._spare is not None and self._spare.pid == pid:
            self._spare.close()  # murdered by one of the agent's processes
            self._spare = None
        elif on_exit is not None:
            on_exit(status)
        else:
            self._kill_strays()  # somebody gives children away to us while its unit lives

    def _kill_strays(self) -> None:
        strays = self.strays()
        tree.signal_all(strays, signal.SIGKILL)
        if strays and not self._hunting:
            self._hunting = True
            self.loop.later(0.005, self._hunt_on)

    def _hunt_on(self) -> None:
        self._hunting = False
        self._kill_strays()


def boot(fd: int) -> dict[str, Any] | None:
    """Return the boot object, None if its writer died before the end of it."""
    raw = bytearray()
    size = 4
    while len(raw) < size:
        chunk = os.read(fd, size - len(raw))
        if not chunk:
            return None
        raw += chunk
        if size == 4 and len(raw) == 4:
            size += struct.unpack("!I", raw)[0]
    os.close(fd)
    config: dict[str, Any] = json.loads(raw[4:])
    return config


def preload(names: list[str]) -> dict[str, str]:
    """Import the image's modules and return name -> reason of those that cannot be."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may raise anything when imported; told in `ready`
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    return failed


def main() -> None:
    """Boot, preload, say that we are ready, serve."""
    config = boot(int(sys.argv[1]))
    if config is None:
        sys.exit(3)
    if config["detach"] and os.fork():
        os._exit(0)  # without a namespace of its own, init is to reap the runner, not its creator
    del sys.path[0]
    tree.set_dumpable(False)  # or the agent's processes could read our memory and take our socket
    if os.getpid() != 1:
        tree.become_subreaper()
    os.umask(0o022)
    os.chdir(config["home"])
    sys.path[:0] = config["python_path"]
    failed = preload(config["preload"])
    runner = Runner(config)
    gc.collect()
    gc.freeze()  # or the first collection in a fork would copy every page
    ready = {"pid": os.getpid(), "python": ".".join(map(str, sys.version_info[:3])), "preload_failed": failed}
    with contextlib.suppress(OSError):
        os.write(config["ready_fd"], json.dumps(ready).encode() + b"\n")
    os.close(config["ready_fd"])
    runner.serve()
