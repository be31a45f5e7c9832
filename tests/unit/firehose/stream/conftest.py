"""Frames that say nothing but who they are, and upstreams that do what a test tells them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from firehose.frames import encode_identity
from firehose.subscribe import Backoff

DID = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"
Script = Callable[[ServerConnection], Awaitable[None]]
Upstream = Callable[[Script], AbstractAsyncContextManager[str]]


def identity_frame(seq: int, did: str = DID, size_bytes: int = 0) -> bytes:
    return encode_identity(seq=seq, did=did, time="2026-01-01T00:00:00.000Z", handle="a" * size_bytes or None)


@pytest.fixture
def frame() -> Callable[..., bytes]:
    """`frame(seq, did=…, size_bytes=…)`: an #identity frame."""
    return identity_frame


@pytest.fixture
def fast() -> Backoff:
    """Pauses that a test can afford."""
    return Backoff(base=0.01, cap=0.05, floor=0.001)


@pytest.fixture
def upstream() -> Upstream:
    """`async with upstream(script) as url`: a websocket server that runs `script` on every connection."""

    @asynccontextmanager
    async def run(script: Script) -> AsyncIterator[str]:
        async with serve(script, "127.0.0.1", 0, compression=None) as server:
            yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"

    return run
