"""A node's proxy from the outside: what goes through, what does not, and what is said. No sandbox yet."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import AllowedHost, Credential, Egress
from sandboxes.egress import prepare
from sandboxes.egress.dial import Origin
from sandboxes.egress.gateway import Gateway
from sandboxes.egress.secrets import Secret, Secrets

KEY = "sk-what-nobody-inside-may-see"


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    return Secrets({"model": Secret(source=f"file:{file}", hosts=frozenset({"api.example.com"}))})


@pytest.fixture
def egress(world: Any) -> Egress:
    ports = (world.upstream.port,)
    key = Credential(secret="model", header="x-api-key", prefix="")
    return Egress(
        hosts=(
            AllowedHost(host="api.example.com", ports=ports, credential=key),
            AllowedHost(host="*.example.org", ports=ports),
            AllowedHost(host="nowhere.example.com", ports=ports),
            AllowedHost(host="other.example.com", ports=ports, credential=Credential(secret="model")),
        ),
        max_sent_bytes=200_000,
        max_received_bytes=300_000,
        max_connections=4,
        idle_timeout_s=2.0,
    )


@pytest.fixture
async def way_out(world: Any, egress: Egress, secrets: Secrets, tmp_path: Path) -> AsyncIterator[Any]:
    """A function that starts a gateway for a directory, with this policy and dialer."""
    gateways: list[Gateway] = []

    async def start(policy: Egress = egress, dialer: Any = None) -> Path:
        directory = tmp_path / f"sandbox-{len(gateways)}"
        directory.mkdir()
        inside = prepare(directory, policy)
        assert inside is not None
        gateways.append(Gateway(secrets=secrets, dialer=dialer or world.open_dialer))
        assert await gateways[-1].open("box", directory)
        return inside.source / "proxy.sock"

    start.gateways = gateways  # type: ignore[attr-defined]
    yield start
    for gateway in gateways:
        await gateway.close_all()


async def say(path: Path, raw: bytes) -> bytes:
    """Send bytes to a proxy and return all that it answers."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        return answer


async def counted(way_out: Any, number: int = 1) -> dict[str, int]:
    """Return the first gateway's counts, once so many connections have ended."""
    counts: dict[str, int] = {}
    async with asyncio.timeout(60):
        while sum(counts.values()) < number:
            await asyncio.sleep(0.002)
            counts = way_out.gateways[0].counts()
    return counts


def get(port: int, path: str = "/echo", host: str = "api.example.com", more: str = "") -> bytes:
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n{more}\r\n".encode()


def body(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_request_goes_on_over_tls_with_the_credential_added(world: Any, way_out: Any) -> None:
    more = "X-Api-Key: mine\r\nX-Kept: yes\r\nConnection: x-hop\r\nX-Hop: no\r\nProxy-Authorization: x\r\n"
    answer = await say(await way_out(), get(world.upstream.port, "/echo?q=1", more=more))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    headers = body(answer)["headers"]
    assert [value for name, value in headers if name == "x-api-key"] == [KEY]
    assert ["x-kept", "yes"] in headers
    assert {name for name, _ in headers}.isdisjoint({"x-hop", "proxy-authorization"})
    assert body(answer)["path"] == "/echo?q=1"


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"Content-Length: 5\r\n\r\nhello", id="length"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", id="chunked"),
        pytest.param(b"Content-Length: 5\r\n\r\nhelloGET /smuggled HTTP/1.1\r\n\r\n", id="more-than-said"),
        pytest.param(b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello", id="expecting"),
    ],
)
async def test_a_body_arrives_once_and_whole(world: Any, way_out: Any, framing: bytes) -> None:
    start = f"POST http://api.example.com:{world.upstream.port}/echo HTTP/1.1\r\n".encode()
    answer = await say(await way_out(), start + framing)
    final = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert body(final)["body"] == "hello"
    assert [heard["path"] for heard in world.upstream.heard] == ["/echo"]


