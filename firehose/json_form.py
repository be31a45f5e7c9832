"""The JSON form of the data model: links as `{"$link": …}`, bytes as `{"$bytes": …}`, and no floats.

Source: atproto.com/specs/data-model, "JSON Representation".
"""

import binascii
from base64 import b64decode, b64encode
from typing import Any, Final

from firehose.cid import Cid
from firehose.errors import DrislInvalid, SyntaxInvalid

MAX_DEPTH: Final = 128  # of lists and maps in each other; ours, so that no input can exhaust the stack
MAX_SAFE_FLOAT: Final = 1 << 53  # an integer that JSON wrote as 123.0 is exact below this


def to_json(value: Any) -> Any:
    """`value` with every `Cid` and byte string in its JSON form; the rest is shared."""
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Cid):
        return {"$link": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode().rstrip("=")}
    return value


def from_json(value: Any) -> Any:
    """The value that JSON `value` stands for, ready to be encoded.

    Raises: DrislInvalid: it holds a float or a malformed `$link`, `$bytes`, `$type` or blob, or is too deep.
    """
    return _from_json(value, MAX_DEPTH)


def check_record(value: Any) -> None:
    """Check that `value` may stand in a record: no floats, integers of 64 bits, every `$type` a name.

    Raises: DrislInvalid: it may not.
    """
    _check(value, MAX_DEPTH)


def _check(value: Any, depth: int) -> None:
    if isinstance(value, dict | list | tuple):
        if depth <= 0:
            raise DrislInvalid("nested too deep")
        if isinstance(value, dict) and "$type" in value:
            _check_type(value)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth - 1)
    elif isinstance(value, float):
        raise DrislInvalid("a float: records hold integers only")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise DrislInvalid("an integer of more than 64 bits")
    elif value is not None and not isinstance(value, str | int | bytes | Cid):
        raise DrislInvalid(f"{type(value).__name__} has no place in a record")


def _from_json(value: Any, depth: int) -> Any:
    if isinstance(value, dict | list) and depth <= 0:
        raise DrislInvalid("nested too deep")
    if isinstance(value, dict):
        return _from_object(value, depth - 1)
    if isinstance(value, list):
        return [_from_json(item, depth - 1) for item in value]
    if isinstance(value, float):
        if value.is_integer() and abs(value) <= MAX_SAFE_FLOAT:
            return int(value)
        raise DrislInvalid("a float: records hold integers only")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise DrislInvalid("an integer of more than 64 bits")
    if value is None or isinstance(value, str | int):  # bool is an int
        return value
    raise DrislInvalid(f"{type(value).__name__} is not JSON")


def _from_object(value: dict[str, Any], depth: int) -> Any:
    if "$link" in value:
        return _parse_link(value)
    if "$bytes" in value:
        return _parse_bytes(value)
    if "$type" in value:
        _check_type(value)
    return {key: _from_json(item, depth) for key, item in value.items()}


def _parse_link(value: dict[str, Any]) -> Cid:
    if len(value) != 1:
        raise DrislInvalid("a $link with other fields beside it")
    try:
        return Cid.parse(value["$link"])
    except SyntaxInvalid as error:
        raise DrislInvalid(f"a $link that is {error}") from None


def _parse_bytes(value: dict[str, Any]) -> bytes:
    text = value["$bytes"]
    if len(value) != 1 or not isinstance(text, str):
        raise DrislInvalid("a malformed $bytes")
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise DrislInvalid("$bytes that are not base64") from None


def _check_type(value: dict[str, Any]) -> None:
    name = value["$type"]
    if not isinstance(name, str) or not name:
        raise DrislInvalid("a $type that is no name")
    if name == "blob":
        size = value.get("size")
        if not isinstance(value.get("mimeType"), str) or type(size) is not int or "ref" not in value:
            raise DrislInvalid("a malformed blob")
