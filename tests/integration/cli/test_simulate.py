"""The main job, typed as a user types it."""

import os
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


def sandbox_directories(root: Path) -> list[Path]:
    return [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]


def processes_of(root: Path) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                cmdline = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(root) in cmdline:
                found.append(cmdline)
    return found


def test_a_whole_game_gives_the_same_log_on_any_tier(skylease, tmp_path) -> None:  # type: ignore[no-untyped-def]
    board = tmp_path / "board.svg"
    digests = []
    for tier in ("process", "unsafe"):
        ran = skylease.run(
            *(
                "simulate",
                "catan",
                "--agents",
                "4",
                "--seed",
                "7",
                "--json",
                "--board",
                str(board),
                "--tier",
                tier,
            )
        )
        assert ran.code == 0, ran.err
        (report,) = ran.objects  # stdout is the one object, nothing else
        (game,) = report["games"]
        assert game["winner"] is not None
        assert game["reason"] == "win"
        assert report["leases"] == {"acquired": 4, "ended": 4, "live": 0}
        assert report["sandboxes"] == {"created": 4, "destroyed": 4, "left": 0, "tier": tier}
        assert report["events"]["rejected"] == 0
        assert report["events"]["seen"] == report["events"]["verified"] > 0
        assert report["turns"] == {"taken": game["turns"], "skipped": 0}
        assert 0 < report["turn_ms"]["p50"] <= report["turn_ms"]["p99"]
        assert report["event_to_action_ms"]["p50"] > 0
        digests.append(report["game_log_sha256"])
    assert digests[0] == digests[1]
    assert ElementTree.parse(board).getroot().tag.endswith("svg")
    assert sandbox_directories(skylease.root) == []
    leases = skylease.run("leases", "list", "--json").objects
    assert len(leases) == 8
    assert {lease["status"] for lease in leases} == {"destroyed"}
    assert {lease["ended_by"] for lease in leases} == {"game.finished"}
    shown = skylease.run("leases", "show", leases[0]["lease"], "--json").objects[0]
    assert [event["cause"] for event in shown["history"]][-1] == "tier_empty"
    assert all(
        event["published"] for event in shown["history"] if event["cause"] in ("acquired", "condition")
    )


def test_a_death_in_a_campaign_ends_one_lease(skylease, tmp_path) -> None:  # type: ignore[no-untyped-def]
    story = tmp_path / "chronicle.md"
    words = ("--agents", "3", "--seed", "9", "--adventures", "1", "--chronicle", str(story), "--json")
    ran = skylease.run("simulate", "rpg", *words)
    assert ran.code == 0, ran.err
    (report,) = ran.objects
    (game,) = report["games"]
    assert (report["environment_type"], game["reason"], game["winner"]) == ("rpg", "victory", None)
    (death,) = game["deaths"]
    assert 0 < death["turn"] < game["turns"]
    assert report["leases"] == {"acquired": 3, "ended": 3, "live": 0}
    assert report["sandboxes"] == {"created": 3, "destroyed": 3, "left": 0, "tier": "process"}
    assert report["turns"] == {"taken": game["turns"], "skipped": 0}
    assert report["events"]["rejected"] == 0
    assert len(report["game_log_sha256"]) == 64
    leases = skylease.run("leases", "list", "--json").objects
    assert {lease["agent"]: lease["ended_by"] for lease in leases}[death["agent"]] == "agent.death"
    assert sorted(lease["ended_by"] for lease in leases) == ["agent.death", "game.finished", "game.finished"]
    assert story.read_text().startswith("# Adventure 1 of 1")
    assert death["cause"] in story.read_text().replace("\\", "")
    assert sandbox_directories(skylease.root) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_game_is_cleared_away_within_ten_seconds(skylease, sent) -> None:  # type: ignore[no-untyped-def]
    running = skylease.start("simulate", "catan", "--agents", "3", "--seed", "7")
    assert running.stderr is not None
    seen = ""
    while "decision" not in seen:
        line = running.stderr.readline()
        assert line, seen
        seen += line
    assert len(sandbox_directories(skylease.root)) == 3
    started = time.monotonic()
    if sent is signal.SIGINT:
        os.killpg(running.pid, sent)  # as a terminal does: the whole foreground group gets it
    else:
        os.kill(running.pid, sent)
    out, err = running.communicate(timeout=30)
    assert time.monotonic() - started < 10
    assert running.returncode == 130
    assert "3 leases ended, 0 sandboxes left" in err
    assert out == ""
    assert sandbox_directories(skylease.root) == []
    assert processes_of(skylease.root) == []
    statuses = {lease["status"] for lease in skylease.run("leases", "list", "--json").objects}
    assert statuses == {"destroyed"}


def test_one_data_directory_is_for_one_system_at_a_time(skylease) -> None:  # type: ignore[no-untyped-def]
    running = skylease.start("simulate", "catan", "--agents", "4", "--seed", "7")
    assert running.stderr is not None
    while "playing" not in running.stderr.readline():
        assert running.poll() is None
    second = skylease.run("simulate", "catan", "--agents", "2")
    assert second.code == 4
    assert f"in use by process {running.pid}" in second.err
    assert len(second.err.strip().splitlines()[-1:]) == 1
    os.kill(running.pid, signal.SIGTERM)
    running.communicate(timeout=30)
