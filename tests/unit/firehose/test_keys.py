"""Keys and signatures: the interop vectors, both curves, with and without libsecp256k1."""

import json
import pickle
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from firehose import keys
from firehose.base58 import base58_decode, base58_encode
from firehose.errors import KeyInvalid
from firehose.keys import ORDER, Curve, SigningKey, VerifyingKey

CRYPTO = Path(__file__).parents[2] / "data" / "interop" / "crypto"
CURVES = pytest.mark.parametrize("curve", list(Curve))


def fixtures() -> list[Any]:
    vectors = json.loads((CRYPTO / "signature-fixtures.json").read_text())
    assert len(vectors) == 6
    return [pytest.param(vector, id=vector["comment"]) for vector in vectors]


def unpadded(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4))


@pytest.fixture(params=["libsecp256k1", "openssl"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "openssl":
        monkeypatch.setattr(keys, "coincurve", None)
    elif keys.coincurve is None:
        pytest.skip("coincurve is not installed")
    return str(request.param)


@pytest.mark.parametrize("vector", fixtures())
def test_the_signature_vectors(vector: dict[str, Any], backend: str) -> None:
    key = VerifyingKey.from_did_key(vector["publicKeyDid"])
    message, signature = unpadded(vector["messageBase64"]), unpadded(vector["signatureBase64"])
    assert key.verify(signature, message) is vector["validSignature"]
    curve = {"ES256": Curve.P256, "ES256K": Curve.K256}[vector["algorithm"]]
    assert VerifyingKey.from_multibase(vector["publicKeyMultibase"], curve) == key


def test_the_private_key_vectors() -> None:
    for vector in json.loads((CRYPTO / "w3c_didkey_K256.json").read_text()):
        secret = bytes.fromhex(vector["privateKeyBytesHex"])
        assert SigningKey.from_bytes(secret).did_key == vector["publicDidKey"]
    for vector in json.loads((CRYPTO / "w3c_didkey_P256.json").read_text()):
        secret = base58_decode(vector["privateKeyBytesBase58"])
        assert SigningKey.from_bytes(secret, Curve.P256).did_key == vector["publicDidKey"]


@CURVES
def test_a_signature_holds_for_its_data_and_key_only(curve: Curve, backend: str) -> None:
    key, other = SigningKey.generate(curve), SigningKey.generate(curve)
    signature = key.sign(b"data")
    assert len(signature) == 64
    assert signature == key.sign(b"data")  # RFC 6979: no dice
    assert key.verifying_key.verify(signature, b"data")
    assert not key.verifying_key.verify(signature, b"Data")
    assert not other.verifying_key.verify(signature, b"data")
    for bit in range(0, 512, 7):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not key.verifying_key.verify(bytes(flipped), b"data")


@CURVES
def test_the_other_form_of_a_signature_is_refused(curve: Curve, backend: str) -> None:
    key = SigningKey.generate(curve)
    signature = key.sign(b"data")
    s = int.from_bytes(signature[32:])
    high = signature[:32] + (ORDER[curve] - s).to_bytes(32)
    der = encode_dss_signature(int.from_bytes(signature[:32]), s)
    for wrong in (high, der, signature[:63], signature + b"\0", b"", bytes(64), signature[:32] + bytes(32)):
        assert not key.verifying_key.verify(wrong, b"data")
    over = ORDER[curve].to_bytes(32)
    assert not key.verifying_key.verify(over + signature[32:], b"data")


@given(st.binary(max_size=60), st.sampled_from(list(Curve)))
def test_libsecp256k1_and_openssl_agree(data: bytes, curve: Curve) -> None:
    key = SigningKey.from_bytes(b"\x11" * 32, curve)
    signature = key.sign(data)
    fast, slow = key.verifying_key, VerifyingKey(curve, key.verifying_key.compressed)
    slow._fast = None
    assert fast.verify(signature, data)
    assert slow.verify(signature, data)


@CURVES
def test_a_key_comes_back_from_its_bytes_and_texts(curve: Curve) -> None:
    key = SigningKey.generate(curve)
    assert SigningKey.from_bytes(key.to_bytes(), curve).did_key == key.did_key
    assert VerifyingKey.from_did_key(key.did_key) == key.verifying_key
    assert pickle.loads(pickle.dumps(key.verifying_key)) == key.verifying_key
    assert key.to_bytes().hex() not in repr(key)


@CURVES
def test_the_older_form_of_a_public_key_is_read(curve: Curve) -> None:
    key = SigningKey.generate(curve).verifying_key
    curves: dict[Curve, ec.EllipticCurve] = {Curve.K256: ec.SECP256K1(), Curve.P256: ec.SECP256R1()}
    point = ec.EllipticCurvePublicKey.from_encoded_point(curves[curve], key.compressed)
    uncompressed = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    text = "z" + base58_encode(uncompressed)
    assert VerifyingKey.from_multibase(text, curve) == key
    with pytest.raises(KeyInvalid, match="unknown kind"):
        VerifyingKey.from_multibase(text)
    other = Curve.P256 if curve is Curve.K256 else Curve.K256
    with pytest.raises(KeyInvalid):
        VerifyingKey.from_multibase(text, other)
    with pytest.raises(KeyInvalid, match="where one on"):
        VerifyingKey.from_multibase(key.multibase, other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "z",
        "f00",
        "zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBm0",
        "z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp",  # ed25519
        "z" + "1" * 100_000,
        "zé",
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(KeyInvalid):
        VerifyingKey.from_multibase(text)
    with pytest.raises(KeyInvalid):
        VerifyingKey.from_did_key(text)


@CURVES
def test_a_private_number_outside_the_curve_is_refused(curve: Curve) -> None:
    for number in (0, ORDER[curve], (1 << 256) - 1):
        with pytest.raises(KeyInvalid):
            SigningKey.from_bytes(number.to_bytes(32), curve)
    with pytest.raises(KeyInvalid):
        SigningKey.from_bytes(b"\x01" * 31, curve)


def test_entropy_that_gives_no_key_is_asked_again() -> None:
    given_bytes = iter([bytes(32), b"\xff" * 32, b"\x05" * 32])
    key = SigningKey.generate(entropy=lambda length: next(given_bytes))
    assert key.to_bytes() == b"\x05" * 32


@given(st.binary(max_size=64))
def test_base58_leads_back(data: bytes) -> None:
    assert base58_decode(base58_encode(data)) == data
