"""A game that is stopped in its midst, and a second one beside it."""

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray]


def sandbox_directories(root: Path) -> list[Path]:
    return [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]


def processes_of(root: Path) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                cmdline = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(root) in cmdline:
                found.append(cmdline)
    return found


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_game_is_cleared_away_within_ten_seconds(skylease, sent) -> None:  # type: ignore[no-untyped-def]
    running = skylease.start("simulate", "catan", "--agents", "3", "--seed", "7")
    assert running.stderr is not None
    while "playing" not in running.stderr.readline():
        assert running.poll() is None
    deadline = time.monotonic() + 60
    while len(sandbox_directories(skylease.root)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = time.monotonic()
    if sent is signal.SIGINT:
        os.killpg(running.pid, sent)  # as a terminal does: the whole foreground group gets it
    else:
        os.kill(running.pid, sent)
    out, err = running.communicate(timeout=30)
    assert time.monotonic() - started < 10
    assert running.returncode == 130
    assert "3 leases ended, 0 sandboxes left" in err
    assert out == ""
    assert sandbox_directories(skylease.root) == []
    assert processes_of(skylease.root) == []
    statuses = {lease["status"] for lease in skylease.run("leases", "list", "--json").objects}
    assert statuses == {"destroyed"}


def test_one_data_directory_is_for_one_system_at_a_time(skylease) -> None:  # type: ignore[no-untyped-def]
    running = skylease.start("simulate", "catan", "--agents", "4", "--seed", "7")
    assert running.stderr is not None
    while "playing" not in running.stderr.readline():
        assert running.poll() is None
    second = skylease.run("simulate", "catan", "--agents", "2")
    assert second.code == 4
    assert f"in use by process {running.pid}" in second.err
    assert len(second.err.strip().splitlines()[-1:]) == 1
    os.kill(running.pid, signal.SIGTERM)
    running.communicate(timeout=30)
