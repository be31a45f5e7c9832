"""Recorded firehoses through the whole pipeline: every commit verifies, the ledger is the same each time."""

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PDS_TRACE = ROOT / "tests/data/pds-trace.fht"
RELAY_TRACE = ROOT.parent / "shared/data/relay-real-100.fht"  # posts of strangers: not part of the project


def replayed_twice(skylease: Any, trace: Path) -> dict[str, Any]:
    reports = []
    for number in (1, 2):
        ledger = skylease.root / f"ledger-{number}.db"
        ledger.parent.mkdir(exist_ok=True)
        ran = skylease.run("replay", str(trace), "--ledger", str(ledger), "--json")
        assert ran.code == 0, ran.err
        assert ledger.exists()
        reports += ran.objects
    assert reports[0] == reports[1]
    report: dict[str, Any] = reports[0]
    return report


def test_the_trace_of_a_real_pds(skylease: Any) -> None:
    report = replayed_twice(skylease, PDS_TRACE)
    assert report["frames"] == 467
    assert report["verdicts"] == {"accept": 450, "noop": 17}
    assert report["rejected"] == 0
    assert report["accounts"] == 8


def test_frames_of_the_real_relay(skylease: Any) -> None:
    if not RELAY_TRACE.exists():
        if os.environ.get("SKYLEASE_REQUIRE_SHARED") == "1":
            pytest.fail(f"{RELAY_TRACE} must be there in this run, and is not")
        pytest.skip(
            "the frames of a public relay are not beside this checkout (third-party posts, not copied)"
        )
    report = replayed_twice(skylease, RELAY_TRACE)
    assert report["verdicts"] == {"accept": 100}


@pytest.mark.ray
def test_a_game_of_ours_replays_to_the_leases_that_it_had(skylease: Any, tmp_path: Path) -> None:
    trace = tmp_path / "game.fht"
    played = skylease.run(
        *("simulate", "catan", "--agents", "2", "--json", "--record", str(trace)),
        SKYLEASE_GAME__CATAN_TURN_CAP="20",
    )
    assert played.code == 0, played.err
    assert played.objects[0]["leases"]["ended"] == 2
    report = replayed_twice(skylease, trace)
    assert report["rejected"] == 0
    assert report["leases"] == {"destroyed": 2}
    live = {lease["lease"]: lease for lease in skylease.run("leases", "list", "--json").objects}
    (skylease.root / "ledger-1.db").replace(tmp_path / "ledger.db")
    again = skylease.run("leases", "list", "--json", SKYLEASE_DATA_DIR=str(tmp_path)).objects
    assert {lease["lease"] for lease in again} == set(live)
    for lease in again:
        for field in (
            "agent",
            "environment",
            "authority",
            "tier",
            "status",
            "epoch",
            "conditions",
            "ended_by",
        ):
            assert lease[field] == live[lease["lease"]][field]
