"""FrameServer: com.atproto.sync.subscribeRepos over a window of accepted frames."""

import http
import json
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from firehose.fanout import FanOut
from firehose.frames import CommitEvent, Frame, parse_frame
from firehose.listen import listening_socket
from firehose.window import MAX_LAG_FRAMES, Entry, FrameWindow, Window

log = logging.getLogger(__name__)

SUBSCRIBE_PATH: Final = "/xrpc/com.atproto.sync.subscribeRepos"
MAX_CLIENTS: Final = 4096
MAX_CLIENT_MESSAGE_BYTES: Final = 1 << 20  # an options_update of 10,000 accounts has 0.4 MB
MAX_QUEUED_MESSAGES: Final = 2  # of one client, before its socket is left alone
PING_INTERVAL_S: Final = 30.0  # indigo pings at 30 s
PING_TIMEOUT_S: Final = 60.0  # a client that reads nothing for this long is gone


class FrameServer:
    """Serves the frames it is given, with a cursor over the window, each client with its own filter.

    Clients filter with the repeated query parameters `wantedDids` and `wantedCollections` (an NSID or
    "prefix.*"), and change that at any time with Jetstream's message `{"type": "options_update", "payload":
    {"wantedDids": […], "wantedCollections": […]}}`; with `requireHello=true` nothing is sent before the first
    one. `format=json` gets every frame as JSON text, with its records and its verdict. A GET of "/" answers
    JSON: {"seq", "clients", ...}.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        window: Window | None = None,
        *,
        max_lag_frames: int = MAX_LAG_FRAMES,
        health: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Prepare to serve; nothing listens before the context is entered.

        Args:
            host: address to listen on.
            port: 0 takes any free one; see `port` afterwards.
            window: what is already there to be served; default an empty one.
            max_lag_frames: a live client further behind is told ConsumerTooSlow and closed.
            health: extra fields for the JSON at "/".
        """
        self.host = host
        self.port = port
        self.window: Window = FrameWindow() if window is None else window
        self._fanout = FanOut(self.window, max_lag_frames=max_lag_frames)
        self._health = health
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """ws://host:port, for a subscriber."""
        return f"ws://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            PortInUse: somebody else has the port.
            ListenFailed: the address cannot be taken.
        """
        listener = listening_socket(self.host, self.port)
        self.port = listener.getsockname()[1]
        self._server = await serve(
            self._serve_client,
            sock=listener,
            process_request=self._answer_plain,
            compression=None,  # measured: three times the CPU for 29 % fewer bytes
            max_size=MAX_CLIENT_MESSAGE_BYTES,
            max_queue=MAX_QUEUED_MESSAGES,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=2.0,
            server_header=None,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def publish(
        self,
        frame: bytes,
        seq: int | None = None,
        did: str | None = None,
        collections: tuple[str, ...] = (),
    ) -> None:
        """Append a frame to the window and pass it on; one without a seq goes to who is connected now.

        Args:
            frame: as received.
            seq: higher than every seq before it; None: read it, and what filters need, from the frame.
            did: whose event it is.
            collections: of all ops of a #commit; empty for other events.

        Raises:
            FrameInvalid: it had to be read and cannot be.
            ValueError: seq is not higher than the last.
        """
        if seq is not None:
            self.append(Entry(seq, frame, did, collections))
            return
        event = parse_frame(frame)
        if getattr(event, "seq", None) is None:
            self.notify(frame)
        else:
            self.append(entry_of(frame, event))

    def append(self, entry: Entry) -> None:
        """Append a frame to the window and pass it on.

        Raises:
            ValueError: its seq is not higher than the last.
        """
        self.window.append(entry)
        self._fanout.publish(entry)

    def notify(self, frame: bytes) -> None:
        """Pass on a frame without a seq (an #info) to the clients that are connected now."""
        self._fanout.notify(frame)

    def stats(self) -> dict[str, Any]:
        """What the JSON at "/" says."""
        return {
            "seq": self.window.last_seq,
            "clients": self._fanout.clients,
            "window": {
                "frames": len(self.window),
                "bytes": self.window.size_bytes,
                "missing_seq": self.window.missing_seq,
            },
            "served": dict(self._fanout.counters),
        }

    async def _serve_client(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        query = parse_qs(urlsplit(connection.request.path).query, keep_blank_values=True)
        await self._fanout.serve(_WebSocketChannel(connection), query)
        log.debug("client left", extra={"remote": connection.remote_address})

    def _answer_plain(self, connection: ServerConnection, request: Request) -> Response | None:
        path = urlsplit(request.path).path
        if path == "/":
            answer = connection.respond(
                http.HTTPStatus.OK,
                json.dumps({**self.stats(), **(self._health() if self._health else {})}) + "\n",
            )
            del answer.headers["Content-Type"]
            answer.headers["Content-Type"] = "application/json"
            return answer
        if path != SUBSCRIBE_PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"only {SUBSCRIBE_PATH} is served here\n")
        if self._fanout.clients >= MAX_CLIENTS:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many clients\n")
        return None


def entry_of(frame: bytes, event: Frame, verdict: str | None = None, reason: str = "") -> Entry:
    """A frame with what filters look at. `event` is what it was parsed to, and has a seq."""
    collections: tuple[str, ...] = ()
    if isinstance(event, CommitEvent):
        collections = tuple(dict.fromkeys(op.path.partition("/")[0] for op in event.ops))
    return Entry(getattr(event, "seq", 0), frame, getattr(event, "did", None), collections, verdict, reason)


class _WebSocketChannel:
    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def send(self, message: bytes | str) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from None

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)

    async def receive(self) -> bytes | str | None:
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            return None
