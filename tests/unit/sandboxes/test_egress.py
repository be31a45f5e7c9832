"""What a policy allows, which addresses are public, and how a request, a ClientHello and a body are read."""

import ipaddress
import ssl
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import AllowedHost, Credential, Egress, InvalidSpec
from sandboxes.egress import load_egress, parse_host, prepare
from sandboxes.egress.addresses import refusal
from sandboxes.egress.bodies import BadMessage, Download, Upload
from sandboxes.egress.hello import NotAHello, server_name
from sandboxes.egress.pace import Pace
from sandboxes.egress.request import METHODS, BadRequest, Body, Request, parse_request
from sandboxes.egress.secrets import Secret, SecretMissing, Secrets

KEY = "sk-secret"
POLICY = Egress(
    hosts=(
        AllowedHost(host="*.example.org", ports=(443, 8443)),
        AllowedHost(host="api.example.org", credential=Credential(secret="model")),
    )
)

# -- policy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port", "entry"),
    [
        ("api.example.org", 443, "api.example.org"),  # the exact one first, with its credential
        ("api.example.org", 8443, "*.example.org"),
        ("a.b.example.org", 443, "*.example.org"),
        ("example.org", 443, None),
        ("xexample.org", 443, None),
        ("api.example.org.evil.com", 443, None),
        ("api.example.org", 80, None),
    ],
)
def test_allows(host: str, port: int, entry: str | None) -> None:
    found = POLICY.allows(host, port)
    assert (found.host if found else None) == entry


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "localhost", "a..b", ".a.b", "a.b.", "-a.b", "a-.b", "a b.c", "a.b:443", "u@a.b", "a.b/c",
        "a.b%00", "a.b\n", "127.0.0.1", "127.1", "0x7f.0x1", "a.0x7f", "a.1", "a.0x", "1.2.3.4.5", "[::1]",
        "::1", "bücher.de",
        "a。b", "ａ.com", "\u212a.com", f"{'a' * 64}.com", f"{'a.' * 127}com",
    ],
)  # fmt: skip
def test_what_is_no_host_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not a|an address)"):
        parse_host(text)


