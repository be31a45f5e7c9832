"""Running the real command as a user does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [str(Path(sys.executable).with_name("skylease"))]
STARTS_RAY = ("simulate", "up")


@dataclass
class Ran:
    """What a finished command left."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Skylease:
    """The command over one data directory; whatever it started is ended with the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "SKYLEASE_DATA_DIR": str(root)}
        self.ray = {"SKYLEASE_RAY__START_TIMEOUT_S": "200"}  # where Ray is started, on a busy machine
        self._running: list[subprocess.Popen[str]] = []

    def run(self, *words: str, timeout: float = 280.0, **env: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *words],
            env=self.env | (self.ray if words[0] in STARTS_RAY else {}) | env,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        started = subprocess.Popen(
            [*COMMAND, *words],
            env=self.env | (self.ray if words[0] in STARTS_RAY else {}) | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._running.append(started)
        return started

    def end_all(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def skylease(tmp_path: Path) -> Iterator[Skylease]:
    command = Skylease(tmp_path / "data")
    yield command
    command.end_all()


@pytest.fixture(scope="module")
def skylease_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skylease]:
    """The command over a system that `skylease up` has started, Ray and warm slots included: one for a whole
    module.
    """
    command = Skylease(tmp_path_factory.mktemp("up") / "data")
    started = command.run(
        *("up", "--json"),
        timeout=280,
        SKYLEASE_SANDBOX__WARM_SLOTS="1",
    )
    try:
        assert started.code == 0, started.err
        yield command
    finally:
        ended = command.run("down", "--json")
        command.end_all()
    assert ended.code == 0, ended.err
    assert ended.objects[0]["left"] == 0
    assert list(command.root.glob("nodes/*/sandboxes/.slots/*")) == []
