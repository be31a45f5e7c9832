"""Preview ports: what listens inside a sandbox, seen from the node under an address that holds a secret.

A preview's address is http://TOKEN.PORT-NAME.localhost:P/ where P is the proxy's port; `*.localhost` is the
loopback in every browser. Tokens lie in the sandbox's own directory, DIRECTORY/previews/PORT: any proxy of
the node finds them there, and they end with the sandbox. A token belongs to the holder who asked for it: when
the sandbox has seen a newer epoch, it is stale. The proxy looks at the first request of a connection only;
after that the connection belongs to the port, so websockets pass as they are.
"""

import asyncio
import contextlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sandboxes.egress import EGRESS_PORT
from sandboxes.errors import InvalidSpec, PortError, SandboxError, SandboxNotFound, StaleEpoch
from sandboxes.sandbox import Sandbox, connect_sandbox

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(1024, 65_536)  # nobody inside may listen below
TOKEN_BYTES: Final = 16
MAX_HEAD_BYTES: Final = 64 << 10
HEAD_DEADLINE_S: Final = 10.0
IDLE_DEADLINE_S: Final = 900.0  # without a byte in either direction; an open connection keeps a sandbox awake
MAX_CONNECTIONS: Final = 256
CHUNK_BYTES: Final = 1 << 16
_HOST: Final = re.compile(rb"([0-9a-f]{32})\.([1-9][0-9]{3,4})-([a-z0-9-]{1,48})\.localhost(?::[0-9]{1,5})?")
_HOST_LINE: Final = re.compile(rb"(?im)^host:[ \t]*([^\r\n]*?)[ \t]*\r$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The right to reach one port of one sandbox."""

    sandbox: str
    port: int
    epoch: int
    token: str

    @property
    def host(self) -> str:
        """The name under which a proxy of the node knows it."""
        return f"{self.token}.{self.port}-{self.sandbox}.localhost"


def expose_port(sandbox: Sandbox, port: int) -> Preview:
    """Return the preview of a port, the same one if this holder has it already.

    Raises:
        InvalidSpec: no ordinary user can listen on that port.
        SandboxNotFound: the sandbox has ended.
    """
    if port not in PORTS:
        raise InvalidSpec("port", f"{port} is not from {PORTS.start} to {PORTS.stop - 1}")
    if port == EGRESS_PORT:  # its visitors would act with the sandbox's credentials
        raise InvalidSpec("port", f"{port} is the sandbox's own way out")
    folder = sandbox.directory / "previews"
    known = _load(folder / str(port))
    if known is not None and known.epoch == sandbox.epoch:
        return known
    token = secrets.token_hex(TOKEN_BYTES)
    preview = Preview(sandbox=sandbox.name, port=port, epoch=sandbox.epoch, token=token)
    temporary = folder / f".{port}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(preview)), encoding="utf-8")
        os.replace(temporary, folder / str(port))
    except FileNotFoundError:
        raise SandboxNotFound(sandbox.name, "its directory is gone") from None
    return preview


def unexpose_port(sandbox: Sandbox, port: int) -> None:
    """Revoke the preview of a port, if there is one; open connections end by themselves."""
    (sandbox.directory / "previews" / str(port)).unlink(missing_ok=True)


def exposed_ports(sandbox: Sandbox) -> list[Preview]:
    """Return the previews of a sandbox, by port."""
    with contextlib.suppress(FileNotFoundError):
        paths = [path for path in (sandbox.directory / "previews").iterdir() if path.name.isdigit()]
        return [found for path in sorted(paths, key=lambda path: int(path.name)) if (found := _load(path))]
    return []


class PreviewProxy:
    """Serves the previews of all sandboxes under some state directories, on the loopback of this node.

    Args:
        roots: state directories of tiers.
        port: where to listen; 0: any free port, see `port` afterwards.
        idle_deadline_s: after so long without a byte a connection is closed.
    """

    def __init__(
        self, roots: Sequence[Path], *, port: int = 0, idle_deadline_s: float = IDLE_DEADLINE_S
    ) -> None:
        self._roots, self.port, self._idle_deadline_s = tuple(roots), port, idle_deadline_s
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connect, LOOPBACK, self.port, limit=MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def url(self, preview: Preview) -> str:
        """Return where a preview is."""
        return f"http://{preview.host}:{self.port}/"

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                _refuse(writer, "503 Service Unavailable", "too many connections")
            else:
                await self._serve(reader, writer)
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.drain(), HEAD_DEADLINE_S)
        except (OSError, TimeoutError, EOFError):
            pass  # the client went away
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _refuse(writer, "431 Request Header Fields Too Large", "the request's head is too large")
        preview, sandbox = self._find(head)
        if preview is None or sandbox is None:
            return _refuse(writer, "404 Not Found", "there is no such preview, or it was revoked")
        try:
            async with sandbox, sandbox.open_port(preview.port) as (inside, to_inside):
                to_inside.write(head)
                await _join((reader, to_inside), (inside, writer), self._idle_deadline_s)
        except StaleEpoch:
            _refuse(writer, "410 Gone", "the preview is of an earlier holder of the sandbox")
        except PortError:
            _refuse(writer, "502 Bad Gateway", f"nothing listens on port {preview.port} of the sandbox")
        except SandboxError:
            _refuse(writer, "503 Service Unavailable", "the sandbox does not answer")
        return None

    def _find(self, head: bytes) -> tuple[Preview | None, Sandbox | None]:
        """Return the preview that a request's head names, and whose it is."""
        hosts = _HOST_LINE.findall(head)
        match = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if match is None:
            return None, None
        token, port, name = (group.decode() for group in match.groups())
        for root in self._roots:
            found = _load(root / name / "previews" / port)
            if found is not None and hmac.compare_digest(found.token, token):
                return found, connect_sandbox(root / name, epoch=found.epoch)
        return None, None


def _load(path: Path) -> Preview | None:
    try:
        return Preview(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(out: Pair, back: Pair, idle_deadline_s: float) -> None:
    """Pass bytes both ways until the port has said all.

    Raises:
        TimeoutError: nobody has said anything for too long.
    """
    loop = asyncio.get_running_loop()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # one of them went away: as good as an end
            while chunk := await source.read(CHUNK_BYTES):
                limit.reschedule(loop.time() + idle_deadline_s)
                target.write(chunk)
                await target.drain()
            target.write_eof()

    async with asyncio.timeout(idle_deadline_s) as limit, asyncio.TaskGroup() as tasks:
        outward = tasks.create_task(pump(*out))
        await pump(*back)
        outward.cancel()


def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = reason.encode() + b"\n"
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
        + body
    )
