"""Which games an order comes to, and how their reports add up."""

import hashlib
from typing import Any

import pytest

from actors import farewell, records
from actors.errors import WrongUse
from actors.series import Series, check_order
from actors.summary import Played, summary

SURVIVED: dict[str, Any] = {"characters": [None, None], "ends_campaign": False}


def test_a_single_game_is_played_once() -> None:
    series = Series.single("catan-7", 7, {"turn_cap": 12})
    game = series.next()
    assert game is not None
    assert (game.environment_id, game.title, game.seed, game.settings) == ("catan-7", "", 7, {"turn_cap": 12})
    series.after({"reason": "win"}, {})
    assert series.next() is None


def test_a_campaign_is_one_environment_per_adventure_until_one_ends_it() -> None:
    series, met = Series.campaign("rpg-9", 9, players=2, adventures=5), []
    while (game := series.next()) is not None:
        met.append(game)
        is_wipe = len(met) == 3
        series.after({"reason": "wipe" if is_wipe else "victory"}, SURVIVED | {"ends_campaign": is_wipe})
    assert [game.environment_id for game in met] == ["rpg-9-1", "rpg-9-2", "rpg-9-3"]
    assert [game.settings["adventure"] for game in met] == [1, 2, 3]
    assert [game.settings["characters"] for game in met] == [None, [None, None], [None, None]]
    assert met[0].seed == 9
    assert len({game.seed for game in met}) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("chess", 2, None, False), "chess", id="no-such-environment"),
        pytest.param(("catan", 1, None, False), "2 to 4", id="too-few"),
        pytest.param(("rpg", 7, None, False), "1 to 6", id="too-many"),
        pytest.param(("catan", 3, 2, False), "no campaigns", id="catan-has-no-adventures"),
        pytest.param(("catan", 3, None, True), "no campaigns", id="catan-has-no-chronicle"),
        pytest.param(("rpg", 3, 101, False), "1 to 100", id="too-many-adventures"),
        pytest.param(("catan", 3, None, False, 1), "begins with everybody", id="nobody-joins-catan-late"),
        pytest.param(("rpg", 3, None, False, 3), "0 to 2 can come late", id="somebody-has-to-begin"),
        pytest.param(("rpg", 3, None, False, -1), "0 to 2 can come late", id="fewer-than-none-late"),
    ],
)
def test_what_cannot_be_played(words: tuple[Any, ...], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        check_order(*words[:3], chronicle=words[3], late=words[4] if len(words) > 4 else 0)


def played(environment: str, turns: int, skipped: int, digest: str, sequel: dict[str, Any]) -> Played:
    status = {
        "environment": environment,
        "type": environment.partition("-")[0],
        "outcome": {"reason": "victory", "winner": None, "turns": turns},
        "skipped": skipped,
        "deaths": [],
        "game_log_sha256": digest,
    }
    return Played(status=status, sequel=sequel, event_to_action_ms=[float(turns)])


def told(*games: Played) -> dict[str, Any]:
    return summary(
        games,
        agents=[{"turn_ms": [1.0, 3.0]}],
        leases=[{"status": "destroyed"}, {"status": "active"}],
        hosts=[
            {
                "node": "here",
                "made": 2,
                "sandboxes": 1,
                "tier": "process",
                "passed_over": ["not docker: no engine"],
                "lacks": [],
            }
        ],
        tap={"seen": 5, "verified": 4, "rejected": 1, "seq": 9},
        refused={},
    )


def test_a_report_adds_up_over_its_games() -> None:
    report = told(played("rpg-1", 10, 1, "aa", SURVIVED), played("rpg-2", 20, 2, "bb", SURVIVED))
    assert [game["environment"] for game in report["games"]] == ["rpg-1", "rpg-2"]
    assert report["turns"] == {"taken": 27, "skipped": 3}
    assert report["leases"] == {"acquired": 2, "ended": 1, "live": 1}
    assert report["events"] == {"seen": 5, "verified": 4, "rejected": 1}
    assert report["game_log_sha256"] == hashlib.sha256(b"aa\nbb\n").hexdigest()
    assert "deaths" in report["games"][0]


def test_a_single_game_is_told_as_it_is() -> None:
    report = told(played("catan-1", 10, 0, "aa", {}))
    assert report["game_log_sha256"] == "aa"
    (game,) = report["games"]
    assert game == {"environment": "catan-1", "reason": "victory", "winner": None, "turns": 10}


@pytest.mark.parametrize(
    ("collection", "record", "notice"),
    [
        (records.AGENT_DEATH, {"cause": "a trap"}, {"notice": "death", "cause": "a trap"}),
        (records.GAME_FINISHED, {"reason": "victory"}, {"notice": "end", "reason": "victory"}),
        (records.CAMPAIGN_ENDED, {"reason": "victory"}, None),
    ],
    ids=["death", "end", "the-campaign"],
)
def test_last_words(collection: str, record: dict[str, Any], notice: dict[str, Any] | None) -> None:
    assert farewell.notice_of(collection, record) == notice
