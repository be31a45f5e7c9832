"""An agent's own files as the host reads them: what is true is told, what is hostile does no harm."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.keepsakes import MAX_SHEET_BYTES, read_keepsakes
from games.rpg import Rpg

SECRET = "the host's own"


def sheet(**changes: Any) -> dict[str, Any]:
    character = Rpg.new(3, 9, {}).characters()[0] | changes.pop("character", {})
    told = {"schema": 1, "status": "alive", "environment": "rpg-1", "adventure": 1, "character": character}
    return told | changes


def campaign(**changes: Any) -> dict[str, Any]:
    told = {"schema": 1, "environment": "rpg-1", "adventure": 1, "adventures": 2, "room": [3, 4, "combat"]}
    party = [["mage", 2, False], ["scout", 1, True]]
    return told | {"notice": None, "reason": None, "party": party, "you": 0} | changes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in ("campaign", "memory"):
        (folder / name).mkdir(parents=True)
    (folder / "character.json").write_text(json.dumps(sheet()))
    (folder / "campaign/rpg-1-abc.json").write_text(json.dumps(campaign()))
    (folder / "campaign/former.json").write_text(json.dumps({"schema": 1, "sheets": [sheet()]}))
    (folder / "memory/adventures.jsonl").write_text('{"schema": 1, "text": "a\\u001b[31m door"}\n')
    return folder


def test_what_is_there_is_told(data: Path) -> None:
    kept = read_keepsakes(data)
    assert kept.troubles == []
    assert kept.sheet is not None
    assert kept.sheet.hero == sheet()["character"]
    assert len(kept.former) == 1
    visit = kept.visits["rpg-1"]
    assert (visit.room, visit.klass, visit.level, visit.fallen) == ("3 of 4, combat", "mage", 2, 1)
    assert kept.memories == ["a[31m door"]


def test_what_the_agent_found_corrupt_is_named(data: Path) -> None:
    for number in range(1, 31):
        (data / f"character.json.corrupt-{number}").write_bytes(b"\xff")
    (data / "memory/\x1b[2J.corrupt-1").write_bytes(b"")
    troubles = read_keepsakes(data).troubles
    assert "character.json.corrupt-1: found corrupt, and kept aside" in troubles
    assert troubles[-1] == "11 more files were found corrupt, and kept aside"
    assert all(trouble.isprintable() for trouble in troubles)


def test_an_agent_without_files_is_no_trouble(tmp_path: Path) -> None:
    kept = read_keepsakes(tmp_path)
    assert (kept.sheet, kept.former, kept.visits, kept.memories, kept.troubles) == (None, [], {}, [], [])


def linked(path: Path) -> None:
    path.parent.parent.joinpath("secret").write_text(SECRET)
    path.unlink()
    path.symlink_to("../secret")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def with_bytes(raw: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(raw)

    return write


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a-link": linked,
    "a-pipe": piped,
    "a-folder": as_folder,
    "too-large": with_bytes(b" " * (MAX_SHEET_BYTES * 20)),
    "no-json": with_bytes(b'{"schema": 1, "character": "\xff'),
    "deep": with_bytes(b"[" * 10_000),
    "a-list": with_bytes(b"[1]"),
    "of-no-schema": with_bytes(b'{"schema": 2}'),
    "empty-object": with_bytes(b'{"schema": 1}'),
    "control-codes": with_bytes(json.dumps(sheet(environment="\x1b[2J")).encode()),
    "a-boast": with_bytes(json.dumps(sheet(character={"gold": 10**9})).encode()),
    "a-dead-one-alive": with_bytes(json.dumps(sheet(status="dead")).encode()),
}


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize("name", ["character.json", "campaign/former.json", "campaign/rpg-1-abc.json"])
def test_what_is_not_right_is_reported_and_left_out(data: Path, name: str, how: str) -> None:
    HOSTILE[how](data / name)
    kept = read_keepsakes(data)
    (trouble,) = kept.troubles
    assert trouble.startswith(f"{name}: ")
    assert trouble.isprintable()
    assert SECRET not in repr(kept)
    found = {"character.json": kept.sheet, "campaign/former.json": kept.former}.get(name, kept.visits)
    assert not found
    assert kept.memories == ["a[31m door"]  # the other files are read all the same


@pytest.mark.parametrize(
    "changes",
    [
        {"you": 7},
        {"you": True},
        {"party": [["mage", 99, False]]},
        {"party": [["mage"]]},
        {"party": {}},
        {"room": [1]},
        {"adventure": "1"},
        {"reason": "x" * 500},
        {"environment": None},
    ],
    ids=repr,
)
def test_a_campaign_that_cannot_be_is_left_out(data: Path, changes: dict[str, Any]) -> None:
    (data / "campaign/rpg-1-abc.json").write_text(json.dumps(campaign(**changes)))
    kept = read_keepsakes(data)
    assert kept.visits == {}
    assert len(kept.troubles) == 1


def test_a_folder_that_is_a_link_is_not_followed(data: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (data / "campaign").rename(outside)
    (data / "campaign").symlink_to(outside)
    kept = read_keepsakes(data)
    assert (kept.visits, kept.former) == ({}, [])
    assert len(kept.troubles) == 2
