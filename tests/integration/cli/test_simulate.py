"""The main job, typed as a user types it."""

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from actors.host import load_image, make_tier
from actors.resources import shipped
from sandboxes.tiers.registry import NEVER_CHOSEN, TIERS

pytestmark = [pytest.mark.ray]


def sandbox_directories(root: Path) -> list[Path]:
    return [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]


def test_a_whole_game(skylease, tmp_path) -> None:  # type: ignore[no-untyped-def]
    board = tmp_path / "board.svg"
    words = ("simulate", "catan", "--agents", "4", "--seed", "7", "--json", "--board", str(board))
    ran = skylease.run(*words)
    assert ran.code == 0, ran.err
    (report,) = ran.objects  # stdout is the one object, nothing else
    (game,) = report["games"]
    assert game["winner"] is not None
    assert game["reason"] == "win"
    assert report["leases"] == {"acquired": 4, "ended": 4, "live": 0}
    assert report["sandboxes"] == {"created": 4, "destroyed": 4, "left": 0, "tier": "process"}
    assert report["events"]["rejected"] == 0
    assert report["events"]["seen"] == report["events"]["verified"] > 0
    assert report["turns"] == {"taken": game["turns"], "skipped": 0}
    assert 0 < report["turn_ms"]["p50"] <= report["turn_ms"]["p99"]
    assert report["event_to_action_ms"]["p50"] > 0
    assert ElementTree.parse(board).getroot().tag.endswith("svg")
    assert sandbox_directories(skylease.root) == []
    leases = skylease.run("leases", "list", "--json").objects
    assert len(leases) == 4
    assert {lease["status"] for lease in leases} == {"destroyed"}
    assert {lease["ended_by"] for lease in leases} == {"game.finished"}
    shown = skylease.run("leases", "show", leases[0]["lease"], "--json").objects[0]
    assert [event["cause"] for event in shown["history"]][-1] == "tier_empty"
    assert re.fullmatch(r"catan@sha256:[0-9a-f]{64}", shown["image"])
    assert all(
        event["published"] for event in shown["history"] if event["cause"] in ("acquired", "condition")
    )


def test_the_same_seed_gives_the_same_log_on_every_tier(skylease, tmp_path) -> None:  # type: ignore[no-untyped-def]
    digests = {}
    for tier in (name for name in TIERS if name not in NEVER_CHOSEN):
        ours = make_tier(tier, tmp_path / "probe")
        probe = asyncio.run(ours.probe())
        if not probe.ok:
            pytest.skip(f"{tier}: {probe.lacks[0].why}")
        if not asyncio.run(ours.has_image(load_image(shipped("images"), "catan"))):
            pytest.skip(f"{tier}: the image catan is not built (make images)")
        words = ("simulate", "catan", "--agents", "2", "--seed", "7", "--json", "--tier", tier)
        ran = skylease.run(*words, SKYLEASE_GAME__CATAN_TURN_CAP="30")
        assert ran.code == 0, ran.err
        (report,) = ran.objects
        assert report["sandboxes"] == {"created": 2, "destroyed": 2, "left": 0, "tier": tier}
        assert report["turns"] == {"taken": 30, "skipped": 0}
        assert [host["tier"] for host in report["hosts"]] == [tier]
        digests[tier] = report["game_log_sha256"]
    assert len(digests) > 1
    assert len(set(digests.values())) == 1
    assert sandbox_directories(skylease.root) == []
