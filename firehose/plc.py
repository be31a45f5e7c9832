"""did:plc operations: build, sign, check, and render as a DID document.

The DID is a hash of the signed genesis operation, so a document that leads back to its genesis proves itself.
Source of every rule: https://web.plc.directory/spec/v0.1/did-plc
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from firehose import drisl
from firehose.cid import Cid
from firehose.errors import KeyInvalid, PlcOperationInvalid
from firehose.keys import SigningKey, VerifyingKey
from firehose.syntax import Did, parse_did

Operation = dict[
    str, Any
]  # one plc_operation as it travels: JSON-compatible, so DRISL and JSON hold the same

MAX_OPERATION_BYTES: Final = 7_500  # what plc.directory accepts of one encoded operation
MAX_ROTATION_KEYS: Final = 5  # spec, "Data Structure"
DID_LENGTH: Final = 24  # base32 characters after "did:plc:"
_FIELDS: Final = frozenset(
    {"type", "rotationKeys", "verificationMethods", "alsoKnownAs", "services", "prev", "sig"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlcState:
    """What the latest operation of a DID says: enough to render its document and to judge the next."""

    did: Did
    head: Cid
    rotation_keys: tuple[str, ...]
    signing_key: str  # did:key of #atproto
    handle: str
    endpoint: str  # origin of #atproto_pds


def build_operation(
    *,
    signing_key: str,
    handle: str,
    endpoint: str,
    rotation_key: SigningKey,
    prev: Cid | None = None,
) -> Operation:
    """Build and sign one operation; `prev` None makes it the genesis of a new DID.

    Args:
        signing_key: did:key of the account's #atproto key.
        handle: without "at://".
        endpoint: origin of the account's PDS, "http://127.0.0.1:2583".
        rotation_key: signs this operation and, alone, the next one.
        prev: CID of the operation that this one replaces.
    """
    unsigned: Operation = {
        "type": "plc_operation",
        "rotationKeys": [rotation_key.did_key],
        "verificationMethods": {"atproto": signing_key},
        "alsoKnownAs": [f"at://{handle}"],
        "services": {"atproto_pds": {"type": "AtprotoPersonalDataServer", "endpoint": endpoint}},
        "prev": None if prev is None else str(prev),
    }
    signature = rotation_key.sign(drisl.encode(unsigned))
    return {**unsigned, "sig": base64.urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")}


def operation_cid(operation: Operation) -> Cid:
    """The CID that the next operation names as `prev`."""
    return Cid.for_dag_cbor(drisl.encode(operation))


def genesis_did(operation: Operation) -> Did:
    """The DID that a signed genesis operation makes: nothing of it is checked here."""
    digest = hashlib.sha256(drisl.encode(operation)).digest()
    return parse_did("did:plc:" + base64.b32encode(digest).decode("ascii").lower()[:DID_LENGTH])


def check_genesis(did: str, operation: Operation) -> PlcState:
    """Check that `operation` is the signed genesis of `did`.

    Raises:
        PlcOperationInvalid: it is not well formed, not signed by one of its own rotation keys, or of another
            DID.
    """
    _check_shape(did, operation)
    if operation["prev"] is not None:
        raise PlcOperationInvalid(did, "a genesis operation has no prev")
    if genesis_did(operation) != did:
        raise PlcOperationInvalid(did, f"its hash makes {genesis_did(operation)}")
    _check_signature(did, operation, operation["rotationKeys"])
    return _state(parse_did(did), operation)


def check_update(state: PlcState, operation: Operation) -> PlcState:
    """Check that `operation` follows the latest one of its DID (no forks: nothing is ever nullified here).

    Raises:
        PlcOperationInvalid: not well formed, not on top of the latest operation, or not signed by its
            rotation keys.
    """
    _check_shape(state.did, operation)
    if operation["prev"] != str(state.head):
        raise PlcOperationInvalid(state.did, f"prev must be {state.head}, the latest operation")
    _check_signature(state.did, operation, state.rotation_keys)
    return _state(state.did, operation)


def check_log(did: str, operations: Sequence[Operation]) -> PlcState:
    """Check a whole log from its genesis; what an auditor of a directory does.

    Raises:
        PlcOperationInvalid: the log is empty, or one of its operations is wrong.
    """
    if not operations:
        raise PlcOperationInvalid(did, "the log is empty")
    state = check_genesis(did, operations[0])
    for operation in operations[1:]:
        state = check_update(state, operation)
    return state


def render_document(state: PlcState) -> dict[str, Any]:
    """The DID document as plc.directory renders it."""
    return {
        "@context": [
            "https://www.w3.org/ns/did/v1",
            "https://w3id.org/security/multikey/v1",
            "https://w3id.org/security/suites/secp256k1-2019/v1",
        ],
        "id": state.did,
        "alsoKnownAs": [f"at://{state.handle}"],
        "verificationMethod": [
            {
                "id": f"{state.did}#atproto",
                "type": "Multikey",
                "controller": state.did,
                "publicKeyMultibase": state.signing_key.removeprefix("did:key:"),
            }
        ],
        "service": [
            {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": state.endpoint}
        ],
    }


def _state(did: Did, operation: Operation) -> PlcState:
    return PlcState(
        did=did,
        head=operation_cid(operation),
        rotation_keys=tuple(operation["rotationKeys"]),
        signing_key=operation["verificationMethods"]["atproto"],
        handle=operation["alsoKnownAs"][0].removeprefix("at://"),
        endpoint=operation["services"]["atproto_pds"]["endpoint"],
    )


def _check_shape(did: str, operation: Operation) -> None:
    """Refuse what we could not render: exactly the fields above, of the types above."""
    if not isinstance(operation, dict) or operation.keys() != _FIELDS:
        raise PlcOperationInvalid(did, f"expected exactly the fields {', '.join(sorted(_FIELDS))}")
    if operation["type"] != "plc_operation":
        raise PlcOperationInvalid(did, f"type {operation['type']!r} is not plc_operation")
    keys, names = operation["rotationKeys"], operation["alsoKnownAs"]
    methods, services = operation["verificationMethods"], operation["services"]
    pds = services.get("atproto_pds") if isinstance(services, dict) else None
    is_well_formed = (
        isinstance(keys, list)
        and 1 <= len(keys) <= MAX_ROTATION_KEYS
        and all(isinstance(key, str) and key.startswith("did:key:") for key in keys)
        and isinstance(methods, dict)
        and isinstance(methods.get("atproto"), str)
        and methods["atproto"].startswith("did:key:")
        and isinstance(names, list)
        and len(names) > 0
        and all(isinstance(name, str) for name in names)
        and names[0].startswith("at://")
        and isinstance(pds, dict)
        and pds.get("type") == "AtprotoPersonalDataServer"
        and isinstance(pds.get("endpoint"), str)
        and (operation["prev"] is None or isinstance(operation["prev"], str))
        and isinstance(operation["sig"], str)
    )
    if not is_well_formed:
        raise PlcOperationInvalid(did, "a field has the wrong type, or #atproto or #atproto_pds is missing")
    try:
        size = len(drisl.encode(operation))
    except (TypeError, ValueError, RecursionError) as error:
        raise PlcOperationInvalid(did, f"not encodable: {error}") from None
    if size > MAX_OPERATION_BYTES:
        raise PlcOperationInvalid(did, f"{size} bytes, {MAX_OPERATION_BYTES} are allowed")


def _check_signature(did: str, operation: Operation, rotation_keys: Sequence[str]) -> None:
    signature_text = operation["sig"]
    try:
        if "=" in signature_text:
            raise PlcOperationInvalid(did, "the signature is padded")
        signature = base64.b64decode(signature_text + "=" * (-len(signature_text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise PlcOperationInvalid(did, "the signature is not base64url") from None
    unsigned = drisl.encode({name: value for name, value in operation.items() if name != "sig"})
    try:
        is_signed = any(VerifyingKey.from_did_key(key).verify(signature, unsigned) for key in rotation_keys)
    except KeyInvalid as error:
        raise PlcOperationInvalid(did, str(error)) from None
    if not is_signed:
        raise PlcOperationInvalid(did, "not signed by any of the rotation keys in force")
