"""DRISL-CBOR, the one binary form of records, commits and tree nodes: exactly one encoding for each value.

Source: dasl.ing/drisl.html, atproto.com/specs/data-model. The values are None, bool, int (64 bits), float,
str, bytes, `Cid`, list and dict with str keys. AT Protocol records hold no floats: `firehose.json_form`
refuses them.

Decoding is done by the compiled reader (`firehose/_fast.c`) where there is one. Else it is libipld's where
its result can be shown to be exact, because it is some twenty times faster than our own reader in Python.
libipld alone would not do: it accepts numbers that are longer than necessary and old CIDs, and it returns
links as plain bytes. So its result counts only if there is no link in the block and if encoding it again
gives the same bytes; everything else is read by `_Reader`, which has the last word.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import libipld

from firehose import compiled
from firehose.cid import CID_BYTES, DAG_CBOR_PREFIX, RAW_PREFIX, Cid
from firehose.errors import DrislInvalid
from firehose.json_form import MAX_DEPTH, from_json, to_json

__all__ = [
    "MAX_DEPTH",
    "Value",
    "decode",
    "decode_first",
    "encode",
    "fast_decode",
    "from_json",
    "head",
    "link",
    "to_json",
]

Value = Any  # None | bool | int | float | str | bytes | Cid | list[Value] | dict[str, Value]

MIN_INT: Final = -(1 << 64)  # what CBOR's major type 1 can hold
MAX_INT: Final = (1 << 64) - 1

DENSE_BYTES: Final = 1 << 16  # ours: what is smaller may be as dense as it likes
BYTES_PER_VALUE: Final = 16  # ours: on average, in what is larger; records of text and numbers have more

_LINK: Final = b"\xd8\x2a\x58\x25\x00"  # tag 42, then 37 bytes, of which the first is the multibase prefix 0
_LINK_BYTES: Final = len(_LINK) + CID_BYTES
_TAG_42: Final = b"\xd8\x2a"
_NOT_A_CONTAINER: Final = bytes(byte for byte in range(256) if not 0x80 <= byte <= 0xBB)


def encode(value: Value) -> bytes:
    """The one canonical encoding of `value`.

    Raises: DrislInvalid: something in it cannot be encoded, or it is nested deeper than `MAX_DEPTH`.
    """
    out: list[bytes] = []
    _write(value, out, MAX_DEPTH)
    return b"".join(out)


def decode(data: bytes) -> Value:
    """The value that `data` is the canonical encoding of; links come back as `Cid`.

    Raises: DrislInvalid: it is anything else, also if only something follows the value.
    """
    if compiled.fast is not None:
        value = compiled.fast.decode(data, Cid)
        if value is not NotImplemented:
            return value
    elif _TAG_42 not in data and len(data.translate(None, _NOT_A_CONTAINER)) <= MAX_DEPTH:
        try:
            value = libipld.decode_dag_cbor(data)
            if libipld.encode_dag_cbor(value) == data:
                return value
        except Exception:  # noqa: BLE001 S110 - whatever it stumbled over, our own reader says what is wrong
            pass
    value, end = decode_first(data)
    if end != len(data):
        raise DrislInvalid("bytes after the value", end)
    return value


def decode_first(data: bytes, start: int = 0) -> tuple[Value, int]:
    """The value whose canonical encoding begins at byte `start`, and the byte after it.

    Raises: DrislInvalid: there is none.
    """
    reader = _Reader(data, start)
    value = reader.value(MAX_DEPTH)
    return value, reader.at


def fast_decode(block: bytes) -> Value:
    """Like `decode`, for blocks that we wrote or verified: links are plain bytes, lengths are not checked for
    minimality.

    Raises: DrislInvalid: it is not CBOR at all.
    """
    try:
        return libipld.decode_dag_cbor(block)
    except Exception as error:  # noqa: BLE001 - it raises ValueError, RecursionError, Unicode…
        raise DrislInvalid(str(error)) from None


def is_sparse(data: bytes, bytes_per_value: int = BYTES_PER_VALUE) -> bool:
    """Whether the CBOR in `data` has so few values that decoding it takes little more memory than it does.

    A value of one byte becomes an object of 64: without this, 5 MB from a stranger cost 320 MB of ours.
    """
    if len(data) <= DENSE_BYTES:
        return True
    left = len(data) // bytes_per_value
    at, end = 0, len(data)
    while at < end and left:
        left -= 1
        major, info = data[at] >> 5, data[at] & 31
        at += 1
        if info >= 24:
            width = 1 << (info & 3)
            info = int.from_bytes(data[at : at + width])
            at += width
        if major in (2, 3):
            at += info
    return at >= end


def head(major: int, number: int) -> bytes:
    """The head of a CBOR item: its major type (0 to 7) and its argument, as short as it can be."""
    if number < 24:
        return bytes((major << 5 | number,))
    if number < 0x100:
        return bytes((major << 5 | 24, number))
    if number < 0x10000:
        return struct.pack(">BH", major << 5 | 25, number)
    if number < 0x100000000:
        return struct.pack(">BI", major << 5 | 26, number)
    return struct.pack(">BQ", major << 5 | 27, number)


def link(cid: bytes) -> bytes:
    """The encoding of a link to the CID with these 36 bytes."""
    return _LINK + cid


def _write(value: Value, out: list[bytes], depth: int) -> None:
    kind = type(value)
    if kind is str:
        data = _utf8(value)
        out.append(head(3, len(data)))
        out.append(data)
    elif value is None:
        out.append(b"\xf6")
    elif kind is bool:
        out.append(b"\xf5" if value else b"\xf4")
    elif kind is int:
        out.append(_integer(value))
    elif kind is dict:
        _write_map(value, out, depth)
    elif kind is list or kind is tuple:
        _write_list(value, out, depth)
    elif kind is Cid:
        out.append(_LINK + value.bytes)
    elif kind is bytes:
        out.append(head(2, len(value)))
        out.append(value)
    elif kind is float:
        if not math.isfinite(value):
            raise DrislInvalid(f"{value} has no encoding")
        out.append(struct.pack(">Bd", 0xFB, value))
    else:
        _write_relative(value, out, depth)


def _write_relative(value: Value, out: list[bytes], depth: int) -> None:
    """Write an instance of a subclass (a StrEnum, an IntEnum, a NewType's dict) as its parent."""
    if isinstance(value, str):
        _write(str.__str__(value), out, depth)
    elif isinstance(value, int):
        _write(int(value), out, depth)
    elif isinstance(value, float):
        _write(float(value), out, depth)
    elif isinstance(value, bytes):
        _write(bytes(value), out, depth)
    elif isinstance(value, Mapping):
        _write_map(value, out, depth)
    else:
        raise DrislInvalid(f"{type(value).__name__} has no encoding")


def _write_map(value: Mapping[str, Value], out: list[bytes], depth: int) -> None:
    if depth <= 0:
        raise DrislInvalid("nested too deep")
    out.append(head(5, len(value)))
    entries = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise DrislInvalid(f"a key of type {type(key).__name__}")
        data = _utf8(key)
        entries.append((len(data), data, item))
    if len(entries) > 1:
        entries.sort(key=_length_then_bytes)
    for length, data, item in entries:
        out.append(head(3, length))
        out.append(data)
        _write(item, out, depth - 1)


def _length_then_bytes(entry: tuple[int, bytes, object]) -> tuple[int, bytes]:
    return entry[:2]


def _write_list(value: list[Value] | tuple[Value, ...], out: list[bytes], depth: int) -> None:
    if depth <= 0:
        raise DrislInvalid("nested too deep")
    out.append(head(4, len(value)))
    for item in value:
        _write(item, out, depth - 1)


def _integer(value: int) -> bytes:
    if not MIN_INT <= value <= MAX_INT:
        raise DrislInvalid("an integer of more than 64 bits")
    return head(0, value) if value >= 0 else head(1, -1 - value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DrislInvalid("text with a lone surrogate") from None


class _Reader:
    """Reads canonical values one after the other; refuses whatever is not the shortest form."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.at = start  # the byte to read next

    def value(self, depth: int) -> Value:
        start = self.at
        if start >= len(self.data):
            raise DrislInvalid("the input ends within a value", start)
        major, info = self.data[start] >> 5, self.data[start] & 31
        if major == 7:
            return self._simple(info)
        if major == 6:
            return self._link()
        number = self._argument(info)
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self._take(number)
        if major == 3:
            return self._text(number)
        if depth <= 0:
            raise DrislInvalid("nested too deep", start)
        if number > len(self.data) - self.at:  # each item takes a byte at least: do not believe more
            raise DrislInvalid("the input ends within a value", start)
        return [self.value(depth - 1) for _ in range(number)] if major == 4 else self._map(number, depth - 1)

    def _argument(self, info: int) -> int:
        if info < 24:
            self.at += 1
            return info
        if info > 27:
            raise DrislInvalid("an indefinite or reserved length", self.at)
        width = 1 << info - 24
        number = int.from_bytes(self.data[self.at + 1 : self.at + 1 + width])
        if self.at + 1 + width > len(self.data):
            raise DrislInvalid("the input ends within a value", self.at)
        if number < (24 if width == 1 else 1 << 4 * width):
            raise DrislInvalid("a number that is longer than necessary", self.at)
        self.at += 1 + width
        return number

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise DrislInvalid("the input ends within a value", self.at)
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _text(self, length: int) -> str:
        start = self.at
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise DrislInvalid("text that is not UTF-8", start) from None

    def _map(self, length: int, depth: int) -> dict[str, Value]:
        result: dict[str, Value] = {}
        before = (-1, b"")
        for _ in range(length):
            start = self.at
            if start >= len(self.data) or self.data[start] >> 5 != 3:
                raise DrislInvalid("a key that is not text", start)
            key = self._text(self._argument(self.data[start] & 31))
            raw = key.encode()
            if (len(raw), raw) <= before:
                raise DrislInvalid("keys that are not in order, or twice the same", start)
            before = (len(raw), raw)
            result[key] = self.value(depth)
        return result

    def _link(self) -> Cid:
        start = self.at
        data = self.data[start : start + _LINK_BYTES]
        if len(data) != _LINK_BYTES or not data.startswith(_LINK):
            raise DrislInvalid("a tag that is not a CID link", start)
        if data[5:9] not in (DAG_CBOR_PREFIX, RAW_PREFIX):
            raise DrislInvalid("a link of a kind that is not used here", start)
        self.at += _LINK_BYTES
        return Cid(data[5:])

    def _simple(self, info: int) -> bool | float | None:
        start = self.at
        if info in (20, 21, 22):
            self.at += 1
            return (False, True, None)[info - 20]
        if info != 27:
            raise DrislInvalid("a simple value or float that has no place here", start)
        self.at += 1
        number: float = struct.unpack(">d", self._take(8))[0]
        if not math.isfinite(number):
            raise DrislInvalid("a float that is not finite", start)
        return number
