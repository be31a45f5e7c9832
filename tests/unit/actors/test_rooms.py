"""The rooms stay apart: imports run one way, Ray is met in one place, what is shipped is told."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup

from actors.cli.commands import COMMANDS, load

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("firehose", "leases", "sandboxes", "games")


def imported(file: Path) -> set[str]:
    """The top-level packages that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_neither_ray_nor_another_room(room: str) -> None:
    forbidden = {"ray", "actors", *ROOMS} - {room}
    broken = {str(file): imported(file) & forbidden for file in (ROOT / room).rglob("*.py")}
    assert {file: names for file, names in broken.items() if names} == {}


@pytest.mark.parametrize("module", ["actors.agent", "actors.seat"])
def test_an_agent_loads_nothing_heavy(module: str) -> None:
    heavy = ("ray", "sqlite3", "sqlite_utils", "docker", "starlette", "uvicorn", "pydantic", "rich", "typer")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_no_file_is_longer_than_can_be_read_in_one_sitting() -> None:
    files = [file for room in (*ROOMS, "actors", "images") for file in (ROOT / room).rglob("*.py")]
    lines = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count > 500} == {}


def commands() -> list[str]:
    """Every command of `skylease`, as typed."""
    found = []
    for name in COMMANDS:
        command = load(name)
        inner = command.commands if isinstance(command, TyperGroup) else {"": None}
        found += [f"{name} {part}".strip() for part in inner]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_in_the_help_is_its_own(name: str) -> None:
    assert COMMANDS[name].help == (load(name).help or "").partition("\n")[0]


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("--help", ("asyncio", "ray", "pydantic", "sqlite3", "sandboxes", "leases")),
        ("config show", ("asyncio", "ray", "sqlite3", "leases", "sandboxes.sandbox")),
        ("leases list", ("asyncio", "ray", "sandboxes.sandbox", "actors.host")),
    ],
)
def test_a_command_loads_only_what_it_needs(words: str, unused: tuple[str, ...], tmp_path: Path) -> None:
    code = f"""
import sys
from actors.cli import main
sys.argv[1:] = ["--data-dir", {str(tmp_path)!r}, *{words.split()!r}]
try:
    main()
finally:
    print("loaded", [name for name in {unused!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "loaded []", done.stderr


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = set(re.findall(r"[a-z]+", " ".join(re.findall(r"`([^`]*)`", readme))))
    assert [name for name in commands() if not set(name.split()) <= told] == []


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in (
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("config/*/*.md"),
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), (document, target)


def test_what_is_shipped_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = [
        pattern for group in project["tool"]["setuptools"]["data-files"].values() for pattern in group
    ]
    packed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    files = [*(ROOT / "config/lexicons").glob("*.json"), *(ROOT / "images").glob("*/**/*")]
    shipped = {file for file in files if file.is_file() and file.suffix != ".pyc"}
    assert shipped - packed == set()
