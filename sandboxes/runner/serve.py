"""The runner itself: serves frames on an inherited socket until it is told to stop or nobody has talked to it
for long.

Started as `python runner.pyz BOOT TAG`. BOOT is the number of a descriptor, or the path of a unix socket from
which all descriptors come (in a container none can be inherited). It carries a u32 length and a JSON object
(see `LocalTier._create_locked`); a boot that is cut short ends the runner, so a creator that dies half-way
leaves nothing. TAG only names the sandbox in the process list. Inside a PID namespace the runner is process
1: it reaps, cannot be killed from inside, and takes everything with it when it ends.
"""

from __future__ import annotations

import base64
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

from . import egress, identity, tree
from .connection import Connection, Gate
from .jobs import Unit, Work, encoded, load_code, rehearsal
from .loop import READ, Loop
from .memory import Guard
from .nursery import Nursery
from .operations import Operations, Refused, refusal
from .starter import Ended, Errand, Starters
from .wire import Decoder, Head, pack

FROZEN_S = 0.5  # a timer that is later than that did not run because the sandbox was frozen
PARKED_S = 60.0  # without a socket; saving takes well under a second
BACKLOG = 128  # of a socket that we make ourselves
OF_A_SLOT = frozenset({"claim", "renew", "stats"})  # all that can be asked of a sandbox that is nobody's


