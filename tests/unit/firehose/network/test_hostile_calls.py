"""Whatever anybody sends, the network answers with one of the protocol's errors and goes on."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firehose.http import HttpSession
from firehose.network import Network
from firehose.network.app import METHODS
from firehose.network.call import Verb
from firehose.xrpc import XrpcClient

ODD = ["alice.test", "com.example.note", "one", "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "\ud800", "\x00", ""]
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=20))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "repo",
        "collection",
        "rkey",
        "record",
        "writes",
        "validate",
        "swapRecord",
        "swapCommit",
        "handle",
        "password",
        "identifier",
        "email",
        "did",
        "cid",
        "limit",
        "cursor",
        "reverse",
    ]
)
FIELDS = st.dictionaries(NAMES, JSON, max_size=6)
SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(method=st.sampled_from(sorted(METHODS)), fields=FIELDS, is_own=st.booleans())
async def test_no_call_makes_it_fail(
    network: Network, alice: XrpcClient, method: str, fields: dict[str, Any], is_own: bool
) -> None:
    assert alice.session is not None
    if is_own:
        fields = {"collection": "com.example.note", "rkey": "one", **fields, "repo": alice.session.did}
    if method.endswith(("deactivateAccount", "updateHandle")):
        return  # would end the game for the other examples
    token = alice.session.access_jwt
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    verb = METHODS[method][0]
    query = "&".join(f"{name}={quote(str(value), errors='replace')}" for name, value in fields.items())
    target = f"/xrpc/{method}" + (f"?{query}" if verb is Verb.QUERY else "")
    body = json.dumps(fields).encode() if verb is Verb.PROCEDURE else None
    async with HttpSession(network.url) as http:
        answer = await http.request(verb, target, headers=headers, body=body)
    assert answer.status < 500, answer.body
    if answer.status != 200:
        assert set(json.loads(answer.body)) == {"error", "message"}


@pytest.mark.parametrize(
    "record",
    [
        b'{"x":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"x":NaN}',
        b'{"x":1e400}',
        b'{"x":[' + b"[" * 500 + b"]" * 500 + b"]}",
        b'{"$link":"bafyreiay4l5ho7inffpyrdoyqoom5pgzh3w76jnsbdedqergz76mdvrj4q"}',
        b'{"x":{"$type":"blob","ref":{"$link":"x"},"mimeType":"a/b","size":-1}}',
        b'"text"',
    ],
)
async def test_odd_records_are_refused(network: Network, alice: XrpcClient, record: bytes) -> None:
    assert alice.session is not None
    head = b'{"repo":"alice.test","collection":"com.example.note","rkey":"one","record":'
    headers = {"Authorization": f"Bearer {alice.session.access_jwt}"}
    async with HttpSession(network.url) as http:
        answer = await http.request(
            "POST", "/xrpc/com.atproto.repo.putRecord", headers=headers, body=head + record + b"}"
        )
    assert (answer.status, json.loads(answer.body)["error"]) == (400, "InvalidRequest")


@pytest.mark.parametrize(
    "target",
    [
        "/did:plc:",
        "/%00",
        "/did:plc:x/log",
        "/nonsense",
        "/xrpc/",
        "/xrpc/%2e%2e",
        "/xrpc/a?b=%ff%fe",
        "/did:web:a",
    ],
)
async def test_no_path_makes_it_fail(network: Network, target: str) -> None:
    async with HttpSession(network.url) as http:
        for verb in ("GET", "POST"):
            answer = await http.request(verb, target, body=b"{}" if verb == "POST" else None)
            assert 400 <= answer.status < 500 or answer.status == 501


@SETTINGS
@given(operation=JSON)
async def test_no_operation_makes_the_directory_fail(network: Network, operation: Any) -> None:
    body = {"type": "plc_operation", "rotationKeys": operation, "verificationMethods": operation,
            "alsoKnownAs": operation, "services": operation, "prev": operation, "sig": operation}  # fmt: skip
    async with HttpSession(network.url) as http:
        for sent in (operation, body):
            answer = await http.request(
                "POST", "/did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", body=json.dumps(sent).encode()
            )
            assert answer.status == 400
