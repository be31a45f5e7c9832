"""Coverage-guided noise for the verifier, for a bounded time, where atheris is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data"
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
RUNS = 2_000_000 if IS_THOROUGH else 5_000
SECONDS = 60 if IS_THOROUGH else 2
# In a process of its own: atheris instruments modules as they are imported, and ends the process when done.
DRIVER = """
import sys
import atheris
with atheris.instrument_imports(include=["firehose"]):
    from firehose.car import read_car, write_car
    from firehose.cid import Cid
    from firehose.commit import parse_commit, sign_commit
    from firehose.drisl import decode
    from firehose.errors import FirehoseError
    from firehose.frames import Action, CommitEvent, RepoOp, encode_commit, parse_frame
    from firehose.keys import SigningKey
    from firehose.mst import Mst
    from firehose.repo import read_repo_car
    from firehose.trace import read_trace
    from firehose.verify import Verifier
from pathlib import Path

NOW_MS = 1_790_000_000_000
KEY = SigningKey.from_bytes(bytes(31) + b"1")
DID, REV = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "3kdgeujwlq32y"
RECORD = bytes([0xa0])
DOCUMENT = {"id": DID, "verificationMethod": [{
    "id": DID + "#atproto", "type": "Multikey", "controller": DID,
    "publicKeyMultibase": KEY.verifying_key.multibase,
}]}

def judge(frame, document):
    verifier = Verifier()
    judgement = verifier.receive(frame, NOW_MS)
    for _ in range(2):
        if judgement.needs:
            verifier.learn(judgement.needs[0].did, document)
            judgement = verifier.receive(frame, NOW_MS)
    assert judgement.verdict is not None
    return judgement

def read(what, data):
    try:
        what(data)
    except FirehoseError:
        pass

def as_tree(node):
    # Signed and under its right CID, so that the tree itself is looked at, and not only its hash.
    data, record = Cid.for_dag_cbor(node), Cid.for_dag_cbor(RECORD)
    _, block = sign_commit(KEY, did=DID, rev=REV, data=data)
    root = Cid.for_dag_cbor(block)
    archive = write_car([root], {root: block, data: node, record: RECORD})
    read(read_repo_car, archive)
    op = RepoOp(action=Action.CREATE, path="com.example.note/a", cid=record)
    judgement = judge(encode_commit(
        seq=1, repo=DID, commit=root, rev=REV, since=None, time="", blocks=archive, ops=[op],
        prev_data=Mst.empty().root,
    ), DOCUMENT)
    assert judgement.reason != "signature", judgement
    return judgement

def one(data):
    judge(data, None)
    read(decode, data)
    read(read_repo_car, data)
    as_tree(data)

corpus = Path(sys.argv.pop(1))
honest = Mst.empty().put("com.example.note/a", Cid.for_dag_cbor(RECORD))
(corpus / "tree").write_bytes(honest.root_block)
assert as_tree(honest.root_block).reason == "ok"
for number, recorded in enumerate(read_trace(Path(sys.argv.pop(1)))):
    if number % 20 == 0 and len(recorded.frame) < 20000:
        (corpus / str(number)).write_bytes(recorded.frame)
        event = parse_frame(recorded.frame)
        if isinstance(event, CommitEvent):
            blocks = read_car(event.blocks).blocks
            (corpus / f"{number}.node").write_bytes(blocks[parse_commit(blocks[event.commit]).data])
atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], one)
atheris.Fuzz()
"""


@pytest.mark.optional
def test_nothing_that_atheris_finds_is_without_a_verdict(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    script = tmp_path / "fuzz.py"
    script.write_text(DRIVER)
    limits = [f"-runs={RUNS}", f"-max_total_time={SECONDS}", "-max_len=20000", "-timeout=10", "-seed=1"]
    done = subprocess.run(
        [sys.executable, str(script), str(corpus), str(DATA / "pds-trace.fht"), *limits],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
