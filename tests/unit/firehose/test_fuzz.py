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
    from firehose.errors import FirehoseError
    from firehose.trace import read_trace
    from firehose.verify import Verifier
    from firehose.repo import read_repo_car
    from firehose.drisl import decode
from pathlib import Path

def one(data):
    verifier = Verifier()
    judgement = verifier.receive(data, 1_790_000_000_000)
    if judgement.needs:
        verifier.learn(judgement.needs[0].did, None)
        judgement = verifier.receive(data, 1_790_000_000_000)
    assert judgement.verdict is not None
    for read in (decode, read_repo_car):
        try:
            read(data)
        except FirehoseError:
            pass

corpus = Path(sys.argv.pop(1))
for number, recorded in enumerate(read_trace(Path(sys.argv.pop(1)))):
    if number % 20 == 0 and len(recorded.frame) < 20000:
        (corpus / str(number)).write_bytes(recorded.frame)
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
