"""DRISL-CBOR: the vectors, round trips, and the fast way against the slow one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose import drisl
from firehose.cid import Cid
from firehose.errors import DrislInvalid
from firehose.json_form import MAX_DEPTH, check_record

DATA = Path(__file__).parents[2] / "data"
INTEROP = DATA / "interop" / "data-model"


def vectors(*kinds: str) -> list[Any]:
    found = []
    for path in sorted((DATA / "dasl-cbor").glob("*.json")):
        for number, vector in enumerate(json.loads(path.read_text())):
            if vector["type"] in kinds:
                name = f"{path.stem}-{number}-{vector['name']}"
                found.append(pytest.param(bytes.fromhex(vector["data"]), id=name))
    assert found
    return found


def leaves() -> st.SearchStrategy[Any]:
    cids = st.binary(max_size=8).map(Cid.for_dag_cbor)
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(min_value=-(1 << 64), max_value=(1 << 64) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.binary(max_size=20),
        cids,
        cids.map(lambda cid: cid.bytes),  # bytes that only look like a link
    )


VALUES = st.recursive(
    leaves(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)

pytestmark = pytest.mark.usefixtures("twin")


@pytest.mark.parametrize("data", vectors("roundtrip"))
def test_what_is_canonical_is_read_and_written_back(data: bytes) -> None:
    assert drisl.encode(drisl.decode(data)) == data


@pytest.mark.parametrize("data", vectors("invalid_in"))
def test_what_is_not_canonical_is_refused(data: bytes) -> None:
    with pytest.raises(DrislInvalid):
        drisl.decode(data)


@pytest.mark.parametrize(
    "value",
    [{1: 0}, float("nan"), float("inf"), 1 << 64, -(1 << 64) - 1, object(), {1, 2}, "\ud800", {"\ud800": 1}],
)
def test_what_has_no_encoding_is_refused(value: Any) -> None:
    with pytest.raises(DrislInvalid):
        drisl.encode([value])


@given(VALUES)
def test_a_value_comes_back_from_its_encoding(value: Any) -> None:
    data = drisl.encode(value)
    assert drisl.decode(data) == value
    assert drisl.encode(drisl.decode(data)) == data


@given(VALUES, st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_one_changed_byte_gives_another_value_or_none(value: Any, where: int, byte: int) -> None:
    data = bytearray(drisl.encode(value))
    data[where % len(data)] = byte
    changed = bytes(data)
    try:
        decoded = drisl.decode(changed)
    except DrislInvalid:
        return
    assert drisl.encode(decoded) == changed  # so nothing has two encodings


@given(st.binary(max_size=60))
def test_the_fast_way_says_what_our_reader_says(data: bytes) -> None:
    def outcome(read: Any) -> Any:
        try:
            return read(data)
        except DrislInvalid:
            return DrislInvalid

    def slow(raw: bytes) -> Any:
        value, end = drisl.decode_first(raw)
        return value if end == len(raw) else DrislInvalid

    assert repr(outcome(drisl.decode)) == repr(outcome(slow))


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x61a"])
def test_depth_is_limited_the_same_for_reading_and_writing(opening: bytes) -> None:
    assert drisl.decode(opening * MAX_DEPTH + b"\x00") is not None
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(DrislInvalid, match="deep"):
            drisl.decode(opening * levels + b"\x00")
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    drisl.encode(value)
    with pytest.raises(DrislInvalid, match="deep"):
        drisl.encode([value])


@pytest.mark.parametrize(
    "data", [b"\x9b" + b"\xff" * 8, b"\xbb" + b"\xff" * 8, b"\x5b" + b"\xff" * 8, b"\x9a\xff\xff\xff\xff"]
)
def test_a_length_that_is_a_lie_costs_nothing(data: bytes) -> None:
    with pytest.raises(DrislInvalid):
        drisl.decode(data)


@pytest.mark.parametrize("number", range(3))
def test_the_data_model_fixtures(number: int) -> None:
    fixture = json.loads((INTEROP / "data-model-fixtures.json").read_text())[number]
    value = drisl.from_json(fixture["json"])
    assert str(Cid.for_dag_cbor(drisl.encode(value))) == fixture["cid"]
    assert drisl.to_json(drisl.decode(drisl.encode(value))) == fixture["json"]


@pytest.mark.parametrize("number", range(5))
def test_the_valid_json_is_read(number: int) -> None:
    fixture = json.loads((INTEROP / "data-model-valid.json").read_text())[number]
    assert drisl.decode(drisl.encode(drisl.from_json(fixture["json"]))) == fixture["json"]


@pytest.mark.parametrize("number", range(1, 12))
def test_the_invalid_json_is_refused(number: int) -> None:
    # Number 0 is a text where an object should be: that is for a lexicon to say, not for the data model.
    fixture = json.loads((INTEROP / "data-model-invalid.json").read_text())[number]
    with pytest.raises(DrislInvalid):
        drisl.from_json(fixture["json"])


@pytest.mark.parametrize("record", [{"a": 1.5}, {"a": [1.0]}, {"a": 1 << 63}, {"$type": 7}, {"a": object()}])
def test_a_record_holds_no_floats_and_no_nonsense(record: Any) -> None:
    with pytest.raises(DrislInvalid):
        check_record(record)


def test_bytes_and_links_are_told_apart() -> None:
    cid = Cid.for_raw(b"x")
    assert drisl.decode(drisl.encode({"a": cid.bytes, "b": cid})) == {"a": cid.bytes, "b": cid}
    assert drisl.fast_decode(drisl.encode({"b": cid})) == {"b": cid.bytes}