class Runner:
    """Owns the loop, the spare unit, the epoch and the deadlines."""

    def __init__(self, config: dict[str, Any], listener: socket.socket) -> None:
        self.config = config
        self.loop = Loop(self._on_child)
        self.epoch: int = config["epoch"]
        self.started = time.monotonic()
        self._spare: Unit | None = None
        self._nursery: Nursery | None = None
        self._units: dict[int, Callable[[int], None]] = {}
        self._is_slot: bool = config.get("slot", False)  # running, and nobody's: it waits to be claimed
        self._starters = Starters(self.loop, lambda: config["rlimits"], self._units)
        self._last_request = self.started
        self._hunting = False
        self._next_check = self.started
        self.connections: set[Connection] = set()
        self._outward: set[int] = set()  # forks of ours that join what is inside to sockets of the host
        self.operations = Operations(self)
        self._listener = listener
        limit_bytes = config.get("memory_bytes")  # where nothing else can hold it
        self._guard = None if limit_bytes is None else Guard(self.loop, limit_bytes, self._workers)
        self._way_out = _way_out(config)

    def serve(self) -> None:
        """Serve until the end, then leave nothing behind."""
        if os.getpid() != 1:  # without a handler, the kernel keeps it from process 1
            signal.signal(signal.SIGTERM, lambda *_: self.loop.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: self.loop.later(0.0, self._listen_again))
        self._begin()
        self._fork_spare()
        self.loop.watch(self._listener.fileno(), READ, self._accept)
        self.loop.run()
        self._listener.close()
        for _ in range(200):
            below = tree.descendants(os.getpid())
            if not below:
                break
            tree.signal_all(below, signal.SIGKILL)
            time.sleep(0.005)

    def _begin(self) -> None:
        """Join the way out to the node and let the deadlines run."""
        self._fork_forwarder()
        self._check_idle()
        self._end = self.loop.later(self.config["wall_deadline_s"], self.loop.stop)

    def claim(self, body: bytes) -> None:
        """Become somebody's sandbox: `body` is the boot object that it would have been started with.

        Raises:
            Refused: it is somebody's already.
        """
        if not self._is_slot:
            raise Refused("invalid", "it is no slot")
        self._is_slot = False  # whatever happens from here on: it cannot be claimed again
        config = json.loads(body)
        config["user_site"] = with_version(config["user_site"])
        self.config.update(config)
        self.config.pop("slot")
        self.epoch = config["epoch"]
        os.chdir(config["home"])
        self.operations.reopen()
        self._way_out = _way_out(self.config)
        self._end.cancel()
        self._idle_check.cancel()
        self.started = self._last_request = self._next_check = time.monotonic()
        self._begin()

    def handle(self, connection: Connection, head: Head, body: bytes) -> None:
        """Carry out a request, or say why not."""
        request = head.get("id")
        try:
            epoch = head["epoch"]
            if not isinstance(epoch, int) or epoch < self.epoch:
                raise Refused("stale_epoch", current=self.epoch)
            if not self._is_slot:
                self.epoch = epoch
            elif head["op"] not in OF_A_SLOT:
                raise Refused("invalid", "it is a warm slot, which nobody has claimed")
            self._last_request = time.monotonic()
            self.operations.start(connection, request, head, body)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the sandbox; the client is told
            connection.send(pack({"id": request, **refusal(error)}))

    def take_unit(self, on_exit: Callable[[int], None]) -> Unit:
        """Return a unit that has done nothing yet; `on_exit(status)` is called when it was reaped."""
        unit, self._spare = self._spare, None
        if unit is not None and not unit.pid and not (self._nursery and self._nursery.wait(unit)):
            unit.close()
            unit = None
        unit = unit or Unit.forked()
        self._register(unit, on_exit)
        if self._guard is not None:
            self._guard.wake()
        return unit

    def _register(self, unit: Unit, on_exit: Callable[[int], None]) -> None:
        def ended(status: int) -> None:
            if unit.was_murdered:
                try:
                    unit.fork()
                    self._register(unit, on_exit)
                    return
                except OSError:
                    pass  # out of processes or memory just now
            on_exit(status)

        self._units[unit.pid] = ended

    def take_errand(self, work: Work, ended: Ended) -> Errand | None:
        """Return a command that a starter will start, None if none is idle or the command is too long."""
        errand = self._starters.take(work, ended)
        if errand is not None and self._guard is not None:
            self._guard.wake()
        return errand

    def _workers(self) -> list[int]:
        """Return the pids of all processes that commands, turns and background processes consist of."""
        ours = {pid for pid in (self._spare.pid if self._spare else 0, *self._outward) if pid}
        apart = self._starters.pids | ({self._nursery.pid} if self._nursery else set())
        return [pid for pid in tree.descendants(os.getpid(), but=ours) if pid not in apart]

    def watch_child(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Count a fork of ours as no stray; `on_exit(status)` is called when it was reaped."""
        self._units[pid] = on_exit
        self._outward.add(pid)

    def strays(self) -> list[int]:
        """Return the pids of processes whose unit has ended: our descendants that are below no unit."""
        return tree.descendants(os.getpid(), but=self._units)

    def _fork_spare(self) -> None:
        if self._spare is None and not self.operations.crowded:
            try:
                if self._nursery is not None:
                    self._spare = self._nursery.order(self.config["script"])
                    return
                load_code(self.config["script"])  # the spare inherits the compiled script
                self._spare = Unit.forked(rehearsal(self.config))
            except OSError:
                return  # out of processes or memory just now: a unit is forked when it is needed
            self._units[self._spare.pid] = lambda _: None
            self._rehearse()

    def _born(self, unit: Unit) -> None:
        """A unit of the nursery has its pid, if it could be forked."""
        if unit.pid:
            self._units[unit.pid] = lambda _: None
        elif unit is self._spare:
            self._drop_spare()

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _make_nursery(self) -> None:
        if self._nursery is not None or self.operations.busy:
            return
        load_code(self.config["script"])
        try:
            nursery = Nursery(self.loop, rehearsal(self.config), self._on_child, self._born)
        except OSError:
            return  # as above
        self._nursery = nursery
        self._units[nursery.pid] = lambda _: self._nursery_ended(nursery)

    def _nursery_ended(self, nursery: Nursery) -> None:
        self._nursery = None
        nursery.ended()
        if self._spare is not None and not self._spare.pid:
            self._drop_spare()

    def _fork_forwarder(self) -> None:
        if self._way_out is None:
            return
        if self._listener.fileno() < 0:  # parked
            self.loop.later(egress.FORK_AGAIN_S, self._fork_forwarder)
            return
        try:
            pid = egress.fork(self._way_out, self.config["egress"]["socket"])
        except OSError:  # out of processes or memory just now
            self.loop.later(egress.FORK_AGAIN_S, self._fork_forwarder)
            return
        self.watch_child(pid, lambda _: self._forwarder_ended())

    def _forwarder_ended(self) -> None:
        self.loop.later(egress.FORK_AGAIN_S, self._fork_forwarder)  # murdered by one of the agent's processes

    def _rehearse(self) -> None:
        """Touch, right after the fork, what a request will touch (see `jobs.rehearsal`)."""
        for head, body in Decoder().feed(pack(rehearsal(self.config), b"{}")):
            pack({"id": None, **head}, encoded(head) + body)
        self.strays()

    def park_soon(self) -> None:
        """Close all that leads out, once the answer at hand has left, so that the sandbox can be saved.

        SIGUSR1 opens it again, and so does time, should nobody save it.

        Raises:
            Refused: somebody works here, or the socket was not made here.
        """
        if self.operations.busy:
            raise Refused("busy", "it is in use")
        if "listen_path" not in self.config:
            raise Refused("invalid", "it could not make its socket again")
        self.loop.later(0.0, self._park)
        self.loop.later(PARKED_S, self._listen_again)

    def _park(self) -> None:
        for pid in list(self._outward):  # they hold sockets of the host
            os.kill(pid, signal.SIGKILL)
            self._on_child(*os.waitpid(pid, 0))
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in list(self.connections):  # last: their end is the sign that all is closed
            connection.close()

    def _listen_again(self) -> None:
        if self._listener.fileno() >= 0:
            return
        with identity.as_root():
            self._listener = listening(self.config)
        self.loop.watch(self._listener.fileno(), READ, self._accept)
        self._last_request = time.monotonic()

    def spare_soon(self) -> None:
        """Fork the next spare unit, beside the work that has just begun or after the answer at hand."""
        self.loop.later(0.0, self._fork_spare)

    def nursery_soon(self) -> None:
        """Make the nursery, if there is none, once the answer at hand has left and nothing runs."""
        if self._nursery is None:
            self.loop.later(0.0, self._make_nursery)

    def starter_soon(self) -> None:
        """Fork a starter, if none is idle, once the answer at hand has left and nothing runs."""
        self.loop.later(0.0, lambda: None if self.operations.busy else self._starters.refill())

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            sock = self._listener.accept()[0]
            token = self.config.get("token")
            if token:
                Gate(self, sock, token.encode())
            else:
                Connection(self, sock)

    def _check_idle(self) -> None:
        idle_deadline_s = self.config["idle_deadline_s"]
        now = time.monotonic()
        if self.operations.busy:
            self._last_request = now  # running work is activity
        late_s = now - self._next_check
        if (
            late_s > FROZEN_S
        ):  # nobody let us run: that time is nobody's idleness, and whoever woke us asks next
            self._last_request += late_s
        left = self._last_request + idle_deadline_s - now
        if left <= 0:
            self.loop.stop()
        else:
            pause = min(left, max(0.05, idle_deadline_s / 20))
            self._next_check = now + pause
            self._idle_check = self.loop.later(pause, self._check_idle)

    def _on_child(self, pid: int, status: int) -> None:
        on_exit = self._units.pop(pid, None)
        identity.forget(pid)
        self._outward.discard(pid)
        if self._spare is not None and self._spare.pid == pid:
            self._drop_spare()  # murdered by one of the agent's processes
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


def inherited(word: str) -> int:
    """Return the descriptor of the boot object: `word` is its number, or the socket that hands it out.

    There a JSON list of numbers comes with as many descriptors, to be known by these; the first is the boot
    object's.
    """
    if word.isdigit():
        return int(word)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(word)
        raw, fds, _, _ = socket.recv_fds(sock, 256, 8)
    numbers: list[int] = json.loads(raw)
    for index, number in enumerate(numbers):
        os.dup2(fds[index], number, inheritable=False)
        os.close(fds[index])
    return numbers[0]


def listening(config: dict[str, Any]) -> socket.socket:
    """Return the socket at which we listen: an inherited one, or one that is made here."""
    if "listen_path" not in config:
        sock = socket.socket(fileno=config["listen_fd"])
    else:
        path: str = config["listen_path"]
        if not path.startswith("\0"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


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
    put_away(fd)
    config: dict[str, Any] = json.loads(raw[4:])
    return config


def _way_out(config: dict[str, Any]) -> socket.socket | None:
    way_out = config.get("egress")
    return egress.listen(way_out["port"]) if way_out else None


def with_version(paths: list[str]) -> list[str]:
    """Return paths with our Python's name in them."""
    python = "python" + ".".join(map(str, sys.version_info[:2]))
    return [path.replace("{python}", python) for path in paths]


def put_away(fd: int) -> None:
    """Close a descriptor; a standard stream goes on as the null device."""
    if fd > 2:
        os.close(fd)
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


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
    config = boot(inherited(sys.argv[1]))
    if config is None:
        sys.exit(3)
    if config["detach"] and os.fork():
        os._exit(0)  # without a namespace of its own, init is to reap the runner, not its creator
    del sys.path[0]
    config["user_site"] = with_version(config["user_site"])
    if config.get("seccomp"):
        tree.filter_calls(base64.b64decode(config["seccomp"]))
    listener = listening(config)
    if config.get("agent_uid") is not None:
        identity.separate(config["agent_uid"])
    tree.set_dumpable(False)  # or the agent's processes could read our memory and take our socket
    if os.getpid() != 1 or config.get("agent_uid") is None:
        tree.become_subreaper()  # process 1 is one anyway: where this fails, every unit would fail too
    os.umask(0o022)
    os.chdir(config["home"])
    sys.path[:0] = config["python_path"]
    failed = preload(config["preload"])
    runner = Runner(config, listener)
    gc.collect()
    gc.freeze()  # or the first collection in a fork would copy every page
    ready = {"pid": os.getpid(), "python": ".".join(map(str, sys.version_info[:3])), "preload_failed": failed}
    with contextlib.suppress(OSError):
        os.write(config["ready_fd"], json.dumps(ready).encode() + b"\n")
    put_away(config["ready_fd"])
    runner.serve()
