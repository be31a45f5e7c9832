"""`skylease leases costs`: what agents used, by tier, with prices from the settings."""

import json
import subprocess
import sys
from pathlib import Path

from leases import Ledger

COMMAND = "from actors.cli import main; main()"


def run(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", COMMAND, "--data-dir", str(root), "leases", "costs", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_costs_are_told_as_a_chart_and_as_json(tmp_path: Path) -> None:
    now = 1_790_000_000_000  # in September 2026
    clock = [now]
    (tmp_path / "config.toml").write_text("[budget]\nusd_per_hour = {docker = 2.0}\n")
    with Ledger(tmp_path / "ledger.db", clock=lambda: clock[0]) as ledger:
        for name, tier, hours in (("alice", "process", 2), ("bob", "docker", 3)):
            clock[0] = now
            lease = ledger.acquire(
                f"did:plc:{name}", "e", "catan", authority_did="did:plc:m", tier=tier
            ).lease
            clock[0] = now + hours * 3_600_000
            ledger.expire(lease.id, "operator")
    argv = [
        sys.executable,
        "-c",
        COMMAND,
        "--config",
        str(tmp_path / "config.toml"),
        "--data-dir",
        str(tmp_path),
    ]
    told = subprocess.run(
        [*argv, "leases", "costs", "--month", "2026-09", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    bob, alice = map(json.loads, told.stdout.splitlines())
    assert (bob["agent"], bob["awake_ms"], bob["cost_usd"]) == ("did:plc:bob", 10_800_000, 6.0)
    assert (alice["tier"], alice["cost_usd"]) == ("process", 0.054)
    shown = run(tmp_path, "--month", "2026-09").stdout
    assert "█" in shown
    assert "3h00m" in shown
    wrong = run(tmp_path, "--month", "soon")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "YYYY-MM" in wrong.stderr
