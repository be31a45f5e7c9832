"""The public names, and what importing them costs."""

import ast
import subprocess
import sys
from pathlib import Path

import leases

ROOM = Path(leases.__file__).parent


def test_every_public_name_is_there() -> None:
    assert leases.__all__ == sorted(
        leases.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    for name in leases.__all__:
        assert getattr(leases, name) is not None
    assert not hasattr(leases, "no_such_name")


def test_errors_and_data_cost_neither_sqlite_nor_ray() -> None:
    code = (
        "import sys, leases; leases.LeaseError; leases.Lease;"
        "print([m for m in ('ray', 'sqlite_utils', 'sqlite3') if m in sys.modules]);"
        "leases.Ledger; print('ray' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOM.parent
    )
    assert ran.stdout.split("\n")[:2] == ["[]", "False"]


def test_the_room_imports_no_other_room() -> None:
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            rooms = {name.split(".")[0] for name in names}
            assert not rooms & {"ray", "actors", "firehose", "games", "sandboxes"}, file.name
