"""Starting a runner: pipes, the listening socket, the boot object, waiting for its word.

A `Launch` holds the descriptors of one start. Its creator may die at any point: a runner whose boot object is
cut short ends by itself.
"""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sandboxes.channel import SOCKET_NAME

BACKLOG: Final = 128
START_DEADLINE_S: Final = 30.0  # a loaded machine: alone it takes below 0.2 s
LOG_TAIL_BYTES: Final = 2000


class StartFailed(Exception):
    """The runner did not start; the text says what it or bwrap said."""


class Launch:
    """The descriptors of one start, and the process that it made."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begun = time.monotonic()
        self.deadline_s = START_DEADLINE_S  # for all of the start, from now on
        self._owned: list[int] = []
        self.boot_r, self._boot_w = self._pipe()
        self._ready_r, self.ready_w = self._pipe()
        self._info_r, self.info_w = self._pipe()
        self.ready_w_number = self.ready_w
        self.child: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._owned:
            os.close(fd)
        self._owned.clear()
        if self._listener is not None:
            self._listener.close()

    def listen(self, directory: Path) -> int:
        """Make the socket in `directory` and return the descriptor that the runner inherits.

        The socket never appears inside the sandbox, so the agent's processes cannot talk to the runner.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:  # through the descriptor: a socket's address holds 107 bytes, a directory's path may be longer
            self._listener.bind(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
        finally:
            os.close(fd)
        os.chmod(directory / SOCKET_NAME, 0o600)
        self._listener.listen(BACKLOG)
        return self._listener.fileno()

    @property
    def ends_at(self) -> float:
        """When the runner must have answered, on the monotonic clock."""
        return self._begun + self.deadline_s

    @property
    def listener_fd(self) -> int:
        """The listening socket's descriptor."""
        assert self._listener is not None
        return self._listener.fileno()

    def data(self, content: bytes) -> int:
        """Return a descriptor to read `content` from."""
        fd = os.memfd_create("skylease", os.MFD_CLOEXEC)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        self._owned.append(fd)
        return fd

    def spawn(self, argv: Sequence[str], pass_fds: Sequence[int], *, by_stdio: bool = False) -> None:
        """Start the first process; `by_stdio`: only the standard streams are passed on, so they carry the
        boot object and the word that it is ready.
        """
        if by_stdio:
            self.ready_w_number = 1
        with open(self._log, "ab") as log:
            self.child = subprocess.Popen(
                list(argv),
                stdin=self.boot_r if by_stdio else subprocess.DEVNULL,
                stdout=self.ready_w if by_stdio else log,
                stderr=log,
                pass_fds=list(pass_fds),
                env={},
                cwd="/",
                start_new_session=True,
            )
        for fd in (self.boot_r, self.ready_w, self.info_w):  # theirs now, so that we notice their end
            self._owned.remove(fd)
            os.close(fd)

    def read_pid(self) -> int:
        """Return the runner's pid in our numbering, as bwrap tells it."""
        answer = self._read_until(self._info_r, b"}")
        return int(json.loads(answer)["child-pid"])

    def boot(self, config: dict[str, Any]) -> dict[str, Any]:
        """Send the boot object and return what the runner says when it is ready."""
        raw = json.dumps(config).encode()
        view = memoryview(struct.pack("!I", len(raw)) + raw)
        try:
            while view:
                view = view[os.write(self._boot_w, view) :]
        except BrokenPipeError:
            raise self._failed("it ended before it was told what to do") from None
        ready: dict[str, Any] = json.loads(self._read_until(self._ready_r, b"\n"))
        return ready

    def end_monitor(self, *, is_runner: bool = False) -> None:
        """End bwrap's outer process, which has nothing left to do, and reap it."""
        if self.child is not None and not is_runner:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()
            self.child.wait(START_DEADLINE_S)

    def _read_until(self, fd: int, mark: bytes) -> bytes:
        answer = b""
        while mark not in answer:
            left = self.ends_at - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise self._failed(f"no word from it within {self.deadline_s:g} s")
            chunk = os.read(fd, 4096)
            if not chunk:
                raise self._failed("it ended at its start")
            answer += chunk
        return answer

    def _failed(self, what: str) -> StartFailed:
        tail = ""
        with contextlib.suppress(OSError):
            tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        return StartFailed(f"{what}: {tail}" if tail else what)

    def _pipe(self) -> tuple[int, int]:
        pair = os.pipe()
        self._owned += pair
        return pair
