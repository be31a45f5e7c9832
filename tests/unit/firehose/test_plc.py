"""did:plc operations: a log proves itself, and any change of it shows."""

import copy
from typing import Any

import pytest

from firehose.cid import Cid
from firehose.document import handle, pds_url, signing_key
from firehose.errors import PlcOperationInvalid
from firehose.keys import Curve, SigningKey
from firehose.plc import (
    Operation,
    build_operation,
    check_genesis,
    check_log,
    check_update,
    genesis_did,
    operation_cid,
    render_document,
)

ROTATION = SigningKey.from_bytes(bytes([1]) * 32)
SIGNING = SigningKey.from_bytes(bytes([2]) * 32, Curve.P256)
ENDPOINT = "http://127.0.0.1:2583"


def genesis(**changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "signing_key": SIGNING.did_key,
        "handle": "alice.test",
        "endpoint": ENDPOINT,
        "rotation_key": ROTATION,
    }
    return build_operation(**{**fields, **changes})


def test_the_did_is_the_hash_of_the_signed_genesis() -> None:
    operation = genesis()
    did = genesis_did(operation)
    assert len(did) == len("did:plc:") + 24
    assert check_genesis(did, operation).did == did
    other = genesis_did(genesis(handle="bob.test"))
    assert other != did
    with pytest.raises(PlcOperationInvalid, match=did):  # says what its hash makes
        check_genesis(other, operation)


def test_a_rendered_document_reads_back() -> None:
    operation = genesis()
    state = check_genesis(genesis_did(operation), operation)
    document = render_document(state)
    assert signing_key(document, state.did) == SIGNING.verifying_key
    assert handle(document, state.did) == "alice.test"
    assert pds_url(document, state.did) == ENDPOINT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rotationKeys", [SIGNING.did_key]),
        ("rotationKeys", []),
        ("rotationKeys", ["did:key:zNonsense"]),
        ("rotationKeys", [ROTATION.did_key] * 6),
        ("verificationMethods", {"atproto": ROTATION.did_key}),
        ("verificationMethods", {}),
        ("alsoKnownAs", ["at://mallory.test"]),
        ("alsoKnownAs", []),
        ("alsoKnownAs", [1]),
        ("services", {"atproto_pds": {"type": "AtprotoPersonalDataServer", "endpoint": "http://evil"}}),
        ("services", {}),
        ("services", []),
        ("prev", "bafyreiay4l5ho7inffpyrdoyqoom5pgzh3w76jnsbdedqergz76mdvrj4q"),
        ("type", "plc_tombstone"),
        ("sig", "AAAA"),
        ("sig", "not base64!"),
        ("sig", 7),
        ("extra", "field"),
        ("alsoKnownAs", ["at://alice.test" + "x" * 9000]),
    ],
)
def test_any_change_shows(field: str, value: object) -> None:
    operation = genesis()
    did = genesis_did(operation)
    with pytest.raises(PlcOperationInvalid):
        check_genesis(did, {**operation, field: value})
    changed = {**operation, field: value}
    with pytest.raises(PlcOperationInvalid):
        check_genesis(_did_of(changed), changed)


def _did_of(operation: Operation) -> str:
    try:
        return genesis_did(operation)
    except (TypeError, ValueError):
        return "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"


def test_updates_follow_one_another() -> None:
    first = genesis()
    did = genesis_did(first)
    second = genesis(handle="alice2.test", prev=operation_cid(first))
    third = genesis(handle="alice3.test", prev=operation_cid(second))
    state = check_log(did, [first, second, third])
    assert (state.did, state.handle, state.head) == (did, "alice3.test", operation_cid(third))
    for broken in ([first, third], [second], [first, second, second], []):
        with pytest.raises(PlcOperationInvalid):
            check_log(did, broken)


def test_only_a_rotation_key_in_force_updates() -> None:
    first = genesis()
    state = check_genesis(genesis_did(first), first)
    stranger = SigningKey.from_bytes(bytes([9]) * 32)
    with pytest.raises(PlcOperationInvalid):
        check_update(state, genesis(rotation_key=stranger, prev=state.head))
    # A key that was rotated out has no say any more.
    handed_over = copy.deepcopy(genesis(prev=state.head))
    assert check_update(state, handed_over).rotation_keys == (ROTATION.did_key,)


def test_prev_is_the_cid_of_the_signed_operation() -> None:
    operation = genesis()
    assert isinstance(operation_cid(operation), Cid)
    assert operation_cid(operation) != operation_cid({**operation, "sig": "AAAA"})
