"""Content identifiers: CIDv1, SHA-256, of a DRISL block or of raw bytes; the AT Protocol has no other kind.

Source: dasl.ing/cid.html; atproto.com/specs/data-model, "Link and CID Formats".
"""

import builtins
import re
from base64 import b32decode, b32encode
from hashlib import sha256
from typing import Final, NoReturn

from firehose.errors import SyntaxInvalid

DAG_CBOR: Final = 0x71
RAW: Final = 0x55
CID_BYTES: Final = 36
DAG_CBOR_PREFIX: Final = b"\x01\x71\x12\x20"  # version 1, codec, sha2-256, 32 bytes of digest
RAW_PREFIX: Final = b"\x01\x55\x12\x20"
_CID_CHARS: Final = 59  # "b" and 58 letters of base32
_PADDING: Final = "======"
_ANY_CID: Final = re.compile(r"[a-zA-Z0-9+]{8,256}\Z")


class Cid:
    """One content identifier: 36 bytes, immutable, hashable, ordered by its bytes.

    >>> str(Cid.for_dag_cbor(b"\\xa0"))
    'bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua'
    """

    __slots__ = ("bytes",)
    bytes: builtins.bytes

    def __init__(self, data: builtins.bytes) -> None:
        """Unchecked, for bytes that are known to be a CID; a stranger's go through `from_bytes`."""
        object.__setattr__(self, "bytes", data)

    @classmethod
    def for_dag_cbor(cls, block: builtins.bytes) -> "Cid":
        """The CID of a DRISL-CBOR block."""
        return cls(DAG_CBOR_PREFIX + sha256(block).digest())

    @classmethod
    def for_raw(cls, block: builtins.bytes) -> "Cid":
        """The CID of raw bytes, such as a blob."""
        return cls(RAW_PREFIX + sha256(block).digest())

    @classmethod
    def from_bytes(cls, data: builtins.bytes) -> "Cid":
        """The CID in these 36 bytes.

        Raises: SyntaxInvalid: they are none.
        """
        if len(data) == CID_BYTES and data[:4] in (DAG_CBOR_PREFIX, RAW_PREFIX):
            return cls(builtins.bytes(data))
        raise SyntaxInvalid("cid", data)

    @classmethod
    def parse(cls, text: object) -> "Cid":
        """The CID in its text form, base32 in lower case.

        Raises: SyntaxInvalid: it is none, or of a kind that the AT Protocol does not use.
        """
        if isinstance(text, str) and len(text) == _CID_CHARS and text[0] == "b" and text == text.lower():
            try:
                cid = cls.from_bytes(b32decode(text[1:].upper() + _PADDING))
            except (ValueError, SyntaxInvalid):
                raise SyntaxInvalid("cid", text) from None
            if str(cid) == text:  # the last letter has bits to spare: only one spelling is right
                return cid
        raise SyntaxInvalid("cid", text)

    @property
    def codec(self) -> int:
        """`DAG_CBOR` or `RAW`."""
        return self.bytes[1]

    @property
    def digest(self) -> builtins.bytes:
        """The SHA-256 digest, 32 bytes."""
        return self.bytes[4:]

    def matches(self, block: builtins.bytes) -> bool:
        """Whether `block` hashes to this CID."""
        return sha256(block).digest() == self.bytes[4:]

    def __str__(self) -> str:
        return "b" + b32encode(self.bytes).decode().rstrip("=").lower()

    def __repr__(self) -> str:
        return f"Cid({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cid) and self.bytes == other.bytes

    def __lt__(self, other: "Cid") -> bool:
        return self.bytes < other.bytes

    def __hash__(self) -> int:
        return hash(self.bytes)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Cid never changes: cannot set {name}")

    def __reduce__(self) -> tuple[type["Cid"], tuple[builtins.bytes]]:
        return Cid, (self.bytes,)


def parse_cid(text: object) -> str:
    """The text of a CID of any codec, hash and base, superficially checked: the lexicon format `cid`.

    Raises: SyntaxInvalid: it cannot be one, or it is of version 0.
    """
    if isinstance(text, str) and _ANY_CID.match(text) and not text.startswith("Qm"):
        return text
    raise SyntaxInvalid("cid", text)
