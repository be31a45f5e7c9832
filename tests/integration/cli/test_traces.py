"""Traces on the command line: recorded into segments, served, verified, replayed; whole or from a place."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "data"
TRACE = DATA / "pds-trace.fht"
DOCUMENTS = ("--did-docs", str(DATA / "pds-trace.did_docs.json"))


def one_line(ran: Any, code: int, *says: str) -> None:
    assert ran.code == code, (ran.code, ran.err)
    assert "Traceback" not in ran.err
    last = ran.err.strip().splitlines()[-1]
    for word in says:
        assert word in last, last


def served(skylease: Any, trace: Path) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    process = skylease.start("firehose", "serve", str(trace), "--json")
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_a_trace_goes_around(skylease: Any, tmp_path: Path) -> None:
    """Served from a file, recorded into segments, served from those, verified and replayed alike."""
    segments = tmp_path / "segments"
    process, told = served(skylease, TRACE)
    assert (told["frames"], told["first_seq"], told["last_seq"]) == (467, 1, 467)
    recorded = skylease.run(
        *("firehose", "record", told["url"], str(segments), "--cursor", "0", "--count", "467"), "--json"
    )
    assert recorded.code == 0, recorded.err
    assert recorded.objects[-1]["frames"] == 467
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert list(segments.glob("*.fht.zst"))

    process, told = served(skylease, segments)
    assert told["frames"] == 467
    tailed = skylease.run("firehose", "tail", told["url"], "--cursor", "400", "--count", "60", "--json")
    assert [row["seq"] for row in tailed.objects] == list(range(401, 461))
    process.send_signal(signal.SIGTERM)
    process.wait(60)

    plain = skylease.run("firehose", "verify", str(TRACE), "--json")
    now = ("--now", "2027-01-01T00:00:00Z")
    verified = skylease.run(
        "firehose", "verify", str(segments), *DOCUMENTS, *now, "--processes", "2", "--json"
    )
    assert verified.objects == plain.objects
    later = skylease.run("firehose", "verify", str(segments), *DOCUMENTS, *now, "--from-seq", "300", "--json")
    assert [row["seq"] for row in later.objects[:-1]] == list(range(300, 468))
    one_line(
        skylease.run("firehose", "verify", str(segments), *DOCUMENTS, "--from-seq", "500"),
        3,
        "seq 500",
        "467",
    )


def test_places_and_speeds(skylease: Any, tmp_path: Path) -> None:
    quick = skylease.run("replay", str(TRACE), "--speed", "1000000", "--processes", "2", "--json")
    whole = skylease.run("replay", str(TRACE), "--json")
    assert quick.code == 0, quick.err
    assert quick.objects == whole.objects
    for words, says in (
        (["--speed", "fast"], "max, 1 or 10"),
        (["--speed", "0"], "max, 1 or 10"),
        (["--from-time", "yesterday"], "--from-time"),
        (["--from-seq", "1", "--from-time", "2026-11-21T00:00:00Z"], "one of them"),
    ):
        one_line(skylease.run("replay", str(TRACE), *words), 2, says)
    one_line(skylease.run("replay", str(TRACE), "--from-time", "2036-01-01T00:00:00Z"), 3, "2036", "467")
    empty = tmp_path / "empty"
    empty.mkdir()
    one_line(skylease.run("replay", str(empty)), 1, "not a trace")
    one_line(skylease.run("firehose", "serve", str(empty)), 1, "not a trace")
    ran = skylease.run("firehose", "record", "ws://127.0.0.1:1", str(tmp_path / "a.fht"), "--keep-mib", "5")
    one_line(ran, 2, "--keep-mib", "directory")
