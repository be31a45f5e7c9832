"""The room offers what it says, and loads only what is used."""

import ast
import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import firehose

ROOM = Path(firehose.__file__).parent


def test_every_name_is_there() -> None:
    assert sorted(firehose.__all__) == firehose.__all__ == sorted(firehose._HOME_OF)
    for name in firehose.__all__:
        assert getattr(firehose, name) is getattr(import_module(f"firehose.{firehose._HOME_OF[name]}"), name)
    with pytest.raises(AttributeError):
        firehose.no_such_name  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOM / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = {
        alias.name: statement.module
        for statement in guarded.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert imports == {name: f"firehose.{home}" for name, home in firehose._HOME_OF.items()}


def test_reading_frames_loads_neither_keys_nor_servers() -> None:
    code = (
        "import sys; from firehose import parse_frame, read_car, Lexicons, drisl; "
        "heavy = ['cryptography', 'coincurve', 'sqlite_utils', 'starlette', 'aiohttp', 'websockets', 'ray', "
        "'zstandard', 'docker']; "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]", done.stdout


def test_the_room_keeps_to_itself() -> None:
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                assert module.split(".")[0] not in {"ray", "actors", "leases", "sandboxes", "games"}, path


@pytest.mark.parametrize("module", ["cid", "tid", "mst", "lexicon"])
def test_the_examples_in_docstrings_run(module: str) -> None:
    outcome = doctest.testmod(import_module(f"firehose.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
