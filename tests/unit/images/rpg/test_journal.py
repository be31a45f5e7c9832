"""The agent's own files: kept, checked, bounded, and never lost in silence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from games.rpg import Campaign, Rpg

DYING = 0  # the player whose hero dies in seed 9 of three scripted players


def state_of(game: Rpg) -> dict[str, Any]:
    """The current request's state, with the turn in it."""
    request = game.request()
    assert request is not None
    return request.state


def read(root: Path, name: str) -> Any:
    return json.loads((root / name).read_text())


def memories(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "memory" / "adventures.jsonl").read_text().splitlines()]


@pytest.fixture
def state() -> dict[str, Any]:
    return state_of(Rpg.new(3, 9, {}))


@pytest.fixture
def note(journal: Any, tmp_path: Path) -> Any:
    """Note a state of an environment. Returns: what went wrong."""

    def update(state: dict[str, Any], environment: str = "rpg-9") -> list[str]:
        kept = journal.Journal(str(tmp_path), environment)
        kept.update(state)
        troubles: list[str] = kept.troubles
        return troubles

    return update


def test_the_files_follow_the_adventure(note: Any, player: Any, tmp_path: Path) -> None:
    game = Rpg.new(3, 9, {})
    while (request := game.request()) is not None:
        assert note(request.state, f"player-{request.player}") == []
        sheet = read(tmp_path, "character.json")
        assert sheet["character"] == request.state["character"]
        game.apply(request.player, player.choose(request.state, 9))
    survivor = next(number for number, one in enumerate(game.characters()) if not one["dead"])
    assert note(game.farewell(survivor), f"player-{survivor}") == []
    kinds = [line["kind"] for line in memories(tmp_path) if line["environment"] == f"player-{survivor}"]
    assert kinds[0] == "joined"
    assert kinds[-1] == "end"
    assert kinds.count("room") == 4
    assert kinds.count("ally_died") == 1


def test_the_same_state_again_writes_nothing(note: Any, state: dict[str, Any], tmp_path: Path) -> None:
    note(state)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.json*")}
    note(state)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.json*")} == before
    assert len(memories(tmp_path)) == 1


@pytest.mark.parametrize("told", [True, False], ids=["death-was-noticed", "sandbox-went-first"])
def test_a_death_and_the_newborn_after_it(note: Any, player: Any, tmp_path: Path, told: bool) -> None:
    campaign = Campaign(players=3, seed=9, adventures=2)
    game, dead = campaign.next_game(), None
    while (request := game.request()) is not None:
        if dead is None and request.player == DYING:
            note(request.state)
        game.apply(request.player, player.choose(request.state, 9))
        if dead is None and game.deaths():
            dead = game.deaths()[0]
            assert dead.player == DYING
            if told:
                note(game.farewell(dead.player))
                sheet = read(tmp_path, "character.json")
                assert (sheet["status"], sheet["character"]["items"], sheet["character"]["gold"]) == (
                    "dead",
                    {},
                    0,
                )
                assert sheet["character"]["cause"] == dead.cause
    assert dead is not None
    old = game.characters()[DYING]
    second = campaign.after(game).next_game()
    while (request := second.request()) is not None and request.player != DYING:
        second.apply(request.player, player.choose(request.state, 9))
    assert request is not None
    assert note(request.state, "rpg-second") == []
    sheet = read(tmp_path, "character.json")
    assert (sheet["status"], sheet["character"]["id"]) == ("alive", request.state["character"]["id"])
    (former,) = read(tmp_path, "campaign/former.json")["sheets"]
    assert (former["status"], former["character"]["id"]) == ("dead", old["id"])
    assert (former["character"]["items"], former["character"]["gold"]) == ({}, 0)
    assert former["character"]["cause"] == dead.cause


def test_a_bare_notice_of_death_will_do(note: Any, state: dict[str, Any], tmp_path: Path) -> None:
    note(state)
    for _ in range(2):  # said again after a restart
        assert note({"notice": "death", "cause": "a goblin\x1b"}) == []
    sheet = read(tmp_path, "character.json")
    assert (sheet["status"], sheet["character"]["cause"]) == ("dead", "a goblin")
    assert (sheet["character"]["items"], sheet["character"]["gold"], sheet["character"]["hp"]) == ({}, 0, 0)
    assert sheet["character"]["xp"] == state["character"]["xp"]
    assert [(line["kind"], line["text"]) for line in memories(tmp_path)[1:]] == [
        ("death", "I died: a goblin")
    ]


def test_a_bare_notice_of_the_end_leaves_the_character(
    note: Any, state: dict[str, Any], tmp_path: Path
) -> None:
    note(state)
    assert note({"notice": "end", "reason": "victory"}) == []
    assert read(tmp_path, "character.json")["character"] == state["character"]
    assert memories(tmp_path)[-1]["text"] == "the adventure ended: victory"


def test_a_notice_to_somebody_who_has_no_files(note: Any, tmp_path: Path) -> None:
    assert note({"notice": "death", "cause": "a trap"}) == []
    assert not (tmp_path / "character.json").exists()


