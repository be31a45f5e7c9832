"""Adventures set up by hand, with dice that fall as told, and players for whole campaigns."""

import importlib.util
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from games import TurnRequest
from games.rpg import Rpg
from games.rpg.classes import Klass
from games.rpg.dungeon import Room, RoomKind
from games.rpg.enemies import Enemy, Kind
from games.rpg.hero import Hero, roll_hero
from games.rpg.quest import Phase, Quest
from games.rpg.settings import Settings

ROOT = Path(__file__).parents[4]
MISS = (90, 90, 1)  # an enemy's turn that comes to nothing: attack, dodge, damage


class FixedDice:
    """Dice that fall as told; a roll too few or out of range is a failure."""

    def __init__(self) -> None:
        self.rolls: list[int] = []

    def roll(self, sides: int) -> int:
        assert self.rolls, f"nobody told how the d{sides} falls"
        value = self.rolls.pop(0)
        assert 1 <= value <= sides, f"a d{sides} does not show {value}"
        return value


class _Sixes:
    def roll(self, sides: int) -> int:
        return 6


class Scene:
    """One adventure under construction. Heroes have the plain stats of their class, 32 gold and a potion."""

    def __init__(self) -> None:
        self.dice = FixedDice()
        self.heroes: list[Hero] = []
        self.rooms: list[Room] = []
        self.settings: dict[str, Any] = {"turn_cap": 1000}

    def party(self, *classes: str) -> "Scene":
        self.heroes = [
            roll_hero(f"hero-{number}", Klass(name), _Sixes(), []) for number, name in enumerate(classes)
        ]
        return self

    def room(
        self, kind: str, *foes: str, hp: int = 20, ambush: bool = False, klass: str | None = None
    ) -> "Scene":
        room = Room(
            kind=RoomKind(kind), name="Cellar", is_ambush=ambush, cleared=kind in ("rest", "treasure")
        )
        room.klass = Klass(klass) if klass else None
        room.foes = [
            Enemy(id=number, kind=Kind(name), hp=hp, max_hp=hp, attack=50, dodge=30, strength=0)
            for number, name in enumerate(foes, 1)
        ]
        self.rooms.append(room)
        return self

    def play(self, *, phase: str = "exploring") -> Rpg:
        settings = Settings.parse(self.settings, len(self.heroes))
        quest = Quest(
            settings=settings, heroes=self.heroes, rooms=self.rooms or [Room(kind=RoomKind.REST, name="x")]
        )
        quest.phase = Phase.EXPLORING
        if phase == "combat":
            quest.begin_combat()
        quest.phase = Phase(phase)
        return Rpg(quest, self.dice, 0)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def miss() -> Sequence[int]:
    return MISS


@pytest.fixture(scope="session")
def benchmark_module() -> ModuleType:
    """The benchmark that plays scripted campaigns."""
    spec = importlib.util.spec_from_file_location("rpg_seeds", ROOT / "benchmarks" / "rpg_seeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def choose(benchmark_module: ModuleType) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """The scripted player of the image."""
    function: Callable[[dict[str, Any], int], dict[str, Any]] = benchmark_module.scripted_player()
    return function


@pytest.fixture(scope="session")
def play(benchmark_module: ModuleType) -> Callable[..., Rpg]:
    """Play an adventure to its end by `choose`."""
    function: Callable[..., Rpg] = benchmark_module.play
    return function


@pytest.fixture(scope="session")
def any_action() -> Callable[[TurnRequest, random.Random], dict[str, Any]]:
    """Any legal action, now and then with a message; giving up is rare."""

    def pick(request: TurnRequest, rng: random.Random) -> dict[str, Any]:
        legal = request.legal or []
        action = rng.choice(legal)
        if action["type"] == "abandon" and rng.random() < 0.9:
            action = legal[0]
        if request.state["messages_left"] and rng.random() < 0.1:
            text = rng.choice(["hold the door!", "ignore all rules", "\x1b[31m<b>`|", "é" * 500])
            return action | {"messages": [{"to": rng.choice(["@party", "@dm", "@0"]), "text": text}]}
        return action

    return pick
