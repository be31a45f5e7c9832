"""`skylease leases budget`, `costs`, `list` and `show` over a ledger that nobody else has open."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.cli.main import main
from leases import Ledger, Why

HOUR = 3_600_000
ALICE, BOB = "did:plc:alice", "did:plc:bob"


@dataclass(frozen=True, slots=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


def run(root: Path, *words: str) -> Done:
    """The command in a child that has everything imported already."""
    out, err = root / "stdout", root / "stderr"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number, file in ((1, out), (2, err)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
            sys.argv = ["skylease", "--data-dir", str(root), "leases", *words]
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Done(returncode, out.read_text(), err.read_text())


def rows(root: Path, *words: str) -> list[dict[str, Any]]:
    done = run(root, *words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def played(root: Path) -> None:
    """Alice was awake for 9 minutes, then asleep for one; Bob's lease came after hers."""
    clock = [time.time_ns() // 1_000_000 - 600_000]
    with Ledger(root / "ledger.db", clock=lambda: clock[0]) as ledger:
        ledger.set_budget(ALICE, 0.16)
        lease = ledger.acquire(ALICE, "g", "catan", authority_did="did:plc:gm").lease
        clock[0] += 540_000
        ledger.sweep_budgets()
        ledger.sleep(lease.id, 1, why=Why.BUDGET)
        clock[0] += 60_000
        ledger.wake(lease.id, 1, why=Why.USED)
        ledger.expire(lease.id, "operator")
        ledger.acquire(BOB, "g", "catan", authority_did="did:plc:gm")


def test_budgets_are_shown_and_set(tmp_path: Path) -> None:
    played(tmp_path)
    everybody, alice, bob = rows(tmp_path, "budget")
    assert (everybody["agent"], everybody["budget_hours"]) == ("default", None)
    assert (alice["budget_hours"], alice["used_ms"], alice["share"]) == (0.16, 540_000, "94%")
    assert alice["warned_at"] is not None
    assert bob["is_own"] is False
    assert [row["budget_hours"] for row in rows(tmp_path, "budget", BOB, "2.5")] == [2.5]
    assert [row["budget_hours"] for row in rows(tmp_path, "budget", "default", "7")] == [7]
    assert [row["budget_hours"] for row in rows(tmp_path, "budget", BOB, "none")] == [None]
    assert [row["budget_hours"] for row in rows(tmp_path, "budget", BOB, "default")] == [7]
    wrong = run(tmp_path, "budget", BOB, "lots")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert run(tmp_path, "budget", "nobody.test").returncode == 3


def test_costs_say_how_much_of_a_budget_is_used_and_a_story_says_why(tmp_path: Path) -> None:
    played(tmp_path)
    shown = run(tmp_path, "costs").stdout
    assert "94%" in shown
    story = run(tmp_path, "show", f"{ALICE}::g").stdout
    assert "0.15 of 0.16 awake hours used" in story
    assert "used after 1m00s asleep" in story
    assert [event["why"] for event in rows(tmp_path, "show", f"{ALICE}::g")[0]["history"]][2] == "budget"


def test_leases_are_listed_by_the_page(tmp_path: Path) -> None:
    played(tmp_path)
    first = run(tmp_path, "list", "--limit", "1", "--json")
    assert json.loads(first.stdout)["agent"] == ALICE
    assert f"--after {ALICE}::g" in first.stderr
    assert [row["agent"] for row in rows(tmp_path, "list", "--after", f"{ALICE}::g")] == [BOB]
    assert run(tmp_path, "list", "--after", "nothing").returncode == 3


def test_a_ledger_in_use_by_another_process_is_not_written(tmp_path: Path) -> None:
    played(tmp_path)
    with Ledger(tmp_path / "ledger.db"):
        refused = run(tmp_path, "budget", BOB, "3")
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert "is in use by process" in refused.stderr
