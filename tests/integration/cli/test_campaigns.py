"""Campaigns as a user types them: a death, a wipe, the cap, a victory; what ledger and files say of them.

One system serves them all, and the same three agents play: what one campaign leaves, the next one finds.
"""

from pathlib import Path
from typing import Any

import pytest

from leases import LeaseStatus, LedgerReader

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

GONE_WITHIN_S = 15  # from a death to an empty tier, on a machine that does much else; half a second is grace
NAMES = ("alice", "bob", "carol")


def play(skylease: Any, seed: int, *words: str) -> dict[str, Any]:
    """One campaign of three; the report."""
    ran = skylease.run("simulate", "rpg", "--agents", "3", "--seed", str(seed), *words, "--json")
    assert ran.code == 0, ran.err
    (report,) = ran.objects
    leases = 3 * len(report["games"])
    assert report["leases"] == {"acquired": leases, "ended": leases, "live": 0}
    assert report["turns"]["skipped"] == 0
    assert report["events"]["rejected"] == 0
    assert directories(skylease.root) == []
    result: dict[str, Any] = report
    return result


def directories(root: Path) -> list[Path]:
    return [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]


def endings(skylease: Any, game: dict[str, Any]) -> dict[str, str]:
    """By agent, what ended its lease in this game: one ending each, in the ledger and in its record."""
    leases = skylease.run("leases", "list", "--environment", game["environment"], "--json").objects
    assert len(leases) == 3
    with LedgerReader(skylease.root / "ledger.db") as ledger:
        for lease in leases:
            history = ledger.history(lease["lease"])
            (ended,) = [event for event in history if event.is_ended]
            assert ended.event is not None
            assert ended.event.startswith(f"at://{lease['authority']}/dev.skylease.{lease['ended_by']}/")
            assert ended.published_uri is not None
            (gone,) = [event for event in history if event.to_status is LeaseStatus.DESTROYED]
            assert gone.at - ended.at < GONE_WITHIN_S * 1000
    return {lease["agent"]: lease["ended_by"] for lease in leases}


def agents(skylease: Any) -> dict[str, str]:
    """Every player's present character, in the short words of `agents list`."""
    rows = skylease.run("agents", "list", "--json").objects
    assert sorted(row["handle"] for row in rows) == [f"{name}.test" for name in NAMES]
    return {row["agent"]: row["character"] for row in rows}


def test_a_death_ends_one_lease_and_the_dead_is_born_again(skylease_up: Any, tmp_path: Path) -> None:
    story = tmp_path / "chronicle.md"
    report = play(skylease_up, 9, "--adventures", "2", "--chronicle", str(story))
    first, second = report["games"]
    (death,) = first["deaths"]
    assert 0 < death["turn"] < first["turns"]
    ended = endings(skylease_up, first)
    others = dict.fromkeys(ended, "game.finished")
    assert ended == others | {death["agent"]: "agent.death"}
    assert endings(skylease_up, second) == others  # it plays again, as somebody else
    assert f"is killed by {death['cause']}" in story.read_text().replace("\\", "")
    told = skylease_up.run("agents", "show", death["agent"], "--json").objects[0]
    (former,) = told["former"]
    assert (former["dead"], former["cause"], former["items"], former["gold"]) == (True, death["cause"], {}, 0)
    assert (told["character"]["dead"], told["deaths"], told["live"]) == (False, 1, 0)
    (ancestor,) = told["character"]["ancestors"]
    assert (ancestor["id"], ancestor["cause"]) == (former["id"], death["cause"])
    assert [one["ended_by"] for one in told["adventures"]] == ["agent.death", "game.finished"]
    assert [one["level"] for one in told["adventures"]] == [former["level"], told["character"]["level"]]
    readable = skylease_up.run("agents", "show", "alice.test").out
    assert all(heading in readable for heading in ("CHARACTER", "PLAYED", "REMEMBERS"))
    assert max(map(len, readable.splitlines())) <= 100


def test_a_wipe_ends_every_lease_by_a_death(skylease_up: Any) -> None:
    (game,) = play(skylease_up, 4, "--adventures", "3")["games"]  # nothing follows a wipe
    assert (game["reason"], len(game["deaths"])) == ("wipe", 3)
    assert set(endings(skylease_up, game).values()) == {"agent.death"}
    characters = agents(skylease_up)
    for death in game["deaths"]:
        assert characters[death["agent"]].endswith(f", dead: {death['cause']}")
    told = skylease_up.run("agents", "show", "bob.test", "--json").objects[0]
    assert told["troubles"] == []
    hero = told["character"]
    assert (hero["dead"], hero["items"], hero["gold"], hero["hp"]) == (True, {}, 0, 0)


def test_the_cap_ends_every_lease_once(skylease_up: Any) -> None:
    (game,) = play(skylease_up, 5, "--adventures", "1")["games"]
    assert (game["reason"], game["turns"], game["deaths"]) == ("turn_cap", 96, [])
    assert set(endings(skylease_up, game).values()) == {"game.finished"}


def test_a_victory_of_all_three(skylease_up: Any) -> None:
    (game,) = play(skylease_up, 7, "--adventures", "1")["games"]
    assert (game["reason"], game["turns"], game["deaths"]) == ("victory", 39, [])
    assert set(endings(skylease_up, game).values()) == {"game.finished"}
    assert not any("dead" in character for character in agents(skylease_up).values())


def test_one_who_comes_late(skylease_up: Any, tmp_path: Path) -> None:
    story = tmp_path / "chronicle.md"
    play(skylease_up, 7, "--adventures", "1", "--late", "1", "--chronicle", str(story))
    assert "carol is not here yet" in story.read_text()
    assert "**carol catches up with the party**" in story.read_text()


def test_an_agent_that_nobody_knows(skylease_up: Any) -> None:
    ran = skylease_up.run("agents", "show", "did:plc:nobody\x1b[2J")
    assert (ran.code, ran.out) == (3, "")
    assert "no agent did:plc:nobody[2J has played here" in ran.err


def test_sandboxes_were_made_of_warm_slots(skylease_up: Any) -> None:
    """What all of these campaigns got, as the host counted it."""
    (host,) = skylease_up.run("status", "--json").objects[0]["hosts"]
    if why := [lack for lack in host["lacks"] if lack.startswith("warm slots")]:
        pytest.skip(why[0])
    assert host["pool"]["slot_hits"] > 0
    assert host["pool"]["slot_hits"] + host["pool"]["slot_misses"] == host["made"]
