"""A host on the loopback that speaks TLS under names of its own, and a node's way out that knows it."""

import datetime
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandboxes.egress.dial import Dialer, strict_tls

RAW = {
    "/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "/both-framings": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab",
    "/no-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "/endless-head": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 8000) for n in range(40)),
    "/cut-short": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "/until-close": b"HTTP/1.1 200 OK\r\nX-Kept: yes\r\nConnection: x-hop\r\nKeep-Alive: 5\r\n\r\nabc",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
    "/interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "/nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
}


class Upstream:
    """Answers `/echo` with what it heard, a path of RAW with its bytes, any other with `answer` (or what
    that makes of what was heard).
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.heard: list[dict[str, Any]] = []
        self.answer: bytes | Callable[[dict[str, Any]], bytes] = b"{}"
        self.released = threading.Event()
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                if self.path in RAW:
                    self.wfile.write(RAW[self.path])
                    self.close_connection = True
                    return
                if self.path == "/wait":
                    upstream.released.wait(20)
                heard = {
                    "method": self.command,
                    "path": self.path,
                    "headers": [[name.lower(), value] for name, value in self.headers.items()],
                    "body": self._body(),
                }
                upstream.heard.append(heard)
                answer = upstream.answer if isinstance(upstream.answer, bytes) else upstream.answer(heard)
                self._say(json.dumps(heard).encode() if self.path.startswith("/echo") else answer)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

            def _body(self) -> str:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body.decode()

            def _say(self, raw: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else raw)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[Any, Any]:
                sock, address = super().get_request()
                return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that go away are what some tests are about

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


class World:
    """The names that resolve, the upstream behind them, and the dialers of two nodes."""

    def __init__(self, upstream: Upstream, tls: ssl.SSLContext, authority: Path) -> None:
        self.upstream, self.authority, self._tls = upstream, authority, tls
        self.names: dict[str, list[str]] = {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError("no such host")
        return self.names[host]

    @property
    def open_dialer(self) -> Dialer:
        """That of a test: the upstream is on the loopback."""
        return Dialer(resolver=self.resolve, own_resolver=self.resolve, tls=self._tls, allow_private=True)

    @property
    def dialer(self) -> Dialer:
        """That of a real node."""
        return Dialer(resolver=self.resolve, tls=self._tls)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An authority's certificate, and a file with key and certificate for api.example.com."""
    folder = tmp_path_factory.mktemp("tls")
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, key: Any, issuer: x509.Name, signer: Any, *, is_ca: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        usage = x509.KeyUsage(True, False, False, False, False, is_ca, is_ca, False, False)
        found = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject)
        found = found.public_key(key.public_key()).serial_number(x509.random_serial_number())
        found = found.not_valid_before(now - datetime.timedelta(days=1))
        found = found.not_valid_after(now + datetime.timedelta(days=1))
        found = found.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        found = found.add_extension(usage, critical=True).add_extension(names, critical=False)
        return found.sign(signer, hashes.SHA256())

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca.test")])
    ca = certificate("ca.test", ca_key, ca_name, ca_key, is_ca=True)
    leaf = certificate("api.example.com", key, ca_name, ca_key, is_ca=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "leaf.pem").write_bytes(private + leaf.public_bytes(pem))
    return folder / "ca.pem", folder / "leaf.pem"


@pytest.fixture(scope="module")
def world(certificates: tuple[Path, Path]) -> Iterator[World]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[1])
    upstream = Upstream(context)
    thread = threading.Thread(target=upstream.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    tls = strict_tls()
    tls.load_verify_locations(certificates[0])
    yield World(upstream, tls, certificates[0])
    upstream.released.set()
    upstream.server.shutdown()
    thread.join()
    upstream.server.server_close()


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest) -> None:
    """Give each test that has a world a fresh one: these names, nothing heard."""
    if "world" in request.fixturenames:
        world: World = request.getfixturevalue("world")
        world.names = {
            "api.example.com": ["127.0.0.1"],
            "other.example.com": ["127.0.0.1"],
            "wild.example.org": ["127.0.0.1"],
        }
        world.asked.clear()
        world.upstream.heard.clear()
        world.upstream.answer = b"{}"