@given(st.text(max_size=60))
def test_a_host_name_is_never_an_address_and_stays_itself(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError:
        return
    assert parse_host(host) == host
    with pytest.raises(ValueError):  # noqa: PT011 - whatever ipaddress says: it is none
        ipaddress.ip_address(host)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: Egress(hosts=()), "egress.hosts"),
        (lambda: Egress(hosts=POLICY.hosts * 200), "egress.hosts"),
        (lambda: replace(POLICY, max_connections=0), "egress.max_connections"),
        (lambda: replace(POLICY, idle_timeout_s=float("nan")), "egress.idle_timeout_s"),
        (lambda: AllowedHost(host="*"), "egress.hosts"),
        (lambda: AllowedHost(host="*.com"), "egress.hosts"),
        (lambda: AllowedHost(host="a.*.com"), "egress.hosts"),
        (lambda: AllowedHost(host="A.com"), "egress.hosts"),
        (lambda: AllowedHost(host="10.0.0.1"), "egress.hosts"),
        (lambda: AllowedHost(host="a.com", ports=()), "egress.hosts"),
        (lambda: AllowedHost(host="a.com", ports=(0,)), "egress.hosts"),
        (lambda: AllowedHost(host="*.a.com", credential=Credential(secret="x")), "egress.hosts"),
        (lambda: Credential(secret="../x"), "egress.credential.secret"),
        (lambda: Credential(secret="x", header="host"), "egress.credential.header"),
        (lambda: Credential(secret="x", header="a: b"), "egress.credential.header"),
        (lambda: Credential(secret="x", prefix="a\r\nb"), "egress.credential.prefix"),
    ],
)
def test_a_policy_that_cannot_be(made: Any, field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        made()
    assert caught.value.field == field


def test_a_policy_is_kept_beside_the_sandbox_and_not_inside_it(tmp_path: Path) -> None:
    inside = prepare(tmp_path, POLICY)
    assert inside is not None
    assert load_egress(tmp_path) == POLICY
    assert list(inside.source.iterdir()) == []
    assert ((tmp_path / "egress.json").stat().st_mode & 0o777, inside.source.stat().st_mode & 0o777) == (
        0o600,
        0o755,
    )
    (tmp_path / "egress.json").write_text('{"hosts": 3}')
    with pytest.raises(InvalidSpec, match="damaged"):
        load_egress(tmp_path)


# -- addresses ----------------------------------------------------------------------------------------------

INSIDE = [
    ("127.8.9.1", "loopback"), ("10.255.0.1", "private"), ("172.31.0.1", "private"),
    ("192.168.1.1", "private"), ("169.254.169.254", "link-local"), ("100.100.100.200", "carrier-grade NAT"),
    ("168.63.129.16", "metadata"), ("0.0.0.0", "reserved"), ("224.0.0.251", "multicast"),
    ("255.255.255.255", "reserved"), ("192.0.0.192", "reserved"), ("198.18.0.1", "reserved"),
    ("192.88.99.1", "reserved"), ("::", "reserved"), ("::1", "loopback"), ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"), ("fd00:ec2::254", "private"), ("fec0::1", "private"),
    ("ff02::1", "multicast"), ("2001:db8::1", "reserved"), ("::ffff:127.0.0.1", "wrapped loopback"),
    ("::ffff:8.8.8.8", "wrapped IPv4"), ("::127.0.0.1", "wrapped loopback"),
    ("64:ff9b::a9fe:a9fe", "wrapped link-local"), ("64:ff9b:1::1", "reserved"),
    ("2002:7f00:1::", "wrapped loopback"), ("2001:0:1:2:3:4:80ff:fffe", "wrapped"), ("4000::1", "reserved"),
    ("localhost", "malformed"), ("0x7f000001", "malformed"), ("127.1", "malformed"),
]  # fmt: skip


@pytest.mark.parametrize(("address", "kind"), INSIDE)
def test_addresses_that_are_refused(address: str, kind: str) -> None:
    assert (refusal(address) or "public").startswith(kind)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"])
def test_addresses_that_are_public(address: str) -> None:
    assert refusal(address) is None


@given(st.ip_addresses(v=4))
def test_no_address_that_is_not_global_passes_however_it_is_wrapped(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    if not address.is_global or address.is_multicast:
        assert refusal(str(address)) is not None
    for prefix in (0xFFFF << 32, 0x64FF9B << 96, 0):
        assert refusal(str(ipaddress.IPv6Address(prefix | number))) is not None
    assert refusal(str(ipaddress.IPv6Address((0x2002 << 112) | number << 80))) is not None


@given(st.ip_addresses(v=6))
def test_only_global_unicast_passes(address: ipaddress.IPv6Address) -> None:
    if refusal(str(address)) is None:
        assert address.is_global
        assert int(address) >> 125 == 1


# -- requests -----------------------------------------------------------------------------------------------


def post(*headers: str, target: str = "http://api.example.org/v1") -> bytes:
    return "\r\n".join([f"POST {target} HTTP/1.1", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("target", "host", "port", "path"),
    [
        ("http://api.example.org", "api.example.org", 443, "/"),
        ("http://api.example.org:80/x", "api.example.org", 443, "/x"),
        ("https://api.example.org/x?y#z", None, 0, ""),
        ("https://API.example.org?q", "api.example.org", 443, "/?q"),
        ("http://api.example.org:8443/", "api.example.org", 8443, "/"),
    ],
)
def test_targets(target: str, host: str | None, port: int, path: str) -> None:
    if host is None:
        with pytest.raises(BadRequest):
            parse_request(post(target=target))
        return
    request = parse_request(post(target=target))
    assert (request.host, request.port, request.path, request.tunnel) == (host, port, path, False)


def test_what_is_sent_on_is_written_anew() -> None:
    request = parse_request(
        post("X-Api-Key: theirs", "Accept: */*", "Connection: x-hop", "X-Hop: 1", "Content-Length: 2")
    )
    assert request.head((("x-api-key", KEY),)) == (
        b"POST /v1 HTTP/1.1\r\nhost: api.example.org\r\naccept: */*\r\n"
        b"x-api-key: sk-secret\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    )


@given(st.binary(max_size=300))
def test_nothing_but_a_request_is_read_as_one(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(raw)


@given(
    st.sampled_from(sorted(METHODS)),
    st.lists(st.tuples(st.sampled_from(["A", "Content-Length", "Transfer-Encoding", "Host", "Connection"]),
                       st.text(st.characters(max_codepoint=255), max_size=20)), max_size=4),
)  # fmt: skip
def test_a_head_that_is_sent_on_reads_the_same_again(method: str, headers: list[tuple[str, str]]) -> None:
    head = "\r\n".join(
        [f"{method} http://a.example.org/ HTTP/1.1", *(f"{n}: {v}" for n, v in headers), "", ""]
    )
    try:
        request = parse_request(head.encode("latin-1"))
    except BadRequest:
        return
    sent = request.head()
    assert sent.count(b"\r\n\r\n") == 1
    assert sent.count(b"\n") == sent.count(b"\r") == sent.count(b"\r\n")
    again = parse_request(sent.replace(b" / ", b" http://a.example.org/ ", 1))
    assert (again.body, again.length, again.headers) == (request.body, request.length, request.headers)


# -- bodies -------------------------------------------------------------------------------------------------

CHUNKED = parse_request(post("Transfer-Encoding: chunked"))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.integers(1, 30))
def test_a_chunked_body_is_the_same_wherever_it_is_cut(chunks: list[bytes], step: int) -> None:
    raw = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    upload = Upload(CHUNKED)
    sent = b"".join(upload.feed(raw[at : at + step]) for at in range(0, len(raw), step))
    assert upload.complete
    again = Upload(CHUNKED)
    assert again.feed(sent) == sent
    assert again.complete


def test_nothing_after_a_body_is_sent_on() -> None:
    upload = Upload(replace(CHUNKED, body=Body.LENGTH, length=3))
    assert upload.feed(b"abcGET / HTTP/1.1\r\n\r\n") == b"abc"
    assert upload.complete


@given(st.binary(max_size=200))
def test_an_answer_is_read_or_refused(raw: bytes) -> None:
    download = Download(Request(tunnel=False, method="GET", host="a.example.org", port=443))
    try:
        out = download.feed(b"HTTP/1.1 200 OK\r\n" + raw) + download.end()
    except BadMessage:
        return
    assert out.startswith(b"HTTP/1.1 200 OK\r\n")


# -- tunnels ------------------------------------------------------------------------------------------------


@cache
def hello(name: str | None) -> bytes:
    """The first bytes of a real client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def test_the_name_in_a_real_hello_is_found_however_it_is_cut() -> None:
    whole = hello("API.example.org")
    for size in range(len(whole)):
        assert server_name(whole[:size]) is None
    assert server_name(whole + b"more") == "api.example.org"
    assert server_name(in_records(whole, 100)) == "api.example.org"
    with pytest.raises(NotAHello, match="more than 16 records"):
        server_name(in_records(whole, 7))


def in_records(hello: bytes, size: int) -> bytes:
    """The same message in records of so many bytes."""
    parts = [hello[at : at + size] for at in range(5, len(hello), size)]
    return b"".join(bytes((22, 3, 1)) + len(part).to_bytes(2) + part for part in parts)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"SSH-2.0-x\r\n", id="ssh"),
        pytest.param(b"\x80\x2e\x01\x03\x01", id="ssl2"),
        pytest.param(bytes((22, 3, 1, 0, 0)), id="an-empty-record"),
        pytest.param(bytes((22, 3, 1, 0, 4, 2, 0, 0, 0)), id="a-server-hello"),
        pytest.param(bytes((22, 3, 1, 0, 4, 1, 1, 0, 0)), id="too-large"),
        pytest.param(bytes((22, 3, 1, 0, 8, 1, 0, 0, 4, 3, 3, 0, 0)), id="cut-short"),
    ],
)
def test_what_is_no_hello(raw: bytes) -> None:
    with pytest.raises(NotAHello):
        server_name(raw)


@pytest.mark.parametrize("name", [None, "127.0.0.1"])
def test_a_hello_without_a_name(name: str | None) -> None:
    with pytest.raises(NotAHello, match="names no server"):
        server_name(hello(name))


@given(st.integers(0, 600), st.integers(0, 255))
def test_a_damaged_hello_is_refused_or_read(at: int, value: int) -> None:
    raw = bytearray(hello("api.example.org"))
    raw[at % len(raw)] = value
    try:
        name = server_name(bytes(raw))
    except NotAHello:
        return
    assert name is None or parse_host(name) == name


# -- pace ---------------------------------------------------------------------------------------------------


def test_a_pace_lets_a_burst_through_and_then_its_rate() -> None:
    pace = Pace(rate=10, burst=3)
    assert [pace.delay_s(100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert pace.delay_s(100.3) == 0
    assert [pace.delay_s(200.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


# -- secrets ------------------------------------------------------------------------------------------------


def secret(source: str) -> Secrets:
    return Secrets({"model": Secret(source=source, hosts=frozenset({"api.example.org"}))})


def test_a_secret_goes_to_its_hosts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f"{KEY}\n")
    secrets = secret("env:SOME_KEY")
    assert secrets.read("model", "api.example.org") == KEY
    for name, host in (("model", "evil.example.org"), ("other", "api.example.org")):
        with pytest.raises(SecretMissing, match="the node has no secret"):
            secrets.read(name, host)
    assert KEY not in repr(secrets)


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (KEY, 0o644, "mode 0600"),
        (KEY, 0o640, "mode 0600"),
        ("", 0o600, "is empty"),
        ("a\r\nb: c", 0o600, "nothing that a header"),
        ("schlüssel", 0o600, "nothing that a header"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, mode: int, says: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(SecretMissing, match=says) as caught:
        secret(f"file:{file}").read("model", "api.example.org")
    assert KEY not in str(caught.value)


def test_a_secret_is_never_written_down() -> None:
    with pytest.raises(InvalidSpec) as caught:
        secret(KEY)
    assert KEY not in str(caught.value)
