"""How often the scripted Catan player wins against random play, and how many decisions a scripted game takes.

Run it from the project's root: `python -m benchmarks.catan_strength --games 300`. One JSON object on stdout.
A random player takes any legal action with equal chance and fills forms (discards, offers) at random. The
scripted player sits in every seat equally often. By chance alone a player wins 25 % of games for four.
"""

import argparse
import importlib
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from games import TurnRequest
from games.catan import Catan

IMAGE: Final = Path(__file__).parent.parent / "images" / "catan"
PLAYERS: Final = 4

Choose = Callable[[dict[str, Any], int], dict[str, Any]]


def scripted_player(image: Path = IMAGE) -> Choose:
    """The `choose(state, seed)` of the image's scripted player."""
    sys.path.insert(0, str(image))
    try:
        module = importlib.import_module("catan_player")
    finally:
        sys.path.remove(str(image))
    choose: Choose = module.choose
    return choose


def random_action(request: TurnRequest, rng: random.Random) -> dict[str, Any]:
    """Any legal action, every entry with equal chance."""
    action: dict[str, Any] = rng.choice(request.legal or [])
    if not action.get("open"):
        return action
    held = [name for name, count in request.state["hand"].items() for _ in range(count)]
    if action["type"] == "discard":
        given = rng.sample(held, action["count"])
        return {"type": "discard", "cards": {name: given.count(name) for name in given}}
    give = rng.choice(held)
    get = rng.choice([name for name in request.state["hand"] if name != give])
    return {"type": "offer_trade", "give": {give: 1}, "get": {get: 1}}


def play(seed: int, scripted: set[int], choose: Choose) -> Catan:
    """One game to its end; the seats in `scripted` are played by the script, the others at random."""
    game, rng = Catan.new(PLAYERS, seed, {}), random.Random(f"random players {seed}")
    while (request := game.request()) is not None:
        plays_script = request.player in scripted
        action = choose(request.state, seed) if plays_script else random_action(request, rng)
        game.apply(request.player, action)
    return game


def measure(games: int) -> dict[str, Any]:
    """Win rate of one scripted against three random players, and the length of all-scripted games."""
    choose = scripted_player()
    reasons: dict[str, int] = {}
    wins = 0
    for seed in range(games):
        seat = seed % PLAYERS
        outcome = play(seed, {seat}, choose).outcome()
        assert outcome is not None
        wins += outcome.winner == seat and outcome.reason == "win"
        reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
    lengths = [len(play(seed, set(range(PLAYERS)), choose).log) for seed in range(max(1, games // 10))]
    return {
        "bench": "catan_strength",
        "games": games,
        "wins": wins,
        "win_rate": round(wins / games, 3),
        "endings": reasons,
        "scripted_game_decisions": {
            "median": statistics.median(lengths),
            "max": max(lengths),
            "seed_7": len(play(7, set(range(PLAYERS)), choose).log),
        },
    }


def main() -> None:
    """Parse the number of games, measure, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument(
        "--games", type=int, default=300, help="games of one scripted against three random players"
    )
    sys.stdout.write(json.dumps(measure(parser.parse_args().games)) + "\n")


if __name__ == "__main__":
    main()
