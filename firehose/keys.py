"""Signing and verifying keys on the two curves of the AT Protocol, and their text forms.

Source: atproto.com/specs/cryptography. A signature is 64 bytes, r then s, over the SHA-256 of the data, and
only the one with the lower s counts: anybody can compute the other one from it, so accepting both would
give one commit two CIDs. libsecp256k1 (coincurve) verifies k256 eight times faster than OpenSSL (22,000/s
against 2,660/s on one core), so it is used where it is installed.
"""

import hashlib
import os
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    Prehashed,
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from firehose.base58 import base58_decode, base58_encode
from firehose.errors import KeyInvalid

coincurve: Any
_secp: Any
try:
    import coincurve

    _secp = import_module(
        "coincurve._libsecp256k1"
    )  # its own methods take DER only, which is made and parsed
    _CONTEXT: Any = coincurve.context.GLOBAL_CONTEXT.ctx
    _SIGNATURE_TYPE: Any = _secp.ffi.typeof("secp256k1_ecdsa_signature *")
except ImportError:  # no wheel for this platform: slower, and the same answers
    coincurve = None


class Curve(StrEnum):
    """Which elliptic curve a key is on."""

    K256 = "k256"  # secp256k1
    P256 = "p256"  # secp256r1, NIST P-256


SIGNATURE_BYTES: Final = 64
DIGEST_BYTES: Final = 32
PRIVATE_KEY_BYTES: Final = 32
COMPRESSED_BYTES: Final = 33
UNCOMPRESSED_BYTES: Final = 65
PACKED_BYTES: Final = 2 + COMPRESSED_BYTES
DID_KEY_PREFIX: Final = "did:key:"
# The multicodec prefix of a compressed public key, as a varint: specs/cryptography, "Public Key Encoding".
MULTICODEC: Final = {Curve.K256: b"\xe7\x01", Curve.P256: b"\x80\x24"}
# How many points a curve has: SEC 2, sections 2.4.1 and 2.4.2.
ORDER: Final = {
    Curve.K256: 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
    Curve.P256: 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
}
_EC_CURVE: Final = {Curve.K256: ec.SECP256K1(), Curve.P256: ec.SECP256R1()}
_PREHASHED: Final = ec.ECDSA(Prehashed(SHA256()))


