"""Every file of the recorded and borrowed data is used by a test: the list, and what no other test uses."""

import json
import os
from base64 import b64decode
from fnmatch import fnmatch
from pathlib import Path

import pytest

from firehose.car import read_car, write_car
from firehose.cid import Cid
from firehose.commit import parse_commit
from firehose.document import signing_key
from firehose.drisl import decode, encode
from firehose.json_form import to_json
from firehose.keys import ORDER, Curve, VerifyingKey
from firehose.syntax import Did

SHARED = Path(__file__).parents[4] / "shared" / "data"
TESTS = Path(__file__).parents[2]

# Which test uses which file: the words must stand in that test.
USED = {
    "cars/car-file-fixtures.json": ("unit/firehose/test_shared_data.py", "car-file-fixtures"),
    "cars/*.didDoc.json": ("unit/firehose/test_shared_data.py", "didDoc.json"),
    "cars/jcalabro.expected_commit.txt": ("unit/firehose/test_shared_data.py", "expected_commit.txt"),
    "cars/repo_slice_record.json": ("unit/firehose/test_shared_data.py", "repo_slice_record.json"),
    "cars/jcalabro.*": ("unit/firehose/test_scenarios.py", "jcalabro"),
    "cars/greenground.repo.car": ("unit/firehose/test_scenarios.py", "greenground"),
    "cars/rsky.valid_repo.car": ("unit/firehose/test_scenarios.py", "rsky.valid_repo"),
    "cars/arroba.snarfed2.car": ("unit/firehose/test_scenarios.py", "arroba.snarfed2"),
    "cars/*": ("unit/firehose/test_scenarios.py", "commit-version"),
    "dasl-cbor/*": ("unit/firehose/test_drisl.py", "dasl-cbor"),
    "firehose-json/*": ("unit/firehose/test_scenarios.py", "firehose-json"),
    "interop/crypto/*": ("unit/firehose/test_keys.py", "crypto"),
    "interop/data-model/*": ("unit/firehose/test_drisl.py", "data-model"),
    "interop/firehose/*": ("unit/firehose/test_inversion.py", "commit-proof-fixtures"),
    "interop/mst/*.json": ("unit/firehose/test_mst.py", "mst"),
    "interop/mst/example_keys.txt": ("unit/firehose/test_mst.py", "example_keys"),
    "interop/syntax/*": ("unit/firehose/test_syntax.py", "_syntax_"),
    "pds-trace.*.car": ("unit/firehose/test_car.py", "pds-trace."),
    "pds-trace.fht": ("unit/firehose/conftest.py", "pds-trace.fht"),
    "pds-trace.meta.json": ("unit/firehose/conftest.py", "pds-trace.meta.json"),
    "relay-real-100.*": ("unit/firehose/test_recorded.py", "relay-real-100"),
    "relay-scenarios/*": ("unit/firehose/test_scenarios.py", "relay-scenarios"),
}
NOT_DATA = {"README.md", "interop/LICENSE-CC0", "interop/mst/gen_keys.py"}


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        if os.environ.get("SKYLEASE_REQUIRE_SHARED") == "1":
            pytest.fail(f"{path} is not there")
        pytest.skip("data of others, which is not copied into the project: see tests/data/README.md")
    return path


@pytest.mark.optional
def test_every_file_is_used() -> None:
    root = shared("README.md").parent
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} - NOT_DATA
    unused = {name for name in files if not any(fnmatch(name, pattern) for pattern in USED)}
    assert not unused
    for pattern, (module, words) in USED.items():
        assert words in (TESTS / module).read_text(), (pattern, module)
        assert any(fnmatch(name, pattern) for name in files), pattern


@pytest.mark.optional
def test_the_archives_that_another_server_writes_are_ours_byte_by_byte() -> None:
    for fixture in json.loads(shared("cars/car-file-fixtures.json").read_text()):
        blocks = {
            Cid.parse(block["cid"]): b64decode(block["bytes"] + "=" * (-len(block["bytes"]) % 4))
            for block in fixture["blocks"]
        }
        archive = b64decode(fixture["car"] + "=" * (-len(fixture["car"]) % 4))
        car = read_car(archive)
        assert car.blocks == blocks
        assert str(car.root) == fixture["root"]
        assert write_car([car.root], blocks) == archive


@pytest.mark.optional
@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("fakermaker", Curve.P256),
        ("paul_staging", Curve.K256),
        ("greenground", Curve.K256),
        ("did_plc_z5vnbioquyhivxirw3bbljmu", Curve.K256),
    ],
)
def test_a_document_of_the_old_key_form_names_its_key(name: str, curve: Curve) -> None:
    document = json.loads(shared(f"cars/{name}.didDoc.json").read_text())
    key = signing_key(document, Did(document["id"]))
    assert key.curve is curve
    assert (
        document["verificationMethod"][0]["type"]
        == f"EcdsaSecp256{'k' if curve is Curve.K256 else 'r'}1VerificationKey2019"
    )


def old_commit(name: str) -> tuple[bytes, bytes]:
    """Signature of a version 2 commit, and what it is over."""
    car = read_car(shared(f"cars/{name}.repo.car").read_bytes())
    commit = decode(car.blocks[car.root])
    return commit.pop("sig"), encode(commit)


def old_key(name: str) -> VerifyingKey:
    document = json.loads(shared(f"cars/{name}.didDoc.json").read_text())
    return signing_key(document, Did(document["id"]))


@pytest.mark.optional
def test_a_real_signature_of_each_curve_and_one_with_a_high_s() -> None:
    signature, data = old_commit("paul_staging")
    assert old_key("paul_staging").verify(signature, data)
    # An early server did not yet lower the s: right by the mathematics, refused by the protocol.
    signature, data = old_commit("fakermaker")
    assert not old_key("fakermaker").verify(signature, data)
    low = (ORDER[Curve.P256] - int.from_bytes(signature[32:])).to_bytes(32)
    assert old_key("fakermaker").verify(signature[:32] + low, data)


@pytest.mark.optional
def test_the_commit_is_the_one_that_another_tool_printed() -> None:
    car = read_car(shared("cars/jcalabro.repo.car").read_bytes())
    commit = parse_commit(car.blocks[car.root])
    lines = shared("cars/jcalabro.expected_commit.txt").read_text().splitlines()
    printed = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert printed == {
        "ATProto Repo Spec Version": "3",
        "DID": commit.did,
        "Data CID": str(commit.data),
        "Prev CID": "<nil>",
        "Revision": commit.rev,
    }


@pytest.mark.optional
def test_the_record_of_a_slice_is_the_one_beside_it() -> None:
    told = json.loads(shared("cars/repo_slice_record.json").read_text())
    block = read_car(shared("cars/repo_slice.car").read_bytes()).blocks[Cid.parse(told["cid"])]
    value = to_json(decode(block))
    assert value["createdAt"] == told["value"]["createdAt"]
    assert value["text"] == told["value"]["text"]
