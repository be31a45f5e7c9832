"""CAR v1 archives: what commits travel in. Every block that is read is hashed.

Source: ipld.io/specs/transport/car/carv1; atproto.com/specs/repository, "CAR File Serialization".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from firehose import compiled
from firehose.cid import CID_BYTES, DAG_CBOR_PREFIX, RAW_PREFIX, Cid
from firehose.drisl import decode, encode, link
from firehose.errors import CarInvalid, DrislInvalid

MAX_BLOCKS_BYTES: Final = 2_000_000  # of a #commit's or #sync's blocks; atproto.com/specs/sync
MAX_HEADER_BYTES: Final = 4096  # ours: a header with one root takes 59
_PREFIXES: Final = (DAG_CBOR_PREFIX, RAW_PREFIX)
# The header that everybody writes, {"roots": [link], "version": 1}: read without a decoder.
_BEFORE_ROOT: Final = b"\xa2\x65roots\x81" + link(b"")
_AFTER_ROOT: Final = b"\x67version\x01"
_ONE_ROOT_BYTES: Final = len(_BEFORE_ROOT) + CID_BYTES + len(_AFTER_ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    """A read archive: each block's hash is its CID's. Blocks that nothing refers to may be among them."""

    roots: tuple[Cid, ...]
    blocks: dict[Cid, bytes]

    @property
    def root(self) -> Cid:
        """The first root: in a repository, the commit."""
        return self.roots[0]


def read_car(data: bytes, *, max_bytes: int = MAX_BLOCKS_BYTES) -> Car:
    """The archive in `data`, whole or not at all.

    Raises: CarInvalid: it is longer than `max_bytes`, malformed, without a root, or a block is not its CID's.
    """
    roots, blocks = split_car(data, max_bytes=max_bytes)
    return Car(roots=tuple(map(Cid, roots)), blocks={Cid(cid): block for cid, block in blocks.items()})


def split_car(data: bytes, *, max_bytes: int = MAX_BLOCKS_BYTES) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Like `read_car`, with CIDs as their 36 bytes: for the hot path of the verifier.

    Raises: CarInvalid: as `read_car`.
    """
    if len(data) > max_bytes:
        raise CarInvalid("too-large")
    fast = compiled.hasher()
    if fast is not None:
        found: tuple[list[bytes], dict[bytes, bytes]] | None = fast.split(bytes(data))
        if found is not None:
            return found
    length, at = _varint(data, 0)
    if length > MAX_HEADER_BYTES or at + length > len(data):
        raise CarInvalid("header", at)
    roots = _roots(bytes(data[at : at + length]))
    at += length
    end = len(data)
    blocks: dict[bytes, bytes] = {}
    while at < end:
        start = at
        length = data[at]
        at += 1
        if length >= 0x80:
            if at < end and 0 < data[at] < 0x80:  # most blocks: two bytes, read without a call
                length = length & 0x7F | data[at] << 7
                at += 1
            else:
                length, at = _varint(data, start)
        after = at + length
        if length < CID_BYTES or after > end:
            raise CarInvalid("truncated", start)
        split = at + CID_BYTES
        cid = data[at:split]
        block = data[split:after]
        if cid[:4] not in _PREFIXES:
            raise CarInvalid("cid", at)
        if sha256(block).digest() != cid[4:]:
            raise CarInvalid("block-hash", at)
        blocks[cid] = block
        at = after
    return roots, blocks


def write_car(roots: Iterable[Cid], blocks: Mapping[Cid, bytes]) -> bytes:
    """The archive of `blocks`, in their order; a CID is trusted to be its block's."""
    header = encode({"roots": list(roots), "version": 1})
    parts = [_encode_varint(len(header)), header]
    for cid, block in blocks.items():
        parts += (_encode_varint(CID_BYTES + len(block)), cid.bytes, block)
    return b"".join(parts)


def _roots(header: bytes) -> list[bytes]:
    if len(header) == _ONE_ROOT_BYTES and header.startswith(_BEFORE_ROOT) and header.endswith(_AFTER_ROOT):
        root = header[len(_BEFORE_ROOT) : -len(_AFTER_ROOT)]
        if root[:4] in _PREFIXES:
            return [root]
    try:
        value = decode(header)
    except DrislInvalid as error:
        raise CarInvalid("header") from error
    if not isinstance(value, dict) or value.get("version") != 1 or value["version"] is True:
        raise CarInvalid("version")
    roots = value.get("roots")
    if not isinstance(roots, list) or not roots or not all(isinstance(root, Cid) for root in roots):
        raise CarInvalid("roots")
    return [root.bytes for root in roots]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 5 bytes, shortest form only, and the byte after it."""
    number = shift = 0
    for index in range(at, min(at + 5, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                break
            return number, index + 1
        shift += 7
    raise CarInvalid("varint", at)


def _encode_varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
