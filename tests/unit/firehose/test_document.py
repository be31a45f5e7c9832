"""What we take out of a DID document, and what we do not take."""

from typing import Any

import pytest

from firehose.document import handle, pds_url, signing_key
from firehose.errors import DocumentInvalid
from firehose.keys import SigningKey
from firehose.syntax import Did

DID = Did("did:plc:abc")
KEY = SigningKey.from_bytes(b"\x03" * 32)


def document(**changes: Any) -> dict[str, Any]:
    method = {
        "id": f"{DID}#atproto",
        "type": "Multikey",
        "controller": DID,
        "publicKeyMultibase": KEY.verifying_key.multibase,
    }
    service = {
        "id": "#atproto_pds",
        "type": "AtprotoPersonalDataServer",
        "serviceEndpoint": "https://pds.example.com",
    }
    whole = {
        "id": DID,
        "verificationMethod": [method | changes.pop("method", {})],
        "service": [service | changes.pop("service", {})],
        "alsoKnownAs": ["https://example.com", "at://alice.test"],
    }
    return whole | changes


def test_the_key_the_pds_and_the_handle() -> None:
    assert signing_key(document(), DID) == KEY.verifying_key
    assert signing_key(document(method={"id": "#atproto"}), DID) == KEY.verifying_key
    assert pds_url(document(), DID) == "https://pds.example.com"
    assert handle(document(), DID) == "alice.test"


def test_the_first_key_called_atproto_counts() -> None:
    first = document()["verificationMethod"][0]
    second = first | {"publicKeyMultibase": SigningKey.generate().verifying_key.multibase}
    label = first | {"id": "#atproto_label", "publicKeyMultibase": "z"}
    assert signing_key(document(verificationMethod=[label, "junk", first, second]), DID) == KEY.verifying_key


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(document(id="did:plc:other"), id="another-account"),
        pytest.param(document(verificationMethod=[]), id="no-key"),
        pytest.param(document(verificationMethod={"id": "#atproto"}), id="no-list"),
        pytest.param(document(method={"controller": "did:plc:other"}), id="another-controller"),
        pytest.param(document(method={"type": "Ed25519VerificationKey2020"}), id="another-type"),
        pytest.param(document(method={"publicKeyMultibase": "zzz"}), id="broken-key"),
        pytest.param(document(method={"publicKeyMultibase": None}), id="null-key"),
        pytest.param({}, id="empty"),
    ],
)
def test_a_document_without_a_usable_key(changed: dict[str, Any]) -> None:
    with pytest.raises(DocumentInvalid):
        signing_key(changed, DID)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://pds.example.com",
        "https://pds.example.com/path",
        "https://user@pds.example.com",
        "https://pds.example.com?x",
        "https://",
        "https://[",
        "https://pds.example.com:99999",
        7,
    ],
)
def test_a_pds_that_is_no_origin(url: object) -> None:
    with pytest.raises(DocumentInvalid):
        pds_url(document(service={"serviceEndpoint": url}), DID)


def test_a_claimed_handle_must_be_one() -> None:
    assert handle(document(alsoKnownAs=["at://not a handle"]), DID) is None
    assert handle(document(alsoKnownAs=None), DID) is None
