"""One connection through the proxy: its two ends, the bytes between them, and how it went."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine
from typing import Any, Final

from sandboxes.egress.bodies import BadMessage, Download, Upload
from sandboxes.egress.dial import BUFFER_BYTES
from sandboxes.egress.hello import MAX_RECORDS, UNRECOGNIZED_NAME, NotAHello, server_name
from sandboxes.egress.policy import Egress
from sandboxes.egress.request import END_OF_HEAD, MAX_HEAD_BYTES, BadRequest, Request
from sandboxes.egress.secrets import SecretMissing
from sandboxes.egress.verdict import Refusal, Verdict

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S: Final = 10.0  # for a request's head, and for a tunnel's first message
LINGER_S: Final = 1.0  # reading on after a refusal, so that the client gets to read it
LINGER_BYTES: Final = 1 << 20
REASONS: Final = {
    400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 413: "Content Too Large",
    417: "Expectation Failed", 431: "Request Header Fields Too Large", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


class Passage:
    """One connection: its two ends, what went through, how it went."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, egress: Egress) -> None:
        self._reader, self._writer, self._egress = reader, writer, egress
        self._clock: asyncio.Timeout | None = None
        self._latest = 0.0
        self._answered = False
        self.target = "-"  # until it is known and checked: a stranger's bytes do not go into the log
        self.verdict = Verdict.CLOSED
        self.cut = True  # whether it ended before its end
        self.sent = self.received = 0

    async def read_head(self) -> bytes:
        """Return the head of the request."""
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            try:
                return await self._reader.readuntil(END_OF_HEAD)
            except asyncio.LimitOverrunError:
                raise BadRequest(431, f"the head is larger than {MAX_HEAD_BYTES} bytes") from None

    def begin(self, clock: asyncio.Timeout) -> None:
        """Count time from here."""
        self._clock = clock
        self._latest = asyncio.get_running_loop().time() + self._egress.total_timeout_s
        self._touch()

    async def tunnel(self, request: Request, up: asyncio.StreamReader, down: asyncio.StreamWriter) -> None:
        """Join the two ends, once the client has asked for the server that it announced."""
        self._answered = True
        self._writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        down.write(await self._hello(request.host))
        await _both(self._download(up), self._upload(down))

    async def forward(
        self,
        request: Request,
        head: bytes,
        up: asyncio.StreamReader,
        down: asyncio.StreamWriter,
    ) -> None:
        """Send a request on, under this head, and its answer back."""
        if request.length > self._egress.max_sent_bytes:
            raise Refusal(413, Verdict.TOO_LARGE, f"a body of {request.length} bytes may not be sent")
        down.write(head)
        if request.expects_continue:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await _both(self._answer(request, up), self._send_body(request, down))

    async def refuse(self, refusal: Refusal) -> None:
        """Tell the client, if nothing was said yet."""
        self.verdict = refusal.verdict
        if self._answered or self._writer.is_closing():
            self._writer.transport.abort()  # what was begun must not look whole
            return
        body = f"skylease: {refusal.line}\n".encode()
        line = "".join(letter if letter.isprintable() else "?" for letter in refusal.line)
        head = f"HTTP/1.1 {refusal.status} {REASONS[refusal.status]}: {line}\r\n"
        head += f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(head.encode("ascii", "replace") + b"connection: close\r\n\r\n" + body)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                self._writer.write_eof()
                for _ in range(LINGER_BYTES // BUFFER_BYTES):
                    if not await self._reader.read(BUFFER_BYTES):
                        break

    async def _hello(self, host: str) -> bytes:
        """Return the first bytes of the client's TLS, which name `host`."""
        first = b""
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            for _ in range(MAX_RECORDS):  # it is read from its start each time: not for as often as they like
                chunk = await self._reader.read(BUFFER_BYTES)
                if not chunk:
                    raise ConnectionError("the sandbox went away")
                self._count_sent(len(chunk))
                first += chunk
                try:
                    name = server_name(first)
                except NotAHello as error:
                    raise Refusal(403, Verdict.NAME_MISMATCH, str(error)) from None
                if name == host:
                    return first
                if name is not None:
                    self._writer.write(UNRECOGNIZED_NAME)
                    with contextlib.suppress(OSError):
                        await self._writer.drain()
                    raise Refusal(403, Verdict.NAME_MISMATCH, f"the tunnel to {host} asks for another server")
        raise Refusal(403, Verdict.NAME_MISMATCH, "its first message comes in too many pieces")

    async def _upload(self, down: asyncio.StreamWriter) -> None:
        while chunk := await self._reader.read(BUFFER_BYTES):
            self._count_sent(len(chunk))
            down.write(chunk)
            await down.drain()
        down.write_eof()

    async def _download(self, up: asyncio.StreamReader) -> None:
        while chunk := await up.read(BUFFER_BYTES):
            self._count_received(len(chunk))
            self._writer.write(chunk)
            await self._writer.drain()
        self.cut = False

    async def _send_body(self, request: Request, down: asyncio.StreamWriter) -> None:
        upload = Upload(request)
        while chunk := await self._reader.read(BUFFER_BYTES):
            if upload.complete:
                continue  # one request a connection: what comes after it goes nowhere
            self._count_sent(len(chunk))
            down.write(upload.feed(chunk))
            with contextlib.suppress(ConnectionError):  # a host may answer before it has read all
                await down.drain()
        raise ConnectionError("the sandbox went away")  # nobody is left to hear the answer

    async def _answer(self, request: Request, up: asyncio.StreamReader) -> None:
        download = Download(request)
        while not download.complete:
            chunk = await up.read(BUFFER_BYTES)
            self._count_received(len(chunk))
            out = download.feed(chunk) if chunk else download.end()
            if out:
                self._answered = True
                self._writer.write(out)
                await self._writer.drain()
        self.cut = False

    def _count_sent(self, size: int) -> None:
        self.sent += size
        if self.sent > self._egress.max_sent_bytes:
            raise Refusal(413, Verdict.TOO_LARGE, f"more than {self._egress.max_sent_bytes} bytes were sent")
        self._touch()

    def _count_received(self, size: int) -> None:
        self.received += size
        if self.received > self._egress.max_received_bytes:
            limit = self._egress.max_received_bytes
            raise Refusal(502, Verdict.TOO_LARGE, f"the answer is larger than {limit} bytes")
        self._touch()

    def _touch(self) -> None:
        if self._clock is not None:
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(min(self._latest, now + self._egress.idle_timeout_s))


def judge(error: BaseException) -> Refusal:
    """Return what an error that ended a connection means for both sides."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case Refusal():
            return error
        case BadRequest():
            return Refusal(error.status, Verdict.BAD_REQUEST, error.line)
        case SecretMissing():
            return Refusal(502, Verdict.NO_SECRET, str(error))
        case BadMessage():
            return Refusal(502, Verdict.BAD_RESPONSE, str(error))
        case TimeoutError():
            return Refusal(504, Verdict.TIMED_OUT, "the time for this connection is over")
        case OSError() | EOFError() | ssl.SSLError():
            return Refusal(502, Verdict.BROKEN, "the connection broke")
        case _:
            log.exception("egress failed", exc_info=error)
            return Refusal(502, Verdict.BROKEN, "the proxy failed")


async def _both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run both; when the first ends, so does the second; when either fails, both end."""
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(second)
        await group.create_task(first)
        beside.cancel()
