"""The RPG image's turn script as the sandbox runs it, and its modules imported once."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from games import TurnRequest
from games.rpg import Rpg

ROOT = Path(__file__).parents[4]
IMAGE = ROOT / "images" / "rpg"

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def image() -> Path:
    """The folder of the RPG image."""
    return IMAGE


@pytest.fixture
def take_turn(tmp_path: Path) -> Script:
    """Run the turn script on a state (or any text), with its files under `tmp_path`/data."""

    def run(state: Any, **env: str) -> "subprocess.CompletedProcess[str]":
        text = state if isinstance(state, str) else json.dumps(state)
        return subprocess.run(
            [sys.executable, str(IMAGE / "take_turn.py")],
            input=text,
            env={"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "data"), **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def journal() -> ModuleType:
    """The module that keeps the agent's files."""
    sys.path.insert(0, str(IMAGE))
    try:
        return importlib.import_module("rpg_journal")
    finally:
        sys.path.remove(str(IMAGE))


@pytest.fixture(scope="session")
def player() -> ModuleType:
    """The scripted player."""
    sys.path.insert(0, str(IMAGE))
    try:
        return importlib.import_module("rpg_player")
    finally:
        sys.path.remove(str(IMAGE))


@pytest.fixture
def first() -> TurnRequest:
    """The first request of an adventure."""
    request = Rpg.new(3, 9, {}).request()
    assert request is not None
    return request
