"""The network's one port: XRPC, the DID directory, and the event stream."""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from firehose.errors import PlcOperationInvalid, StoreUnavailable
from firehose.network import methods_repo, methods_server, methods_sync
from firehose.network.blobs import MAX_BLOB_BYTES
from firehose.network.call import Bytes, Call, Method, Verb
from firehose.network.pds import Pds
from firehose.network.refusals import Refusal, invalid_request

log = logging.getLogger(__name__)

MAX_JSON_BYTES: Final = 4 * 1024 * 1024
MAX_CLIENT_MESSAGES: Final = 16  # of a stream's listener, which has nothing to say
METHODS: Final[dict[str, tuple[Verb, Method]]] = {
    **methods_server.METHODS,
    **methods_repo.METHODS,
    **methods_sync.METHODS,
}
_UPLOAD: Final = "com.atproto.repo.uploadBlob"


def make_app(pds: Pds) -> Starlette:
    """The ASGI application over one PDS."""
    edge = _Edge(pds)
    app = Starlette(
        routes=[
            WebSocketRoute("/xrpc/com.atproto.sync.subscribeRepos", edge.subscribe),
            Route("/xrpc/_health", edge.health),
            Route("/xrpc/{method}", edge.xrpc, methods=["GET", "POST"]),
            Route("/", edge.health),
            Route("/{did}", edge.document, methods=["GET", "POST"]),
            Route("/{did}/log", edge.log),
        ]
    )
    app.router.redirect_slashes = False  # nobody is sent anywhere by the Host header of his own request
    return app


class _Edge:
    """HTTP on one side, methods on the other."""

    def __init__(self, pds: Pds) -> None:
        self._pds = pds

    async def health(self, request: Request) -> Response:
        return _answer(
            200,
            {
                "version": "skylease",
                "accounts": self._pds.accounts.count(),
                "seq": self._pds.sequencer.last_seq,
                "clients": self._pds.sequencer.fanout.clients,
            },
        )

    async def xrpc(self, request: Request) -> Response:
        name = request.path_params["method"]
        try:
            verb, method = _find(name, request.method)
            call = await self._call(request, name, verb)
            self._pds.calls[name] = self._pds.calls.get(name, 0) + 1
            answer = await method(call)
        except Refusal as refusal:
            return _answer(refusal.status, {"error": refusal.name, "message": refusal.message})
        except ClientDisconnect:
            return Response(status_code=499)
        except StoreUnavailable as error:
            log.error("store failed", extra={"method": name, "reason": error.reason})
            return _answer(503, {"error": "ServiceUnavailable", "message": str(error)})
        except Exception:
            # The edge: one call that fails in a way we did not foresee must not take the network with it.
            log.exception("method failed", extra={"method": name})
            return _answer(500, {"error": "InternalServerError", "message": "Internal Server Error"})
        if isinstance(answer, Bytes):
            return Response(answer.content, media_type=answer.content_type)
        return _answer(200, answer)

    async def document(self, request: Request) -> Response:
        did = request.path_params["did"]
        try:
            if request.method == "POST":
                operation = _json_object(await _read(request, MAX_JSON_BYTES))
                self._pds.plc.submit(did, operation)
                return _answer(200, {})
        except (Refusal, PlcOperationInvalid) as error:
            return _answer(400, {"message": str(error)})
        document = self._pds.plc.document(did) if did.startswith("did:plc:") else None
        if document is None:
            return _answer(404, {"message": f"DID not registered: {did[:256]}"})
        return _answer(200, document, "application/did+ld+json")

    async def log(self, request: Request) -> Response:
        operations = self._pds.plc.log(request.path_params["did"])
        return _answer(200 if operations else 404, operations)

    async def subscribe(self, websocket: WebSocket) -> None:
        await websocket.accept()
        query = parse_qs(websocket.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        await self._pds.sequencer.fanout.serve(_Channel(websocket), {"cursor": query.get("cursor", [])})

    async def _call(self, request: Request, name: str, verb: Verb) -> Call:
        raw, body = b"", {}
        if verb is Verb.PROCEDURE:
            raw = await _read(request, MAX_BLOB_BYTES if name == _UPLOAD else MAX_JSON_BYTES)
            if raw and name != _UPLOAD:
                body = _json_object(raw)
        return Call(
            pds=self._pds,
            parameters=dict(request.query_params),
            body=body,
            raw_body=raw,
            content_type=request.headers.get("content-type", ""),
            authorization=request.headers.get("authorization"),
        )


class _Channel:
    """A websocket as `FanOut` wants it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, message: bytes | str) -> None:
        try:
            if isinstance(message, str):
                await self._websocket.send_text(message)
            else:
                await self._websocket.send_bytes(message)
        except (WebSocketDisconnect, RuntimeError) as error:  # Starlette's words for "the client has left"
            raise ConnectionResetError(str(error)) from None

    async def close(self, code: int, reason: str) -> None:
        if self._websocket.application_state is WebSocketState.CONNECTED:
            await self._websocket.close(code, reason)

    async def receive(self) -> bytes | str | None:
        """None once it is gone, or has said too much: like a real PDS, this stream listens to nobody."""
        for _ in range(MAX_CLIENT_MESSAGES):
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
        return None


def _find(name: str, verb: str) -> tuple[Verb, Method]:
    found = METHODS.get(name)
    if found is None:
        raise Refusal("MethodNotImplemented", f"{name[:256]} is not served here", 501)
    if found[0] != verb:
        raise invalid_request(f"{name} is called with {found[0]}, not {verb}")
    return found


async def _read(request: Request, max_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise Refusal("PayloadTooLarge", f"a body has at most {max_bytes} bytes", 413)
        parts.append(part)
    return b"".join(parts)


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise invalid_request("the body is not JSON") from None
    if not isinstance(body, dict):
        raise invalid_request("the body is not a JSON object")
    return body


def _answer(
    status: int, body: Mapping[str, Any] | list[Any], media_type: str = "application/json"
) -> Response:
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return Response(content, status_code=status, media_type=media_type)
