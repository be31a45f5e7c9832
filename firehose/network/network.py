"""Network: an AT Protocol network in one asyncio server."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import uvicorn

from firehose.clock import now_ms
from firehose.listen import listening_socket
from firehose.network.app import make_app
from firehose.network.pds import Pds, Validate, open_pds
from firehose.network.store import Store

DATABASE: Final = "network.db"
KEEP_ALIVE_S: Final = 75  # idle agents keep their connection between two turns
SHUTDOWN_S: Final = 1  # for requests in flight when we stop
PING_INTERVAL_S: Final = 30.0
PING_TIMEOUT_S: Final = 60.0
MAX_CLIENT_MESSAGE_BYTES: Final = 4096


class Network:
    """A PDS, its did:plc directory and its event stream on one port of this machine.

    `async with Network(path) as network: …` serves at `network.url` until the block ends. Accounts, keys,
    repos and the sequence live in one SQLite file and go on at the next start, also on another port: the
    documents then follow.
    """

    def __init__(
        self,
        path: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], int] = now_ms,
        entropy: Callable[[int], bytes] = os.urandom,
        validate: Validate | None = None,
    ) -> None:
        """Prepare; nothing is opened before the context is entered.

        Args:
            path: the database file, or a directory to put it in.
            host: address to listen on.
            port: 0 takes any free one; see `port` afterwards.
            clock: epoch milliseconds: revs, tokens, event times.
            entropy: random bytes: keys, salts, token ids.
            validate: called with (collection, record) for every record written, unless the writer says
                validate=false; raises FirehoseError or ValueError to refuse it.
        """
        self.host = host
        self.port = port
        self._path = path / DATABASE if path.is_dir() or not path.suffix else path
        self._clock = clock
        self._entropy = entropy
        self._validate = validate
        self._pds: Pds | None = None
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        """http://host:port: of the PDS, of the directory, and for a subscriber."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Open the database and serve.

        Raises:
            PortInUse: somebody else has the port.
            ListenFailed: the address cannot be taken.
            StoreUnavailable: the database cannot be opened, or another process has it open.
        """
        listener = listening_socket(self.host, self.port)
        try:
            self.port = listener.getsockname()[1]
            store = Store(self._path)
            try:
                self._pds = open_pds(
                    store, self.url, clock=self._clock, entropy=self._entropy, validate=self._validate
                )
                self._pds.move_here()
                self._server = _server(self._pds)
                await self._server.startup([listener])
            except BaseException:
                store.close()
                raise
        except BaseException:
            listener.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await _stop(self._server)
            self._server = None
        if self._pds is not None:
            self._pds.store.close()
            self._pds = None

    def stats(self) -> dict[str, Any]:
        """Accounts, the last seq, connected clients, calls by method, and how clients of the stream ended."""
        if self._pds is None:
            return {}
        return {
            "accounts": self._pds.accounts.count(),
            "seq": self._pds.sequencer.last_seq,
            "clients": self._pds.sequencer.fanout.clients,
            "calls": dict(self._pds.calls),
            "served": dict(self._pds.sequencer.fanout.counters),
        }


def _server(pds: Pds) -> uvicorn.Server:
    """A uvicorn server without its main loop: no signal handlers, no tick ten times a second."""
    config = uvicorn.Config(
        make_app(pds),
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_CLIENT_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_INTERVAL_S,
        ws_ping_timeout=PING_TIMEOUT_S,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


async def _stop(server: uvicorn.Server) -> None:
    """Close everything; uvicorn's own shutdown sleeps for a tenth of a second first."""
    for listening in server.servers:
        listening.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    tasks = list(server.server_state.tasks)
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=SHUTDOWN_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
