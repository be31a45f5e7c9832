"""`skylease snapshots`: a directory goes, and comes back."""

from pathlib import Path
from typing import Any


def one_line(ran: Any, code: int, says: str) -> None:
    assert (ran.code, ran.out) == (code, "")
    assert len(ran.err.splitlines()) == 1
    assert says in ran.err


def test_a_directory_is_backed_up_and_restored(skylease: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner/file").write_text("precious")
    made = skylease.run("snapshots", "backup", str(tree), "--name", "mine", "--exclude", "absent", "--json")
    assert "absent is not there" in made.err
    (row,) = made.objects
    assert (row["name"], row["directory"], row["files"]) == ("mine", str(tree), 2)
    one_line(skylease.run("snapshots", "restore", row["id"]), 4, "is not empty")
    ran = skylease.run("snapshots", "restore", row["id"], str(tmp_path / "back"), "--json")
    assert ran.objects == [{"success": True, "dir": str(tmp_path / "back"), "id": row["id"]}]
    assert (tmp_path / "back/inner/file").read_text() == "precious"
    assert skylease.run("snapshots", "list", "--json").objects == [row]
    assert skylease.run("snapshots", "forget", row["id"]).code == 0
    one_line(skylease.run("snapshots", "restore", row["id"]), 3, "there is no backup")


def test_what_cannot_be_backed_up(skylease: Any, tmp_path: Path) -> None:
    one_line(skylease.run("snapshots", "backup", str(tmp_path / "absent")), 3, "is not there")
    down = {"SKYLEASE_SNAPSHOTS__URL": "redis://127.0.0.1:1/0"}
    one_line(skylease.run("snapshots", "backup", str(tmp_path), **down), 1, "cannot be used")
