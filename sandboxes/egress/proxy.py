"""The proxy of one sandbox: listens on the unix socket in its directory, serves one request a connection.

A tunnel (CONNECT) carries the sandbox's own TLS, whose first message must name the same host. A plain request
for a URL is sent on over TLS by the proxy itself, with the credential that the policy names: so a key never
enters the sandbox. Every wait has an end, every buffer a bound, every connection a line in the log.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections import Counter
from pathlib import Path
from typing import Final

from sandboxes.egress.dial import Dialer, Streams
from sandboxes.egress.pace import Pace
from sandboxes.egress.passage import Passage, judge
from sandboxes.egress.place import EGRESS_DIRECTORY, PROXY_SOCKET
from sandboxes.egress.policy import AllowedHost, Egress
from sandboxes.egress.request import MAX_HEAD_BYTES, Request, parse_request
from sandboxes.egress.secrets import Secrets
from sandboxes.egress.verdict import Refusal, Verdict

log = logging.getLogger(__name__)

BACKLOG: Final = 64
BURST: Final = 200  # connections before the pace of the policy holds; a build fetches many at once
RETRY_S: Final = 0.1


class EgressProxy:
    """Serves one sandbox from `start` to `close`; what is under way at `close` is cut off.

    Args:
        directory: the sandbox's, made by a tier with `prepare`.
        sandbox: its name, for the log.
        secrets, dialer: the node's own.
    """

    def __init__(
        self, directory: Path, egress: Egress, *, sandbox: str, secrets: Secrets, dialer: Dialer
    ) -> None:
        self.directory, self.sandbox = directory, sandbox
        self._egress, self._secrets, self._dialer = egress, secrets, dialer
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unserved: set[socket.socket] = set()  # accepted, and their tasks have not begun
        self.counts: Counter[Verdict] = Counter()

    async def start(self) -> None:
        """Listen, in place of a proxy that has ended.

        Raises:
            OSError: the directory is not there, or not as `prepare` made it.
        """
        self._listener = _listen(self.directory)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def close(self) -> None:
        """Stop listening and cut every connection off."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Only now, and here: a task that is cancelled before its first step closes nothing itself.
        for sock in (*self._unserved, *([self._listener] if self._listener else [])):
            sock.close()

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections as fast as the policy allows; the others wait in the socket's queue."""
        loop = asyncio.get_running_loop()
        room = asyncio.Semaphore(self._egress.max_connections)
        pace = Pace(rate=self._egress.connections_per_s, burst=BURST)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            room.release()

        while True:
            await room.acquire()
            await asyncio.sleep(pace.delay_s(loop.time()))
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors: there will be some again
                log.warning("egress sandbox=%s accepts nothing: %s", self.sandbox, error.strerror)
                room.release()
                await asyncio.sleep(RETRY_S)
                continue
            self._unserved.add(sock)
            task = asyncio.create_task(self._serve(sock))
            self._tasks.add(task)
            task.add_done_callback(ended)

    async def _serve(self, sock: socket.socket) -> None:
        self._unserved.discard(sock)
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_HEAD_BYTES)
        passage = Passage(reader, writer, self._egress)
        try:
            await self._pass(passage)
            passage.verdict = Verdict.ALLOWED
        except asyncio.CancelledError:
            pass  # the sandbox was destroyed: nobody is left to be told
        except Exception as error:  # noqa: BLE001 - the edge of a connection: judged, answered and logged
            with contextlib.suppress(asyncio.CancelledError):
                await passage.refuse(judge(error))
        finally:
            writer.close()
            self.counts[passage.verdict] += 1
            self._tell(passage)

    async def _pass(self, passage: Passage) -> None:
        request = parse_request(await passage.read_head())
        passage.target = f"{request.host}:{request.port}"
        entry = self._egress.allows(request.host, request.port)
        if entry is None:
            allowed = ", ".join(host.host for host in self._egress.hosts[:8])
            line = f"{passage.target} is not among the hosts that this sandbox may reach ({allowed})"
            raise Refusal(403, Verdict.HOST_NOT_ALLOWED, line)
        added = () if request.tunnel else self._credential(entry)
        streams = await self._dial(request)
        try:
            async with asyncio.timeout(None) as clock:
                passage.begin(clock)
                if request.tunnel:
                    await passage.tunnel(request, *streams)
                else:
                    origin = self._dialer.origins.get(request.host)
                    head = request.head(added, origin.authority if origin else None)
                    await passage.forward(request, head, *streams)
        finally:
            if passage.cut:
                streams[1].transport.abort()
            else:
                streams[1].close()

    async def _dial(self, request: Request) -> Streams:
        wait_s = self._egress.connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                return await self._dialer.open(request.host, request.port, encrypt=not request.tunnel)
        except TimeoutError:
            line = f"{request.host}:{request.port} does not answer within {wait_s:g} s"
            raise Refusal(504, Verdict.TIMED_OUT, line) from None

    def _credential(self, entry: AllowedHost) -> tuple[tuple[str, str], ...]:
        wanted = entry.credential
        if wanted is None:
            return ()
        return ((wanted.header, wanted.prefix + self._secrets.read(wanted.secret, entry.host)),)

    def _tell(self, passage: Passage) -> None:
        keys = {
            "sandbox": self.sandbox,
            "host": passage.target,
            "verdict": passage.verdict.value,
            "sent": passage.sent,
            "received": passage.received,
        }
        words = " ".join(f"{key}={value}" for key, value in keys.items())
        allowed = passage.verdict is Verdict.ALLOWED
        log.log(logging.INFO if allowed else logging.WARNING, "egress %s", words, extra=keys)


def _listen(directory: Path) -> socket.socket:
    """Return a listening socket in a sandbox's directory for it; everybody in there may connect."""
    fd = os.open(directory / EGRESS_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{directory / EGRESS_DIRECTORY} is not ours alone")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(PROXY_SOCKET, dir_fd=fd)
        # Through the descriptor: a socket's address holds 107 bytes, a directory's path may be longer.
        listener.bind(f"/proc/self/fd/{fd}/{PROXY_SOCKET}")
        os.chmod(PROXY_SOCKET, 0o666, dir_fd=fd)  # reached through the read-only mount alone
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener
