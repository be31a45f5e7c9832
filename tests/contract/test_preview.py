"""Ports of a sandbox, seen from outside: as a stream, and through the preview proxy with its tokens."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sandboxes import InvalidSpec, PortError, Sandbox, SandboxBusy, SandboxNotFound, connect_sandbox
from sandboxes.preview import Preview, PreviewProxy, expose_port, exposed_ports, unexpose_port

ECHO = """
import asyncio
async def serve(reader, writer):
    head = (await reader.readuntil(b'\\r\\n\\r\\n')).decode()
    if 'upgrade: websocket' in head.lower():
        writer.write(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n\\r\\n')
        while chunk := await reader.read(65536):
            writer.write(chunk[::-1])
    else:
        body = head.split(' ')[1].encode() * (1 if '/big' not in head else 200_000)
        length = b'Content-Length: %d\\r\\n' % len(body)
        writer.write(b'HTTP/1.1 200 OK\\r\\n' + length + b'Connection: close\\r\\n\\r\\n' + body)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', PORT)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture
async def served(sandbox: Sandbox, unused_port: int) -> AsyncIterator[int]:
    """A port on which a server inside answers with the path it was asked for."""
    process = await sandbox.start_process(["python3", "-c", ECHO.replace("PORT", str(unused_port))])
    await process.wait_for_port(unused_port, timeout=20)
    yield unused_port
    await process.kill()


@pytest.fixture
async def proxy(bench: Any) -> AsyncIterator[PreviewProxy]:
    async with PreviewProxy([bench.root]) as proxy:
        yield proxy


async def get(proxy: PreviewProxy, host: str, path: str = "/a", *, more: str = "") -> tuple[int, bytes]:
    """Return the status and the body that a GET over a connection of its own brings."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        async with asyncio.timeout(20):
            writer.write(f"GET {path} HTTP/1.1\r\n{host and f'Host: {host}'}\r\n{more}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            return int(head.split()[1]), await reader.read()
    finally:
        writer.close()


async def test_a_port_is_a_stream(sandbox: Sandbox, served: int) -> None:
    async with sandbox.open_port(served) as (reader, writer):
        writer.write(b"GET /hello HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n/hello")
    with pytest.raises(PortError):
        async with sandbox.open_port(1):
            pass


async def test_the_preview_of_a_port(sandbox: Sandbox, proxy: PreviewProxy, served: int) -> None:
    preview = expose_port(sandbox, served)
    assert expose_port(sandbox, served) == preview
    assert exposed_ports(sandbox) == [preview]
    assert proxy.url(preview) == f"http://{preview.token}.{served}-shared.localhost:{proxy.port}/"
    assert await get(proxy, preview.host) == (200, b"/a")
    assert await get(proxy, f"{preview.host.upper()}:{proxy.port}", "/b?c=1") == (200, b"/b?c=1")
    status, body = await get(proxy, preview.host, "/big")
    assert (status, len(body)) == (200, 4 * 200_000)
    answers = await asyncio.gather(*(get(proxy, preview.host, f"/{n}") for n in range(8)))
    assert answers == [(200, f"/{n}".encode()) for n in range(8)]
    unexpose_port(sandbox, served)
    unexpose_port(sandbox, served)
    assert exposed_ports(sandbox) == []
    assert (await get(proxy, preview.host))[0] == 404
    assert expose_port(sandbox, served).token != preview.token


async def test_a_websocket_passes(sandbox: Sandbox, proxy: PreviewProxy, served: int) -> None:
    preview = expose_port(sandbox, served)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    async with asyncio.timeout(20):
        writer.write(f"GET / HTTP/1.1\r\nHost: {preview.host}\r\nUpgrade: websocket\r\n\r\n".encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        for frame in (b"\x81\x05hello", bytes(range(256))):
            writer.write(frame)
            assert await reader.readexactly(len(frame)) == frame[::-1]
    writer.close()


async def test_what_the_proxy_refuses(bench: Any, sandbox: Sandbox, proxy: PreviewProxy, served: int) -> None:
    preview = expose_port(sandbox, served)
    other = replace(preview, token="0" * 32)
    hosts = ["", "localhost", "127.0.0.1", other.host, preview.host + ".example", f"x{preview.host}"]
    hosts += [replace(preview, port=served % 60_000 + 1024).host, replace(preview, sandbox="other").host]
    hosts += [f"{preview.token}.{served}-../shared.localhost", f"{preview.host}\r\nHost: {preview.host}"]
    for host in hosts:
        assert (await get(proxy, host))[0] == 404, host
    assert (await get(proxy, preview.host, more="x: " + "y" * 70_000 + "\r\n"))[0] == 431
    closed = expose_port(sandbox, served % 60_000 + 1025)
    assert (await get(proxy, closed.host))[0] == 502


@pytest.mark.parametrize("port", [0, 80, 65_536, -1, 3128])
async def test_ports_that_nobody_can_have(sandbox: Sandbox, port: int) -> None:
    with pytest.raises(InvalidSpec):
        expose_port(sandbox, port)


async def test_a_preview_ends_with_its_sandbox_and_its_holder(bench: Any, proxy: PreviewProxy) -> None:
    sandbox = await bench.tier.create(bench.spec("seen", epoch=2))
    preview = expose_port(sandbox, 9000)
    assert (await get(proxy, preview.host))[0] == 502
    await bench.tier.freeze("seen")
    assert (await get(proxy, replace(preview, token="1" * 32).host))[0] == 404
    assert (await bench.tier.inspect("seen")).state == "waiting"  # a wrong token wakes nobody
    assert (await get(proxy, preview.host))[0] == 502
    await connect_sandbox(sandbox.directory, epoch=3).renew()
    assert (await get(proxy, preview.host))[0] == 410
    await bench.tier.destroy("seen")
    assert (await get(proxy, preview.host))[0] == 404
    with pytest.raises(SandboxNotFound):
        expose_port(sandbox, 9000)
    await bench.tier.create(bench.spec("seen", epoch=2))
    assert (await get(proxy, preview.host))[0] == 404
    await bench.tier.destroy("seen")


async def test_an_open_connection_is_use_and_ends_with_the_sandbox(
    bench: Any, proxy: PreviewProxy, unused_port: int
) -> None:
    sandbox = await bench.tier.create(bench.spec("used"))
    process = await sandbox.start_process(["python3", "-c", ECHO.replace("PORT", str(unused_port))])
    await process.wait_for_port(unused_port, timeout=20)
    preview: Preview = expose_port(sandbox, unused_port)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {preview.host}\r\nUpgrade: websocket\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    with pytest.raises(SandboxBusy):
        await bench.tier.freeze("used")
    await bench.tier.destroy("used")
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_a_silent_connection_is_closed(bench: Any, sandbox: Sandbox, served: int) -> None:
    async with PreviewProxy([bench.root], idle_deadline_s=0.3) as proxy:
        preview = expose_port(sandbox, served)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {preview.host}\r\nUpgrade: websocket\r\n\r\n".encode())
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
        writer.close()
