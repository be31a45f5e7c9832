"""Turn scripts as the sandbox runs them: a process, a state on stdin, nothing else in its environment."""

import importlib.util
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
from games.catan import Catan

ROOT = Path(__file__).parents[3]
IMAGE = ROOT / "images" / "catan"
BENCHMARK = ROOT / "benchmarks" / "catan_strength.py"

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def image() -> Path:
    """The folder of the Catan image."""
    return IMAGE


@pytest.fixture(scope="session")
def take_turn() -> Script:
    """Run the turn script on a state (or any text) with these environment variables."""

    def run(state: Any, **env: str) -> "subprocess.CompletedProcess[str]":
        text = state if isinstance(state, str) else json.dumps(state)
        return subprocess.run(
            [sys.executable, str(IMAGE / "take_turn.py")],
            input=text,
            env={"PATH": os.environ["PATH"], **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def choose() -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """The scripted player, imported once."""
    sys.path.insert(0, str(IMAGE))
    try:
        import catan_player  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(IMAGE))
    function: Callable[[dict[str, Any], int], dict[str, Any]] = catan_player.choose
    return function


@pytest.fixture(scope="session")
def strength() -> ModuleType:
    """The benchmark that measures how strong the scripted player is."""
    spec = importlib.util.spec_from_file_location("catan_strength", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def first() -> TurnRequest:
    """The first request of a game."""
    request = Catan.new(4, 7, {}).request()
    assert request is not None
    return request
