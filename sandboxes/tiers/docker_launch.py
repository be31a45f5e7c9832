"""Starting a runner in a container, where no descriptor can be inherited.

Over a socket: the runner connects to BOOT/boot.sock, which exists only while it starts, and gets there the
same descriptors that another tier's runner inherits. The socket at which it then listens never appears
inside, so the agent's processes cannot talk to it.

Over its standard streams, where the container's host shares no directory with us (or its kernel no socket:
gVisor): the runner's own code and the boot object arrive there, and `docker_bridge` does the rest.
"""

import array
import contextlib
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sandboxes.tiers.archive import PACKAGE, runner_archive
from sandboxes.tiers.docker_stream import STDOUT, Stream
from sandboxes.tiers.launch import Launch, StartFailed

BOOT_SOCKET: Final = "boot.sock"
BOOT_CONFIG: Final = "boot.json"
LOOK_S: Final = 0.25  # how often we look whether what we wait for is still alive
LISTEN_FD, BOOT_FD, READY_FD = 200, 201, 202  # inside, above all that a starting interpreter has open
STDIN_FD, STDOUT_FD = 10, 11
INSIDE_SOCKET: Final = "\0skylease-runner"  # abstract: in the container's own network namespace
ROOT_INSIDE: Final = 0  # the bridge's uid inside; the agent's processes cannot look into its memory
TOKEN_CHARS: Final = 32
PEER: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid

# What `python3 -c` runs where no file can be put: the runner's archive comes first on its standard input.
LOADER: Final = f"""\
import os, struct, sys
null = os.open(os.devnull, os.O_RDWR)
for fd, kept in ((0, {STDIN_FD}), (1, {STDOUT_FD})):
    os.dup2(fd, kept, False)
    os.dup2(null, fd)
os.close(null)
def read(size):
    raw = b""
    while len(raw) < size:
        piece = os.read({STDIN_FD}, size - len(raw))
        if not piece:
            sys.exit(3)
        raw += piece
    return raw
code = os.memfd_create("runner")
os.write(code, read(struct.unpack("!I", read(4))[0]))
sys.path[0] = f"/proc/self/fd/{{code}}"
sys.argv[1:1] = ["{STDIN_FD}"]
from {PACKAGE}.serve import main
main()
"""

Look = Callable[[], str | None]  # returns why the container is dead, None while it lives


class ContainerLaunch(Launch):
    """A start whose boot object is kept, so that the same container can be started again."""

    def __init__(self, directory: Path, look: Look) -> None:
        super().__init__(directory / "logs" / "runner.log")
        self._directory = directory
        self._look = look

    def boot(self, config: dict[str, Any]) -> dict[str, Any]:
        """Send the boot object and return what the runner says when it is ready."""
        keep_config(self._directory, config)
        return self._boot(config)

    def _boot(self, config: dict[str, Any]) -> dict[str, Any]:
        return super().boot(config)

    def _failed(self, what: str) -> StartFailed:
        why = self._look()
        return StartFailed(f"{what}: {why}" if why else what)


def keep_config(directory: Path, config: dict[str, Any]) -> None:
    """Keep the boot object of the sandbox in a directory."""
    with open(os.open(directory / BOOT_CONFIG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(json.dumps(config))


class SocketLaunch(ContainerLaunch):
    """Hands a starting runner its descriptors over a socket."""

    ready_number: Final = READY_FD

    def __init__(self, directory: Path, boot_directory: Path, look: Look) -> None:
        super().__init__(directory, look)
        self.ready_w_number = READY_FD
        self._path = boot_directory / BOOT_SOCKET
        self._path.unlink(missing_ok=True)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(boot_directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self._door.bind(f"/proc/self/fd/{fd}/{BOOT_SOCKET}")
        finally:
            os.close(fd)
        os.chmod(self._path, 0o666)  # the container's uid connects; nobody else gets into the directory
        self._door.listen(1)

    def __exit__(self, *error: object) -> None:
        self._path.unlink(missing_ok=True)
        self._door.close()
        super().__exit__(*error)

    def listen(self, directory: Path) -> int:
        """Make the runner's socket and return the number that its descriptor has inside."""
        super().listen(directory)
        return LISTEN_FD

    def hand_over(self, uid: int) -> int:
        """Give the runner that connects its descriptors; return its pid in our numbering.

        Raises:
            StartFailed: none did in time, or a stranger.
        """
        deadline = self.ends_at
        while not select.select([self._door], [], [], LOOK_S)[0]:
            if time.monotonic() > deadline:
                raise self._failed(f"no word from it within {self.deadline_s:g} s")
            if self._look() is not None:
                raise self._failed("it ended at its start")
        peer, _ = self._door.accept()
        with peer:
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            pid, peer_uid, _ = PEER.unpack(raw)
            if peer_uid != uid or pid <= 0:
                raise StartFailed(f"process {pid} of uid {peer_uid} connected in place of its runner")
            numbers = json.dumps([BOOT_FD, LISTEN_FD, READY_FD]).encode()
            fds = array.array("i", [self.boot_r, self.listener_fd, self.ready_w])
            peer.sendmsg([numbers], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        for fd in (self.boot_r, self.ready_w, self.info_w):  # theirs now, so that we notice their end
            self._owned.remove(fd)
            os.close(fd)
        return int(pid)


class StreamLaunch(ContainerLaunch):
    """Talks to a starting runner over its standard streams."""

    def __init__(self, directory: Path, look: Look) -> None:
        super().__init__(directory, look)
        self.ready_w_number = STDOUT_FD
        self._stream: Stream | None = None

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._stream.close()
        super().__exit__(*error)

    @property
    def go_fd(self) -> int:
        """Where the bridge waits until the runner listens."""
        return self._info_r

    def go(self) -> None:
        """Tell the bridge that the runner listens, and what it wants to be shown."""
        os.write(self.info_w, json.loads((self._directory / BOOT_CONFIG).read_bytes())["token"].encode())

    def boot(self, config: dict[str, Any]) -> dict[str, Any]:
        """Send the boot object and return what the runner says when it is ready."""
        return super().boot({"token": secrets.token_hex(TOKEN_CHARS // 2), **config})

    def use(self, stream: socket.socket) -> None:
        """Take the connection to the runner's standard streams; it must exist before the runner starts."""
        self._stream = Stream(stream)

    def _boot(self, config: dict[str, Any]) -> dict[str, Any]:
        assert self._stream is not None
        inside = {**config, "listen_path": INSIDE_SOCKET}
        with contextlib.suppress(OSError):  # it has ended: the answer that does not come says so
            for raw in (runner_archive(), json.dumps(inside).encode()):
                self._stream.send(struct.pack("!I", len(raw)) + raw)
        answer = b""
        deadline = self.ends_at
        while b"\n" not in answer:
            try:
                frame = self._stream.receive(timeout_s=max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise self._failed(f"no word from it within {self.deadline_s:g} s") from None
            if frame is None:
                raise self._failed("it ended at its start")
            if frame[0] == STDOUT:
                answer += frame[1]
        ready: dict[str, Any] = json.loads(answer)
        return ready
