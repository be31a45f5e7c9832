"""What the tests of this room share: the vectors, the recorded trace, and a judge that resolves documents."""

import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firehose import compiled
from firehose.keys import SigningKey
from firehose.repo import CommitResult, Repo, read_repo_car
from firehose.syntax import Did
from firehose.tid import TidClock
from firehose.trace import read_trace
from firehose.verify import Judgement, Verifier

DATA = Path(__file__).parents[2] / "data"
NOW_MS = 1_790_000_000_000
ALICE = Did("did:plc:alice2222222222222222222")

Documents = dict[str, list[dict[str, Any]]]
Judge = Callable[..., Judgement]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of vectors and traces."""
    return DATA


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled module, built anew from the source in the checkout, every warning an error.

    CFLAGS="-g -fsanitize=address,undefined", with LD_PRELOAD=libasan.so, looks for what C forgives.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    include = sysconfig.get_paths()["include"]
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python: the Python twins are all there is")
    target = tmp_path_factory.mktemp("fast") / f"_fast{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}"]
    flags += os.environ.get("CFLAGS", "").split()
    source = Path(compiled.__file__).parent / "_fast.c"
    subprocess.run([compiler, *flags, str(source), "-o", str(target)], check=True, timeout=60)
    spec = importlib.util.spec_from_file_location("firehose._fast", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["python", pytest.param("compiled", marks=pytest.mark.optional)])
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run everything in the module twice: with the compiled functions, and with their twins in Python."""
    with pytest.MonkeyPatch.context() as patch:
        module = None if request.param == "python" else request.getfixturevalue("fast")
        patch.setattr(compiled, "fast", module)
        yield request.param


@pytest.fixture(scope="session")
def pds_documents() -> Documents:
    """DID documents of the recorded trace, per account in the order in which they were valid."""
    documents: Documents = {}
    for entry in json.loads((DATA / "pds-trace.meta.json").read_text())["didDocs"]:
        documents.setdefault(entry["doc"]["id"], []).append(entry["doc"])
    return documents


@pytest.fixture(scope="session")
def pds_frames() -> list[tuple[int, bytes]]:
    """The recorded trace: time of receipt in milliseconds, and raw frame."""
    return [(entry.received_us // 1000, entry.frame) for entry in read_trace(DATA / "pds-trace.fht")]


@pytest.fixture
def judge() -> Judge:
    """`judge(verifier, frame, now_ms, documents)`: receive, with every need answered from a list per DID.

    A refresh moves on to the next document of the list, if there is one.
    """
    positions: dict[str, int] = {}

    def run(verifier: Verifier, frame: bytes, now_ms: int, documents: Documents) -> Judgement:
        for _ in range(3):
            judgement = verifier.receive(frame, now_ms)
            if not judgement.needs:
                return judgement
            for need in judgement.needs:
                known = documents.get(need.did, [])
                step = min(positions.get(need.did, 0) + need.refresh, max(len(known) - 1, 0))
                positions[need.did] = step
                verifier.learn(need.did, known[step] if known else None)
        raise AssertionError("still in need after two rounds")

    return run


class Author:
    """An account of ours: a key, a document, a store of blocks, and a repository in it."""

    def __init__(self, did: Did = ALICE, key: SigningKey | None = None) -> None:
        self.did = did
        self.key = key or SigningKey.from_bytes(b"\x07" * 32)
        self.blocks: dict[Any, bytes] = {}
        self.tids = TidClock(lambda: NOW_MS * 1000)
        self.first = Repo.create(did, self.key, self.tids, self.blocks.get)
        self.repo = self.first.repo
        self.save(self.first)

    def save(self, result: CommitResult) -> CommitResult:
        self.blocks.update(result.new_blocks)
        self.repo = result.repo
        return result

    def document(self, key: SigningKey | None = None) -> dict[str, Any]:
        return {
            "id": self.did,
            "alsoKnownAs": ["at://alice.test"],
            "verificationMethod": [
                {
                    "id": f"{self.did}#atproto",
                    "type": "Multikey",
                    "controller": self.did,
                    "publicKeyMultibase": (key or self.key).verifying_key.multibase,
                }
            ],
            "service": [
                {
                    "id": "#atproto_pds",
                    "type": "AtprotoPersonalDataServer",
                    "serviceEndpoint": "https://pds.example.com",
                }
            ],
        }


@pytest.fixture
def author() -> Iterator[Author]:
    """Alice, with an empty repository."""
    alice = Author()
    yield alice
    # Whatever a test did to her, her repository is one that anybody can read whole.
    assert read_repo_car(alice.repo.car()).data == alice.repo.data