CORRUPT = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="cut-off"),
    pytest.param(b"[1]", id="no-object"),
    pytest.param(b"\xff\xfe", id="no-utf8"),
    pytest.param(b"[" * 5000, id="too-deep"),
    pytest.param(b'{"schema": 1}', id="fields-missing"),
    pytest.param(b" " * 20_000, id="too-large"),
]


@pytest.mark.parametrize("raw", CORRUPT)
def test_a_corrupt_character_is_kept_aside(
    note: Any, state: dict[str, Any], tmp_path: Path, raw: bytes
) -> None:
    for number in (1, 2):
        (tmp_path / "character.json").write_bytes(raw + b" " * number)
        (trouble,) = note(state)
        assert f"kept as character.json.corrupt-{number}" in trouble
    kept = [(tmp_path / f"character.json.corrupt-{number}").read_bytes() for number in (1, 2)]
    assert kept == [raw + b" ", raw + b"  "]
    assert read(tmp_path, "character.json")["character"] == state["character"]


def test_a_corrupt_character_is_told_on_stderr_and_costs_no_turn(
    take_turn: Any, state: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "character.json").write_text("{")
    result = take_turn(state)
    assert result.returncode == 0
    assert json.loads(result.stdout) in state["legal"]
    assert "character.json.corrupt-1" in result.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"hp": 10**9},
        {"hp": True},
        {"hp": "12"},
        {"max_hp": 1},
        {"items": [1]},
        {"id": ""},
        {"id": "x" * 101},
        {"dead": 1},
        {"skills": {"attack": 1.5}},
    ],
    ids=str,
)
def test_a_character_is_checked_field_by_field(
    note: Any, state: dict[str, Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    note(state)
    sheet = read(tmp_path, "character.json")
    sheet["character"].update(change)
    (tmp_path / "character.json").write_text(json.dumps(sheet))
    assert "kept as character.json.corrupt-1" in note(state)[0]
    assert read(tmp_path, "character.json.corrupt-1") == sheet


def test_when_too_many_are_kept_aside_nothing_is_lost(
    take_turn: Any, state: dict[str, Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(1, 100):
        (data / f"character.json.corrupt-{number}").write_text("old")
    (data / "character.json").write_text("the last one")
    result = take_turn(state)
    assert result.returncode == 0
    assert "99 such files" in result.stderr
    assert (data / "character.json").read_text() == "the last one"


@pytest.mark.parametrize("name", ["memory/adventures.jsonl", "campaign/former.json"])
def test_other_corrupt_files_are_kept_aside_too(
    note: Any, state: dict[str, Any], tmp_path: Path, name: str
) -> None:
    note(state)
    (tmp_path / name).write_text('{"schema": 7}\n')
    other = state_of(Rpg.new(3, 10, {}))
    assert f"{name} is corrupt" in note(other, "rpg-10")[0]
    assert (tmp_path / f"{name}.corrupt-1").read_text() == '{"schema": 7}\n'


def test_a_character_of_another_campaign_is_archived_alive(
    note: Any, state: dict[str, Any], tmp_path: Path
) -> None:
    note(state)
    note(state_of(Rpg.new(3, 10, {})), "rpg-10")
    (former,) = read(tmp_path, "campaign/former.json")["sheets"]
    assert (former["status"], former["character"]) == ("alive", state["character"])


def test_everything_stays_within_its_bounds(
    note: Any, journal: Any, state: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(55):
        state["character"]["id"] = f"hero-{number}"
        for room in range(4):
            state["room"] = {"number": room, "of": 12, "kind": "rest" * (room + 1)}
            note(state, f"rpg-{number}")
    lines = memories(tmp_path)
    assert len(lines) == journal.MAX_MEMORY_LINES
    assert lines[-1]["environment"] == "rpg-54"
    assert len(read(tmp_path, "campaign/former.json")["sheets"]) == journal.MAX_FORMER
    assert len(list((tmp_path / "campaign").iterdir())) <= journal.MAX_CAMPAIGNS + 1
    assert (tmp_path / "memory" / "adventures.jsonl").stat().st_size <= journal.MAX_MEMORY_BYTES


def test_the_name_of_an_environment_cannot_lead_out(note: Any, state: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "inside"
    root.mkdir()
    for name in ("../../evil", "/etc/passwd", "a\x00b", "é" * 300, "former"):
        note(state, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "campaign",
        "character.json",
        "inside",
        "memory",
    ]
    assert len(list((tmp_path / "campaign").iterdir())) == 5


def test_a_file_is_replaced_as_a_whole(
    note: Any, journal: Any, state: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(state)
    before = (tmp_path / "character.json").read_bytes()

    def dies(*args: Any) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        state["character"]["hp"] -= 1
        with pytest.raises(OSError, match="killed"):
            note(state)
    assert (tmp_path / "character.json").read_bytes() == before
    assert note(state) == []
    assert read(tmp_path, "character.json")["character"]["hp"] == state["character"]["hp"]