class VerifyingKey:
    """A public key. Parsing one costs more than it looks: keep the object, not its text."""

    __slots__ = ("_fast", "_slow", "compressed", "curve", "packed")

    def __init__(self, curve: Curve, point: bytes) -> None:
        """`point` is a compressed (33 bytes) or uncompressed (65 bytes) point on `curve`.

        Raises: KeyInvalid: it is no such point.
        """
        if len(point) not in (COMPRESSED_BYTES, UNCOMPRESSED_BYTES):
            raise KeyInvalid(f"a public key of {len(point)} bytes")
        try:
            self._slow = ec.EllipticCurvePublicKey.from_encoded_point(_EC_CURVE[curve], point)
        except ValueError:
            raise KeyInvalid(f"not a point on {curve}") from None
        self.curve = curve
        self.compressed = self._slow.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        self.packed = MULTICODEC[curve] + self.compressed  # as in a did:key
        use_fast = coincurve is not None and curve is Curve.K256
        self._fast: Any = coincurve.PublicKey(self.compressed) if use_fast else None

    @classmethod
    def from_did_key(cls, text: str) -> "VerifyingKey":
        """The key in a `did:key:z…`.

        Raises: KeyInvalid: there is none.
        """
        if not text.startswith(DID_KEY_PREFIX):
            raise KeyInvalid("not a did:key", text)
        return cls.from_multibase(text[len(DID_KEY_PREFIX) :])

    @classmethod
    def from_multibase(cls, text: str, curve: Curve | None = None) -> "VerifyingKey":
        """The key in a `publicKeyMultibase`.

        Args:
            text: `z` and base58, with a multicodec prefix (Multikey) or, in older documents, without.
            curve: what the verification method's type says; needed only for the older form.

        Raises: KeyInvalid: there is no key in it, or it is on another curve.
        """
        if not text.startswith("z"):
            raise KeyInvalid("not base58 in multibase", text)
        try:
            data = base58_decode(text[1:])
        except ValueError as error:
            raise KeyInvalid(str(error), text) from None
        for named, prefix in MULTICODEC.items():
            if data.startswith(prefix) and len(data) == PACKED_BYTES:
                if curve not in (None, named):
                    raise KeyInvalid(f"a {named} key where one on {curve} should be", text)
                return cls.from_packed(data)
        if curve is None:
            raise KeyInvalid("a public key of an unknown kind", text)
        return cls(curve, data)

    @classmethod
    def from_packed(cls, packed: bytes) -> "VerifyingKey":
        """The key with these `packed` bytes. Raises: KeyInvalid: there is none."""
        for curve, prefix in MULTICODEC.items():
            if packed.startswith(prefix):
                return cls(curve, packed[len(prefix) :])
        raise KeyInvalid("a public key of an unknown kind")

    @property
    def multibase(self) -> str:
        """The Multikey form, `z…`."""
        return "z" + base58_encode(self.packed)

    @property
    def did_key(self) -> str:
        """The key as `did:key:z…`."""
        return DID_KEY_PREFIX + self.multibase

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` is this key's over `data`; one in DER or with a high s is none."""
        return self.verify_digest(signature, hashlib.sha256(data).digest())

    def verify_digest(self, signature: bytes, digest: bytes) -> bool:
        """Whether `signature` is this key's over what has this SHA-256 (32 bytes)."""
        if len(signature) != SIGNATURE_BYTES or len(digest) != DIGEST_BYTES:
            return False
        if self._fast is not None:
            # libsecp256k1 refuses numbers that are too large, zero, and a high s by itself.
            parsed = _secp.ffi.new(_SIGNATURE_TYPE)
            return bool(
                _secp.lib.secp256k1_ecdsa_signature_parse_compact(_CONTEXT, parsed, signature)
                and _secp.lib.secp256k1_ecdsa_verify(_CONTEXT, parsed, digest, self._fast.public_key)
            )
        s = int.from_bytes(signature[32:])
        order = ORDER[self.curve]
        if not 0 < s <= order >> 1 or not 0 < int.from_bytes(signature[:32]) < order:
            return False
        try:
            der = encode_dss_signature(int.from_bytes(signature[:32]), s)
            self._slow.verify(der, digest, _PREHASHED)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, VerifyingKey) and self.packed == other.packed)

    def __hash__(self) -> int:
        return hash(self.compressed)

    def __repr__(self) -> str:
        return f"VerifyingKey({self.did_key!r})"

    def __reduce__(self) -> tuple[type["VerifyingKey"], tuple[Curve, bytes]]:
        return VerifyingKey, (self.curve, self.compressed)


class SigningKey:
    """A private key. Its bytes never appear in a message or a repr."""

    __slots__ = ("_fast", "_slow", "curve", "verifying_key")

    def __init__(self, curve: Curve, secret: bytes) -> None:
        """`secret` is the private number, 32 bytes.

        Raises: KeyInvalid: it is no private key of `curve`.
        """
        number = int.from_bytes(secret)
        if len(secret) != PRIVATE_KEY_BYTES or not 0 < number < ORDER[curve]:
            raise KeyInvalid(f"not a private key of {curve}")
        self.curve = curve
        self._slow = ec.derive_private_key(number, _EC_CURVE[curve])
        public = self._slow.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        self.verifying_key = VerifyingKey(curve, public)
        use_fast = coincurve is not None and curve is Curve.K256
        self._fast: Any = coincurve.PrivateKey(secret) if use_fast else None

    @classmethod
    def generate(
        cls, curve: Curve = Curve.K256, entropy: Callable[[int], bytes] = os.urandom
    ) -> "SigningKey":
        """A new key out of `entropy(32)`."""
        while True:
            secret = entropy(PRIVATE_KEY_BYTES)
            if 0 < int.from_bytes(secret) < ORDER[curve]:
                return cls(curve, secret)

    @classmethod
    def from_bytes(cls, secret: bytes, curve: Curve = Curve.K256) -> "SigningKey":
        """The key with this private number, 32 bytes.

        Raises: KeyInvalid: it is no private key of `curve`.
        """
        return cls(curve, secret)

    def to_bytes(self) -> bytes:
        """The private number, 32 bytes: keep it as one keeps a password."""
        return self._slow.private_numbers().private_value.to_bytes(PRIVATE_KEY_BYTES)

    @property
    def did_key(self) -> str:
        """The public half as `did:key:z…`."""
        return self.verifying_key.did_key

    def sign(self, data: bytes) -> bytes:
        """The signature over `data`: 64 bytes, low s, the same one every time (RFC 6979)."""
        if self._fast is not None:
            return bytes(self._fast.sign_recoverable(data)[:SIGNATURE_BYTES])  # libsecp256k1 gives a low s
        algorithm = ec.ECDSA(SHA256(), deterministic_signing=True)
        r, s = decode_dss_signature(self._slow.sign(data, algorithm))
        order = ORDER[self.curve]
        return r.to_bytes(32) + min(s, order - s).to_bytes(32)

    def __repr__(self) -> str:
        return f"SigningKey(<private half of {self.did_key}>)"
