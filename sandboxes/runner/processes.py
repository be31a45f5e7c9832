"""Background processes: started on request, logged in rings, ended on request or with the sandbox."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from .jobs import Work
from .loop import Loop, Timer
from .task import Capture, Task

MAX_PROCESSES = 64  # kept, running or ended, per sandbox
LOG_BYTES = 1 << 20  # of each stream, the newest
Answer = dict[str, Any]
Reply = Callable[[Answer, bytes], None]


class Background:
    """One background process and its log."""

    def __init__(self, argv: list[str], session: str | None) -> None:
        self.argv, self.session = argv, session
        self.task: Task | None = None
        self.ended = False
        self.out, self.err = Capture(LOG_BYTES, ring=True), Capture(LOG_BYTES, ring=True)
        self._waiting: list[tuple[Timer, Callable[[], None]]] = []

    def start(self, loop: Loop, make: Callable[..., Task], work: Work) -> None:
        """Begin; `make` builds the task."""
        self._loop = loop
        self.task = make(
            work, b"", timeout_s=None, captures=(self.out, self.err), done=self._on_end, on_output=self._wake
        )

    def poll(self, out_from: int, err_from: int, wait_s: float, reply: Reply) -> None:
        """Answer with the log from these offsets on, at once if there is any or it has ended, else within
        `wait_s`.
        """
        if self.ended or self._size(self.out) > out_from or self._size(self.err) > err_from or wait_s <= 0:
            reply(*self._answer(out_from, err_from))
            return
        entry: list[tuple[Timer, Callable[[], None]]] = []

        def answer() -> None:
            if entry[0] in self._waiting:
                self._waiting.remove(entry[0])
            entry[0][0].cancel()
            reply(*self._answer(out_from, err_from))

        entry.append((self._loop.later(wait_s, answer), answer))
        self._waiting.append(entry[0])

    def summary(self, number: str) -> Answer:
        """Return what `list_processes` says of it."""
        assert self.task is not None
        return {"id": number, "argv": self.argv, "running": not self.ended, "exit_code": self.task.exit_code}

    def _answer(self, out_from: int, err_from: int) -> tuple[Answer, bytes]:
        assert self.task is not None
        out, out_at = self._since(self.out, out_from)
        err, err_at = self._since(self.err, err_from)
        head = {
            "running": not self.ended,
            "exit_code": self.task.exit_code if self.ended else None,
            "stdout_len": len(out),
            "out_offset": out_at,
            "err_offset": err_at,
            "dropped": self.out.dropped + self.err.dropped,
        }
        return head, out + err

    @staticmethod
    def _size(capture: Capture) -> int:
        return capture.dropped + len(capture.kept)

    @classmethod
    def _since(cls, capture: Capture, offset: int) -> tuple[bytes, int]:
        return bytes(capture.kept[max(0, offset - capture.dropped) :]), cls._size(capture)

    def _on_end(self, _: Task) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        for _, answer in list(self._waiting):
            answer()


def port_is_open(port: int) -> bool:
    """Say whether something inside the sandbox accepts TCP connections on this loopback port."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(0.05)
                probe.connect((host, port))
                return True
        except OSError:
            continue
    return False
