"""SIGKILL any one process in mid-game: the same game, no action twice, no turn lost, nothing left behind."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from actors import records
from actors.faces import Report
from actors.remote import RemoteActor
from actors.settings import Settings, load_settings
from actors.simulate import Moment, Order, simulate
from firehose import CommitEvent, parse_frame
from firehose.trace import read_trace

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

TURNS = 60
REFERENCE: dict[str, str] = {}  # what an undisturbed game of this seed comes to


def settings(root: Path) -> Settings:
    return load_settings(flags={"data_dir": str(root), "game.catan_turn_cap": TURNS})


async def play(root: Path, watch: Callable[[Moment], None]) -> Report:
    return await simulate(settings(root), Order(environment_type="catan", agents=3, seed=7), watch)


class Killer:
    """Kills an actor's process once the game has come to a turn."""

    def __init__(self, victims: dict[int, Callable[[Moment], str]]) -> None:
        self._victims = victims
        self._tasks: set[asyncio.Task[None]] = set()
        self.killed: list[str] = []

    def watch(self, moment: Moment) -> None:
        turn = (moment.environment or {}).get("turn", 0)
        for due in [number for number in self._victims if turn >= number]:
            task = asyncio.get_running_loop().create_task(self._kill(self._victims.pop(due)(moment)))
            self._tasks.add(task)

    async def _kill(self, name: str) -> None:
        pid = (await RemoteActor(name).call("ping"))["pid"]
        os.kill(pid, signal.SIGKILL)
        self.killed.append(name)


def an_agent(moment: Moment) -> str:
    assert moment.supervisor is not None
    return f"agent:{moment.supervisor['live'][0]['agent']}"


def the_environment(moment: Moment) -> str:
    assert moment.environment is not None
    return f"environment:{moment.environment['environment']}"


def the_host(moment: Moment) -> str:
    assert moment.supervisor is not None
    return f"host:{moment.supervisor['live'][0]['node']}"


VICTIMS: dict[str, Callable[[Moment], str]] = {
    "agent": an_agent,
    "environment": the_environment,
    "host": the_host,
    "tap": lambda moment: "tap",
    "supervisor": lambda moment: "supervisor",
    "network": lambda moment: "network",
}


async def reference(root: Path) -> str:
    if not REFERENCE:
        REFERENCE["sha256"] = (await play(root / "reference", lambda moment: None))["game_log_sha256"]
    return REFERENCE["sha256"]


def check_records(root: Path, report: Report) -> None:
    """By the tap's window: every turn was asked, each has one action, and nobody wrote one twice."""
    environment_id = report["games"][0]["environment"]
    actions: Counter[str] = Counter()
    turns: set[str] = set()
    for recorded in read_trace(root / "tap/window.fht"):
        event = parse_frame(recorded.frame)
        for op in event.ops if isinstance(event, CommitEvent) else ():
            collection, _, key = op.path.partition("/")
            if collection == records.GAME_ACTION:
                actions[key] += 1
            elif collection == records.GAME_TURN:
                turns.add(key)
    expected = {
        records.turn_key(environment_id, number) for number in range(1, report["games"][0]["turns"] + 1)
    }
    assert turns == expected
    assert actions == dict.fromkeys(expected, 1)


def groups() -> list[Path]:
    """Every control group of a sandbox on this machine."""
    return [path for path in Path("/sys/fs/cgroup").glob("**/skylease-*/*") if path.is_dir()]


def check_nothing_left(root: Path, groups_before: set[Path]) -> None:
    """From the outside: no process, no mount, no control group and no directory of a sandbox."""
    marker = str(root).encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                cmdline = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            assert marker not in cmdline, cmdline
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    assert set(groups()) <= groups_before
    left = [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]
    assert left == []


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_kill_in_mid_game_changes_nothing(tmp_path: Path, victim: str) -> None:
    root = tmp_path / "data"
    before = set(groups())
    expected = await reference(tmp_path)
    killer = Killer({20: VICTIMS[victim]})
    report = await play(root, killer.watch)
    assert len(killer.killed) == 1
    assert report["game_log_sha256"] == expected
    assert report["turns"] == {"taken": TURNS, "skipped": 0}
    assert report["leases"] == {"acquired": 3, "ended": 3, "live": 0}
    assert report["sandboxes"]["left"] == 0
    check_records(root, report)
    check_nothing_left(root, before)


async def test_one_kill_after_the_other(tmp_path: Path) -> None:
    root = tmp_path / "data"
    before = set(groups())
    expected = await reference(tmp_path)
    killer = Killer({8 * (index + 1): victim for index, victim in enumerate(VICTIMS.values())})
    report = await play(root, killer.watch)
    assert len(killer.killed) == len(VICTIMS)
    assert report["game_log_sha256"] == expected
    assert report["leases"]["live"] == 0
    check_records(root, report)
    check_nothing_left(root, before)
