"""CAR archives: round trips, and everything that must not get through."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.car import read_car, write_car
from firehose.cid import Cid
from firehose.drisl import encode
from firehose.errors import CarInvalid

pytestmark = pytest.mark.usefixtures("twin")

BLOCK = encode({"a": 1})
ROOT = Cid.for_dag_cbor(BLOCK)
GOOD = write_car([ROOT], {ROOT: BLOCK})
BLOCKS = st.lists(st.binary(max_size=300), max_size=12)


def with_header(value: object) -> bytes:
    header = encode(value)
    return bytes([len(header)]) + header


@given(BLOCKS, st.booleans())
def test_an_archive_comes_back(contents: list[bytes], raw: bool) -> None:
    make = Cid.for_raw if raw else Cid.for_dag_cbor
    blocks = {make(block): block for block in contents}
    car = read_car(write_car([ROOT], blocks))
    assert car.roots == (ROOT,)
    assert car.blocks == blocks
    assert list(car.blocks) == list(blocks)


@given(st.integers(min_value=0, max_value=len(GOOD) - 1), st.integers(min_value=1, max_value=255))
def test_no_changed_byte_changes_a_block(where: int, change: int) -> None:
    changed = bytearray(GOOD)
    changed[where] ^= change
    try:
        car = read_car(bytes(changed))
    except CarInvalid:
        return
    assert all(cid.matches(block) for cid, block in car.blocks.items())


@given(st.binary(max_size=200))
def test_noise_is_refused_and_never_crashes(noise: bytes) -> None:
    with pytest.raises(CarInvalid):
        read_car(noise)


def test_what_is_tolerated() -> None:
    unrelated = encode({"b": 2})
    other = Cid.for_dag_cbor(unrelated)
    car = read_car(write_car([ROOT, other], {other: unrelated, ROOT: BLOCK}) + GOOD[59:])
    assert car.root == ROOT
    assert car.blocks == {other: unrelated, ROOT: BLOCK}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "varint", id="empty"),
        pytest.param(GOOD[:-1], "truncated", id="cut"),
        pytest.param(GOOD[:30], "header", id="cut-header"),
        pytest.param(GOOD[:-1] + b"\x02", "block-hash", id="changed-block"),
        pytest.param(GOOD + b"\x00", "truncated", id="block-without-cid"),
        pytest.param(GOOD + b"\x80\x00", "varint", id="overlong-varint"),
        pytest.param(GOOD + b"\xff\xff\xff\xff\xff\x01", "varint", id="huge-varint"),
        pytest.param(GOOD + b"\x80", "varint", id="cut-varint"),
        pytest.param(with_header({"version": 2, "roots": [ROOT]}), "version", id="version-2"),
        pytest.param(with_header({"version": True, "roots": [ROOT]}), "version", id="version-true"),
        pytest.param(with_header({"version": 1, "roots": []}), "roots", id="no-roots"),
        pytest.param(with_header({"version": 1}), "roots", id="no-roots-at-all"),
        pytest.param(with_header({"version": 1, "roots": [b"x"]}), "roots", id="root-of-bytes"),
        pytest.param(with_header([1]), "version", id="no-map"),
        pytest.param(b"\x03\xff\xff\xff", "header", id="no-cbor"),
        pytest.param(GOOD + b"\x24" + b"\x01\x70\x12\x20" + bytes(32), "cid", id="cid-of-another-kind"),
    ],
)
def test_a_bad_archive_is_refused_whole(data: bytes, reason: str) -> None:
    with pytest.raises(CarInvalid) as caught:
        read_car(data)
    assert caught.value.reason == reason


def test_the_limit_is_on_the_whole_archive() -> None:
    assert read_car(GOOD, max_bytes=len(GOOD))
    with pytest.raises(CarInvalid) as caught:
        read_car(GOOD, max_bytes=len(GOOD) - 1)
    assert caught.value.reason == "too-large"


@pytest.mark.parametrize("name", ["alice", "bob", "carol", "dave", "erin", "frank"])
def test_a_servers_archive_is_read_and_written_back(data: Path, name: str) -> None:
    archive = (data / f"pds-trace.{name}.car").read_bytes()
    car = read_car(archive)
    assert write_car(car.roots, car.blocks) == archive


def test_a_swapped_cid_is_refused(data: Path) -> None:
    archive = (data / "pds-trace.dave.car").read_bytes()
    car = read_car(archive)
    first, second = list(car.blocks)[1:3]
    broken = (
        archive.replace(first.bytes, b"#" * 36, 1)
        .replace(second.bytes, first.bytes, 1)
        .replace(b"#" * 36, second.bytes, 1)
    )
    with pytest.raises(CarInvalid):
        read_car(broken)