@pytest.mark.parametrize(
    ("path", "tail"),
    [
        ("/until-close", b"3\r\nabc\r\n0\r\n\r\n"),
        ("/chunks", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        ("/interim", b"\r\n\r\nabc"),
        ("/nothing", b"\r\n\r\n"),
    ],
)
async def test_answers_keep_their_bytes_whatever_their_framing(
    world: Any, way_out: Any, path: str, tail: bytes
) -> None:
    answer = await say(await way_out(), get(world.upstream.port, path))
    assert answer.startswith(b"HTTP/1.1 20")
    assert answer.endswith(tail)
    assert b"keep-alive" not in answer.lower()


async def test_a_head_request_has_an_answer_without_a_body(world: Any, way_out: Any) -> None:
    answer = await say(await way_out(), get(world.upstream.port).replace(b"GET", b"HEAD"))
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: " in answer


@pytest.mark.parametrize("path", ["/two-lengths", "/both-framings", "/no-http", "/switch", "/endless-head"])
async def test_an_answer_that_is_no_answer_is_a_502(world: Any, way_out: Any, path: str) -> None:
    answer = await say(await way_out(), get(world.upstream.port, path))
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway: the h")
    assert await counted(way_out) == {"bad-response": 1}


async def test_an_answer_that_is_cut_short_never_looks_whole(world: Any, way_out: Any) -> None:
    answer = await say(await way_out(), get(world.upstream.port, "/cut-short"))
    assert b"content-length: 10\r\n" in answer
    assert answer.endswith(b"\r\n\r\nabc")
    assert await counted(way_out) == {"bad-response": 1}


REFUSED = [
    pytest.param("GET http://evil.example.com:{port}/", 403, "not among the hosts", id="another-host"),
    pytest.param("GET http://api.example.com:1/", 403, "not among the hosts", id="another-port"),
    pytest.param("GET http://example.org:{port}/", 403, "not among", id="the-apex-of-a-pattern"),
    pytest.param("GET http://evilexample.org:{port}/", 403, "not among", id="a-suffix-without-its-dot"),
    pytest.param("GET http://api.example.com.:{port}/", 403, "not a host name", id="a-dot-at-the-end"),
    pytest.param("GET http://127.0.0.1:{port}/", 403, "address", id="an-address"),
    pytest.param("GET http://0x7f.1:{port}/", 403, "address", id="an-address-half-in-hex"),
    pytest.param("GET http://0x7f000001:{port}/", 403, "not a full host name", id="hex"),
    pytest.param("GET http://2130706433:{port}/", 403, "not a full host name", id="decimal"),
    pytest.param("GET http://0177.0.0.01:{port}/", 403, "address", id="octal"),
    pytest.param("GET http://[::1]:{port}/", 400, "name and a port", id="v6"),
    pytest.param("GET http://[::ffff:127.0.0.1]:{port}/", 400, "name and a port", id="mapped"),
    pytest.param("GET http://localhost:{port}/", 403, "not a full host name", id="localhost"),
    pytest.param("GET http://api.example.com@evil.example.com:{port}/", 400, "no user", id="a-user"),
    pytest.param("GET http://evil.example.com#@api.example.com:{port}/", 400, "whole URL", id="a-fragment"),
    pytest.param("GET http://evil.example.com\\@api.example.com:{port}/", 400, "no user", id="a-backslash"),
    pytest.param("GET http://api.example.com%00.evil.com:{port}/", 403, "not a host name", id="percent"),
    pytest.param("GET http://api。example。com:{port}/", 400, "no request", id="ideographic-dots"),
    pytest.param("GET ftp://api.example.com/", 400, "whole URL", id="ftp"),
    pytest.param("GET file:///etc/passwd", 400, "whole URL", id="file"),
    pytest.param("GET /latest/meta-data/", 400, "whole URL", id="no-url"),
    pytest.param("TRACE http://api.example.com:{port}/", 405, "TRACE", id="trace"),
    pytest.param("CONNECT api.example.com", 400, "port", id="connect-without-a-port"),
    pytest.param("CONNECT 169.254.169.254:80", 403, "address", id="connect-to-metadata"),
    pytest.param("CONNECT evil.example.com:443", 403, "not among", id="connect-to-another"),
    pytest.param("CONNECT api.example.com:22", 403, "not among", id="connect-to-another-port"),
]


@pytest.mark.parametrize(("line", "status", "words"), REFUSED)
async def test_what_is_not_allowed_is_refused_in_one_line(
    world: Any, way_out: Any, line: str, status: int, words: str
) -> None:
    raw = f"{line.replace('{port}', str(world.upstream.port))} HTTP/1.1\r\n\r\n".encode()
    answer = (await say(await way_out(), raw)).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    said = answer.partition("\r\n\r\n")[2]
    assert said.startswith("skylease: ")
    assert words in said
    assert said.count("\n") == 1
    assert world.asked == []  # not even a name was looked up


SMUGGLED = [
    pytest.param("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="both-framings"),
    pytest.param("Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", id="two-lengths"),
    pytest.param("Content-Length: +5\r\n\r\nhello", id="a-signed-length"),
    pytest.param("Content-Length: 5, 5\r\n\r\nhello", id="a-list-of-lengths"),
    pytest.param("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="two-codings"),
    pytest.param("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="nearly-chunked"),
    pytest.param("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="a-space-before-the-colon"),
    pytest.param("X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a-folded-line"),
    pytest.param("X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a-bare-line-feed"),
    pytest.param("X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a-bare-return"),
    pytest.param("X: a\0b\r\n\r\n", id="a-nul"),
    pytest.param("Host: evil.example.com\r\n\r\n", id="another-host"),
    pytest.param("Host: api.example.com\r\nHost: api.example.com\r\n\r\n", id="two-hosts"),
    pytest.param("Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", id="a-negative-chunk"),
    pytest.param("Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\r\n\r\n", id="chunks-by-line-feed"),
    pytest.param("Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n", id="a-chunk-too-long"),
    pytest.param("".join(f"X-{n}: y\r\n" for n in range(101)) + "\r\n", id="too-many-headers"),
    pytest.param(f"X: {'y' * 40_000}\r\n\r\n", id="too-large-a-head"),
    pytest.param("Expect: 200-ok\r\n\r\n", id="another-expectation"),
]


@pytest.mark.parametrize("rest", SMUGGLED)
async def test_what_two_parsers_could_read_in_two_ways_is_refused(
    world: Any, way_out: Any, rest: str
) -> None:
    start = f"POST http://api.example.com:{world.upstream.port}/echo HTTP/1.1\r\n"
    answer = await say(await way_out(), (start + rest).encode())
    assert answer[9:12] in (b"400", b"417", b"431", b"501", b"502")
    assert world.upstream.heard == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0", "168.63.129.16",
        "::1", "fe80::1%2", "fd00:ec2::254", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    ],
)  # fmt: skip
async def test_a_name_that_leads_inside_is_refused(world: Any, way_out: Any, address: str) -> None:
    world.names["api.example.com"] = ["93.184.216.34", address]  # one bad address is enough
    answer = await say(await way_out(dialer=world.dialer), get(world.upstream.port))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"api.example.com leads to an address that is refused" in answer
    assert await counted(way_out) == {"address-refused": 1}


async def test_a_name_is_looked_up_once(world: Any, way_out: Any) -> None:
    await say(await way_out(), get(world.upstream.port))
    assert world.asked == ["api.example.com"]


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("nowhere.example.com", b"502 Bad Gateway: there is no host nowhere.example.com"),
        ("wild.example.org", b"certificate is not valid for 'wild.example.org'"),
        ("other.example.com", b"the node has no secret model for other.example.com"),
    ],
)
async def test_what_goes_wrong_on_the_way_is_told(world: Any, way_out: Any, host: str, words: bytes) -> None:
    assert words in await say(await way_out(), get(world.upstream.port, host=host))
    assert world.upstream.heard == []


async def test_a_server_of_the_operators_is_reached_under_its_alias_alone(
    world: Any, way_out: Any, egress: Egress
) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port, alias = server.sockets[0].getsockname()[1], "model.skylease.internal"
        origins = {alias: Origin(host="localhost", port=port, encrypt=False)}
        policy = replace(egress, hosts=(*egress.hosts, AllowedHost(host=alias)))
        path = await way_out(policy, replace(world.dialer, origins=origins))
        assert (await say(path, get(443, "/v1", host=alias))).endswith(b"\r\n\r\nok")
        assert b"host: localhost:%d\r\n" % port in heard[0]
        refused = await say(path, f"CONNECT {alias}:443 HTTP/1.1\r\n\r\n".encode())
        assert b"never through a tunnel" in refused
        assert b"an address that is refused (loopback)" in await say(path, get(world.upstream.port))
        assert b"not a full host name" in await say(path, get(port, host="localhost"))
    assert len(heard) == 1


# -- tunnels ------------------------------------------------------------------------------------------------


async def tunnel(path: Path, world: Any, server_name: str | None, *, host: str = "api.example.com") -> bytes:
    """GET /echo through a tunnel, with TLS that asks for this name."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"CONNECT {host}:{world.upstream.port} HTTP/1.1\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    context = ssl.create_default_context(cafile=str(world.authority))
    context.check_hostname = False
    try:
        await writer.start_tls(context, server_hostname=server_name)
        writer.write(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return await reader.read()
    finally:
        writer.transport.abort()


async def test_a_tunnel_carries_the_clients_own_tls_and_no_credential(world: Any, way_out: Any) -> None:
    answer = await tunnel(await way_out(), world, "api.example.com")
    assert body(answer)["path"] == "/echo"
    assert KEY not in answer.decode()


@pytest.mark.parametrize("name", ["evil.example.com", "127.0.0.1", None])
async def test_a_tunnel_that_asks_for_another_server_is_cut(
    world: Any, way_out: Any, name: str | None
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await tunnel(await way_out(), world, name)
    assert await counted(way_out) == {"name-mismatch": 1}
    assert world.upstream.heard == []


async def test_a_tunnel_for_anything_but_tls_is_cut(world: Any, way_out: Any) -> None:
    raw = f"CONNECT api.example.com:{world.upstream.port} HTTP/1.1\r\n\r\n".encode()
    answer = await say(await way_out(), raw + b"GET / HTTP/1.1\r\n\r\n")
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
    assert await counted(way_out) == {"name-mismatch": 1}


# -- limits -------------------------------------------------------------------------------------------------


async def test_what_is_too_large_is_cut_off(world: Any, way_out: Any) -> None:
    path, port = await way_out(), world.upstream.port
    start = f"POST http://api.example.com:{port}/echo HTTP/1.1\r\n".encode()
    assert (await say(path, start + b"Content-Length: 200001\r\n\r\n"))[9:12] == b"413"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n%s\r\n" % (b"x" * 65536) * 4
    assert (await say(path, start + chunks))[9:12] == b"413"
    world.upstream.answer = b"x" * 400_000
    assert len(await say(path, get(port, "/large"))) < 300_100
    assert await counted(way_out, 3) == {"too-large": 3}


async def test_connections_beyond_the_limit_wait_and_the_idle_are_cut(
    world: Any, way_out: Any, egress: Egress
) -> None:
    world.upstream.released.clear()
    path = await way_out(replace(egress, max_connections=1, idle_timeout_s=1.0))
    held = asyncio.ensure_future(say(path, get(world.upstream.port, "/wait")))
    while not world.asked:
        await asyncio.sleep(0.002)
    later = asyncio.ensure_future(say(path, get(world.upstream.port)))
    assert (await held).startswith(b"HTTP/1.1 504 Gateway Timeout: the time for this connection is over")
    assert (await later).startswith(b"HTTP/1.1 200 OK")
    assert await counted(way_out, 2) == {"allowed": 1, "timed-out": 1}
    world.upstream.released.set()


async def test_a_flood_from_one_sandbox_is_not_felt_by_another(world: Any, way_out: Any) -> None:
    flooded, other = await way_out(), await way_out()
    half = get(world.upstream.port)[:20]
    opening = [asyncio.open_unix_connection(flooded) for _ in range(300)]
    opened = await asyncio.gather(*opening, return_exceptions=True)
    held = [pair[1] for pair in opened if not isinstance(pair, BaseException)]
    for writer in held:
        writer.write(half)
    for _ in range(20):
        assert (await say(other, get(world.upstream.port))).startswith(b"HTTP/1.1 200")
    for writer in held:
        writer.transport.abort()


async def test_a_client_that_goes_away_is_noticed(world: Any, way_out: Any) -> None:
    world.upstream.released.clear()
    _, writer = await asyncio.open_unix_connection(await way_out())
    writer.write(get(world.upstream.port, "/wait"))
    while not world.asked:
        await asyncio.sleep(0.002)
    writer.close()
    assert await counted(way_out) == {"broken": 1}
    world.upstream.released.set()


async def test_closing_cuts_off_what_is_under_way(world: Any, way_out: Any) -> None:
    path = await way_out()
    world.upstream.released.clear()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(get(world.upstream.port, "/wait"))
    gateway = way_out.gateways[0]
    while not world.asked:
        await asyncio.sleep(0.002)
    await gateway.close("box")
    world.upstream.released.set()
    assert await reader.read() == b""
    assert gateway.counts() == {"closed": 1}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(path)
    writer.close()


@pytest.mark.parametrize("steps", range(5))
async def test_closing_at_any_moment_leaves_nobody_hanging(world: Any, way_out: Any, steps: int) -> None:
    path = await way_out()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.setblocking(False)
        for _ in range(steps):  # of the event loop: before it accepts, before it serves, while it reads
            await asyncio.sleep(0)
        await way_out.gateways[0].close("box")
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.get_running_loop().sock_recv(client, 10) == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(path)


# -- what is said about it -----------------------------------------------------------------------------------


async def test_every_connection_is_one_line_in_the_log_and_no_line_has_the_key(
    world: Any, way_out: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path, port = await way_out(), world.upstream.port
    await say(path, get(port, more="X-Secret: payload\r\n"))
    await say(path, get(port, host="evil.example.com"))
    await say(path, b"GET http://api.example.com\x1b[31m/ HTTP/1.1\r\n\r\n")
    await counted(way_out, 3)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("sandboxes")]
    assert lines[0].startswith(
        f"egress sandbox=box host=api.example.com:{port} verdict=allowed sent=0 received="
    )
    assert lines[1:] == [
        f"egress sandbox=box host=evil.example.com:{port} verdict=host-not-allowed sent=0 received=0",
        "egress sandbox=box host=- verdict=bad-request sent=0 received=0",
    ]
    assert KEY not in caplog.text
    assert "payload" not in caplog.text


async def test_another_gateway_takes_over_what_a_dead_one_served(
    world: Any, way_out: Any, secrets: Secrets, tmp_path: Path
) -> None:
    path = await way_out()
    second = Gateway(secrets=secrets, dialer=world.open_dialer)
    assert await second.open("box", tmp_path / "sandbox-0")
    assert await second.open("box", tmp_path / "sandbox-0")  # again is no harm
    assert (await say(path, get(world.upstream.port))).startswith(b"HTTP/1.1 200")
    await second.close_all()


async def test_a_directory_that_somebody_replaced_is_not_used(
    world: Any, way_out: Any, secrets: Secrets, tmp_path: Path
) -> None:
    await way_out()
    directory = tmp_path / "sandbox-0" / "egress"
    os.rename(directory, tmp_path / "moved")
    os.symlink(tmp_path / "moved", directory)
    with pytest.raises(OSError, match="Not a directory"):
        await Gateway(secrets=secrets, dialer=world.dialer).open("box", tmp_path / "sandbox-0")


async def test_a_directory_without_a_policy_has_no_way_out(
    world: Any, secrets: Secrets, tmp_path: Path
) -> None:
    assert prepare(tmp_path, None) is None
    assert not await Gateway(secrets=secrets, dialer=world.dialer).open("box", tmp_path)
    assert [name for name in os.listdir(tmp_path) if name != "key"] == []
