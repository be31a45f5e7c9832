"""The client's end of a runner's socket: many requests at once over one connection, each with a deadline."""

import asyncio
import itertools
import os
import socket
from pathlib import Path
from typing import Any, Final, cast

from sandboxes.errors import SandboxGone
from sandboxes.runner.wire import SIZES, Decoder, Head, WireError, pack

SOCKET_NAME: Final = "runner.sock"
CONNECT_DEADLINE_S: Final = 5.0


def connect_socket(path: Path) -> socket.socket:
    """Return a connected, non-blocking socket.

    Raises:
        OSError: nobody listens there (BlockingIOError: try again, its queue is full).
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # A socket's address holds 107 bytes: through its descriptor, the directory may be of any length.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    except BaseException:
        sock.close()
        raise
    return sock


async def open_stream(
    path: Path, sandbox: str, head: Head
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Head]:
    """Send one request over a connection of its own and return the connection with the answer's head.

    Raises:
        SandboxGone: nobody listens there, or no answer came.
    """
    try:
        async with asyncio.timeout(CONNECT_DEADLINE_S * 2):
            reader, writer = await asyncio.open_unix_connection(sock=connect_socket(path))
            try:
                writer.write(pack(head))
                raw = await reader.readexactly(SIZES.size)
                frames = Decoder().feed(raw + await reader.readexactly(sum(SIZES.unpack(raw))))
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer, frames[0][0]
    except (OSError, EOFError, WireError, TimeoutError) as error:
        raise SandboxGone(sandbox, f"no connection to {path} ({error})") from None


class Channel(asyncio.Protocol):
    """One connection to a runner."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._decoder = Decoder()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Head, bytes]]] = {}
        self._transport: asyncio.Transport | None = None
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, path: Path, sandbox: str) -> "Channel":
        """Connect to the runner that listens at `path`.

        Raises:
            SandboxGone: nobody does, or it does not accept in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_DEADLINE_S
        while True:
            try:
                sock = connect_socket(path)
                break
            except BlockingIOError:
                if loop.time() > deadline:
                    raise SandboxGone(sandbox, "its runner accepts no connection") from None
                await asyncio.sleep(0.005)
            except OSError as error:
                raise SandboxGone(sandbox, f"nobody listens at {path} ({error.strerror})") from None
        return (await loop.create_unix_connection(lambda: cls(sandbox), sock=sock))[1]

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def request(self, head: Head, body: bytes = b"", *, deadline_s: float) -> tuple[Head, bytes]:
        """Send a request and return the answer's head and body; a cancelled request is cancelled inside, too.

        Raises:
            SandboxGone: the connection broke, or no answer came within `deadline_s`.
        """
        if self._transport is None or not self.is_open:
            raise SandboxGone(self._sandbox, "the connection is closed")
        number = next(self._numbers)
        frame = pack({"id": number, **head}, body)
        answer: asyncio.Future[tuple[Head, bytes]] = self.loop.create_future()
        self._waiting[number] = answer
        timer = self.loop.call_later(deadline_s, self._give_up, answer, deadline_s)
        try:
            self._transport.write(frame)
            return await answer
        except asyncio.CancelledError:
            self._cancel(number, int(head["epoch"]))
            raise
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Drop the connection; what was asked over it is cancelled inside."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self._fail(f"it sent what is no frame ({error})")
            self.close()
            return
        for head, body in frames:
            number = head.get("id")
            answer = self._waiting.get(number) if isinstance(number, int) else None
            if answer is not None and not answer.done():
                answer.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._fail("the connection broke")

    def _fail(self, reason: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxGone(self._sandbox, reason))

    def _give_up(self, answer: "asyncio.Future[Any]", deadline_s: float) -> None:
        if not answer.done():
            answer.set_exception(SandboxGone(self._sandbox, f"no answer within {deadline_s:g} s"))

    def _cancel(self, number: int, epoch: int) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(pack({"id": 0, "op": "cancel", "epoch": epoch, "target": number}))
