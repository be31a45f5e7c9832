"""What a DID document says: the signing key, the PDS and the handle of an account.

Source: atproto.com/specs/did, "DID Documents". Three forms of the key are in use: Multikey, and two
older verification methods whose key is an uncompressed point without a multicodec prefix.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from firehose.errors import DocumentInvalid, KeyInvalid, SyntaxInvalid
from firehose.keys import Curve, VerifyingKey
from firehose.syntax import Did, Handle, parse_handle

LEGACY_CURVES: Final = {
    "EcdsaSecp256k1VerificationKey2019": Curve.K256,
    "EcdsaSecp256r1VerificationKey2019": Curve.P256,
}
PDS_TYPE: Final = "AtprotoPersonalDataServer"

Document = Mapping[str, Any]


def signing_key(document: Document, did: Did) -> VerifyingKey:
    """The key that signs the account's commits: the first verification method called `#atproto`.

    Raises: DocumentInvalid: it is another account's document, or it has no usable key.
    """
    _check_id(document, did)
    for method in _entries(document, "verificationMethod"):
        if not _is_named(method, did, "#atproto"):
            continue
        if method.get("controller") != did:
            raise DocumentInvalid(did, "its #atproto key has another controller")
        kind, text = method.get("type"), method.get("publicKeyMultibase")
        if not isinstance(text, str) or (kind != "Multikey" and kind not in LEGACY_CURVES):
            raise DocumentInvalid(did, "its #atproto key is of an unknown type")
        try:
            return VerifyingKey.from_multibase(text, LEGACY_CURVES.get(str(kind)))
        except KeyInvalid as error:
            raise DocumentInvalid(did, str(error)) from None
    raise DocumentInvalid(did, "it has no #atproto key")


def pds_url(document: Document, did: Did) -> str:
    """The origin of the account's PDS, such as `https://pds.example.com`.

    Raises: DocumentInvalid: it is another account's document, or it names none.
    """
    _check_id(document, did)
    for service in _entries(document, "service"):
        if _is_named(service, did, "#atproto_pds") and service.get("type") == PDS_TYPE:
            url = service.get("serviceEndpoint")
            if isinstance(url, str) and _is_origin(url):
                return url.rstrip("/")
            raise DocumentInvalid(did, "its PDS is no http origin")
    raise DocumentInvalid(did, "it names no PDS")


def handle(document: Document, did: Did) -> Handle | None:
    """The handle that the account claims, or None. It counts only if the handle leads back to the DID."""
    _check_id(document, did)
    names = document.get("alsoKnownAs")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.startswith("at://"):
            try:
                return parse_handle(name[5:])
            except SyntaxInvalid:
                return None
    return None


def _check_id(document: Document, did: Did) -> None:
    if document.get("id") != did:
        raise DocumentInvalid(did, "it is the document of another account")


def _entries(document: Document, field: str) -> Iterator[dict[str, Any]]:
    entries = document.get(field)
    return (entry for entry in (entries if isinstance(entries, list) else ()) if isinstance(entry, dict))


def _is_named(entry: Mapping[str, Any], did: Did, fragment: str) -> bool:
    return entry.get("id") in (fragment, did + fragment)


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.path in ("", "/")
            and not (parts.query or parts.fragment or parts.username or parts.password)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return False
