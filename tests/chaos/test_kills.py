"""SIGKILL any one process in mid-game: the same game, no action twice, no turn lost, nothing left behind.

All games are played on one system, one after the other: what a kill has done to it, the next game meets. A
game waits at the turns in which something is killed, since the turn's script does, until the signal is sent.
"""

import asyncio
import importlib.util
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from actors import records
from actors.faces import Report
from actors.remote import RemoteActor
from actors.resources import shipped
from actors.settings import load_settings
from actors.simulate import Moment, Order, Simulation
from actors.system import System, running_system
from firehose import CommitEvent, parse_frame
from firehose.trace import read_trace
from leases import LedgerReader

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

TURNS = 60
CATAN = Order(environment_type="catan", agents=3, seed=7)
RPG = Order(environment_type="rpg", agents=3, seed=1, adventures=1)  # fights at turns 10-22 and 32-57
REFERENCE: dict[str, str] = {}  # what an undisturbed game of this seed comes to
HOLD = """\
import io, json, os, sys, time
asked = sys.stdin.read()
while os.path.exists(f"/image/hold-{json.loads(asked).get('turn')}"):
    time.sleep(0.005)
sys.stdin = io.StringIO(asked)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images, with turn scripts that wait as long as their folder has a file hold-TURN."""
    folder = tmp_path_factory.mktemp("chaos") / "images"
    shutil.copytree(shipped("images"), folder)
    for script in folder.glob("*/take_turn.py"):
        script.write_text(HOLD + script.read_text())
    for path in (folder, *folder.rglob("*")):  # else sandboxes get a copy, in which nothing appears or goes
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory, images: Path) -> AsyncIterator[System]:
    """Network, tap, supervisor and host on a Ray of this process."""
    root = tmp_path_factory.mktemp("chaos") / "data"
    flags = {"data_dir": str(root), "game.catan_turn_cap": TURNS, "ray.start_timeout_s": 200}
    settings = load_settings(flags=flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.system.shipped", lambda name: images if name == "images" else shipped(name))
        async with running_system(settings, actors=4) as running:
            yield replace(running, owned=False)  # it outlives each of the games


@pytest.fixture(autouse=True)
def _released(images: Path) -> Iterator[None]:
    """No turn that one test has held holds the next."""
    yield
    for held in images.glob("*/hold-*"):
        held.unlink()


async def play(system: System, watch: Callable[[Moment], None], order: Order = CATAN) -> Report:
    simulation = Simulation(system, order, watch)
    try:
        return await simulation.play()
    finally:
        await simulation.clear()


class Killer:
    """Kills an actor's process at each of these turns, at which the game waits for it."""

    def __init__(self, image: Path, victims: dict[int, Callable[[Moment], str]]) -> None:
        self._image, self._victims = image, victims
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.killed: list[str] = []
        self.boards: list[str] = []
        for turn in victims:
            self._held(turn).touch(0o644)

    def _held(self, turn: int) -> Path:
        return self._image / f"hold-{turn}"

    def watch(self, moment: Moment) -> None:
        turn = (moment.environment or {}).get("turn", 0)
        if turn in self._victims and turn not in self._tasks:
            self.boards.append(moment.board)
            killing = self._kill(turn, self._victims[turn](moment))
            self._tasks[turn] = asyncio.get_running_loop().create_task(killing)

    async def _kill(self, turn: int, name: str) -> None:
        pid = (await RemoteActor(name).call("ping"))["pid"]
        self._held(turn).unlink()  # so the signal meets the turn's end, or what comes right after it
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


async def reference(system: System) -> str:
    if not REFERENCE:
        REFERENCE["sha256"] = (await play(system, lambda moment: None))["game_log_sha256"]
    return REFERENCE["sha256"]


def check_records(root: Path, report: Report) -> None:
    """By the tap's window: every turn was asked, each has one action, and nobody wrote one twice."""
    (environment_id,) = [game["environment"] for game in report["games"]]
    of_this_game = f"{environment_id}."
    actions: Counter[str] = Counter()
    turns: set[str] = set()
    for recorded in read_trace(root / "tap/window"):
        event = parse_frame(recorded.frame)
        for op in event.ops if isinstance(event, CommitEvent) else ():
            collection, _, key = op.path.partition("/")
            if not key.startswith(of_this_game):
                continue
            if collection == records.GAME_ACTION:
                actions[key] += 1
            elif collection == records.GAME_TURN:
                turns.add(key)
    expected = {
        records.turn_key(environment_id, number) for number in range(1, report["games"][0]["turns"] + 1)
    }
    assert turns == expected
    assert actions == dict.fromkeys(expected, 1)


def groups(root: Path) -> list[Path]:
    """Every control group of a sandbox that these games had; other runs may have theirs."""
    with LedgerReader(root / "ledger.db") as ledger:
        names = {lease.sandbox_id for lease in ledger.list()}
    assert len(names) >= 3
    walked = os.walk("/sys/fs/cgroup")  # which does not mind groups of others that go meanwhile
    ours = [(base, folders) for base, folders, _ in walked if Path(base).name.startswith("skylease-")]
    return [Path(base) / name for base, folders in ours for name in folders if name in names]


def check_nothing_left(root: Path) -> None:
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
    assert groups(root) == []
    left = [path for path in root.glob("nodes/*/sandboxes/*") if not path.name.startswith(".")]
    assert left == []


def check(system: System, report: Report) -> None:
    """Whatever was killed: every lease ended once, every action was posted once, nothing is left."""
    assert report["leases"] == {"acquired": 3, "ended": 3, "live": 0}
    assert report["sandboxes"]["left"] == 0
    assert report["turns"] == {"taken": report["games"][0]["turns"], "skipped": 0}
    check_records(system.data_path, report)
    check_nothing_left(system.data_path)


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_kill_in_mid_game_changes_nothing(system: System, images: Path, victim: str) -> None:
    expected = await reference(system)
    killer = Killer(images / "catan", {20: VICTIMS[victim]})
    report = await play(system, killer.watch)
    assert len(killer.killed) == 1
    assert report["game_log_sha256"] == expected
    assert report["games"][0]["turns"] == TURNS
    check(system, report)


async def test_one_kill_after_the_other(system: System, images: Path) -> None:
    expected = await reference(system)
    victims = {8 * (index + 1): victim for index, victim in enumerate(VICTIMS.values())}
    killer = Killer(images / "catan", victims)
    report = await play(system, killer.watch)
    assert len(killer.killed) == len(VICTIMS)
    assert report["game_log_sha256"] == expected
    check(system, report)


async def test_kills_in_mid_fight_change_neither_the_outcome_nor_the_story(
    system: System, images: Path, tmp_path: Path
) -> None:
    story = tmp_path / "chronicle.md"
    killer = Killer(images / "rpg", {14: the_environment, 40: an_agent})
    report = await play(system, killer.watch, replace(RPG, chronicle=story))
    assert [name.partition(":")[0] for name in killer.killed] == ["environment", "agent"]
    assert ["fighting" in board for board in killer.boards] == [True, True]
    alone = played_alone(seed=RPG.seed)
    assert report["game_log_sha256"] == alone.log_sha256()
    assert story.read_text() == alone.chronicle(["alice", "bob", "carol"])
    assert len(report["games"][0]["deaths"]) == 1
    check(system, report)


def played_alone(seed: int) -> Any:
    """The same adventure by the rules and the scripted players alone."""
    file = Path(__file__).parents[2] / "benchmarks" / "rpg_seeds.py"
    spec = importlib.util.spec_from_file_location("rpg_seeds", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (game,) = module.play_campaign(
        module.Campaign(players=3, seed=seed, adventures=1), module.scripted_player()
    )[1]
    return game
