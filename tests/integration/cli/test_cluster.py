"""On a real cluster of two nodes, made by `ray start` on loopback addresses (config/ray/README.md)."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

RAY = str(Path(sys.executable).with_name("ray"))
QUICK = {"SKYLEASE_GAME__CATAN_TURN_CAP": "40"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


def end_processes_of(folder: str) -> None:
    """`ray stop` would end every Ray process of the machine; ours are those that name our session folder."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = []
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdecimal() and folder.encode() in (process / "cmdline").read_bytes():
                    pids.append(int(process.name))
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    raise AssertionError(f"processes of {folder} would not end: {pids}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a head and a worker, each with a session folder of its own."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {**ours, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([RAY, "get-auth-token", "--generate"], env=env, check=True, capture_output=True)
    address = f"127.0.0.2:{free_port()}"
    folders = [f"/tmp/skl{os.getpid()}-{node}" for node in (2, 3)]  # short: unix sockets live under them
    common = ["--dashboard-agent-listen-port=0", "--disable-usage-stats"]
    try:
        head = [
            "--head",
            "--node-ip-address=127.0.0.2",
            f"--port={address.rpartition(':')[2]}",
            "--num-cpus=2",
        ]
        head += ["--include-dashboard=false", "--min-worker-port=0", "--max-worker-port=0"]
        subprocess.run(
            [RAY, "start", *head, f"--temp-dir={folders[0]}", *common],
            env=env,
            check=True,
            capture_output=True,
        )
        worker = [f"--address={address}", "--node-ip-address=127.0.0.3", "--num-cpus=1"]
        subprocess.run(
            [RAY, "start", *worker, f"--temp-dir={folders[1]}", *common],
            env=env,
            check=True,
            capture_output=True,
        )
        yield address
    finally:
        for folder in folders:
            end_processes_of(folder)
            shutil.rmtree(folder, ignore_errors=True)


def sandbox_directories(root: Path) -> list[Path]:
    return [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]


def test_simulate_attaches_and_uses_both_nodes(skylease, cluster) -> None:  # type: ignore[no-untyped-def]
    ran = skylease.run("simulate", "catan", "--agents", "4", "--json", RAY_ADDRESS=cluster, **QUICK)
    assert ran.code == 0, ran.err
    (report,) = ran.objects
    assert report["leases"] == {"acquired": 4, "ended": 4, "live": 0}
    assert report["sandboxes"]["created"] == 4
    assert report["sandboxes"]["left"] == 0
    leases = skylease.run("leases", "list", "--json").objects
    assert len({lease["node"] for lease in leases}) == 2
    assert sandbox_directories(skylease.root) == []
    assert (
        skylease.run("status", RAY_ADDRESS=cluster).code == 3
    )  # it took everything down that it had started


def test_up_simulate_from_elsewhere_down(skylease, cluster) -> None:  # type: ignore[no-untyped-def]
    up = skylease.run("up", "--json", RAY_ADDRESS=cluster)
    assert up.code == 0, up.err
    assert up.objects[0]["nodes"] == 2
    again = skylease.run("up", "--json", RAY_ADDRESS=cluster)
    assert again.objects[0]["supervisor"] == up.objects[0]["supervisor"]
    played = skylease.run(
        *("simulate", "catan", "--agents", "2", "--json"),
        RAY_ADDRESS=cluster,
        SKYLEASE_DATA_DIR=str(skylease.root / "elsewhere"),
        **QUICK,
    )
    assert played.code == 0, played.err
    assert played.objects[0]["leases"] == {"acquired": 2, "ended": 2, "live": 0}
    status = skylease.run("status", "--json", RAY_ADDRESS=cluster)
    assert status.code == 0, status.err
    assert status.objects[0]["supervisor"]["leases"]["destroyed"] == 2
    assert len(status.objects[0]["hosts"]) == 2
    down = skylease.run("down", "--json", RAY_ADDRESS=cluster)
    assert down.code == 0, down.err
    assert down.objects[0]["left"] == 0
    assert sandbox_directories(skylease.root) == []
    assert skylease.run("down", RAY_ADDRESS=cluster).code == 3


def test_a_named_cluster_that_is_not_there_is_one_line(skylease) -> None:  # type: ignore[no-untyped-def]
    ran = skylease.run("simulate", "catan", RAY_ADDRESS="127.0.0.2:1")
    assert ran.code == 1
    assert "no Ray cluster answers at 127.0.0.2:1" in ran.err
    assert "Traceback" not in ran.err
