"""How adventures of scripted players end, how many decisions they take, and seeds that show each ending.

Run it from the project's root: `python -m benchmarks.rpg_seeds --seeds 100 --players 3`. One JSON object on
stdout. Every seed is a whole campaign; `--settings` are the settings of its adventures as JSON.
"""

import argparse
import importlib
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from games import deaths_in
from games.rpg import Campaign, Rpg

IMAGE: Final = Path(__file__).parent.parent / "images" / "rpg"
SHOWN: Final = 8  # seeds named for each ending

Choose = Callable[[dict[str, Any], int], dict[str, Any]]


def scripted_player(image: Path = IMAGE) -> Choose:
    """The `choose(state, seed)` of the image's scripted player."""
    sys.path.insert(0, str(image))
    try:
        module = importlib.import_module("rpg_player")
    finally:
        sys.path.remove(str(image))
    choose: Choose = module.choose
    return choose


def play(game: Rpg, choose: Choose, player_seed: int) -> Rpg:
    """One adventure to its end, all players by the script."""
    while (request := game.request()) is not None:
        game.apply(request.player, choose(request.state, player_seed))
    return game


def play_campaign(campaign: Campaign, choose: Choose) -> tuple[Campaign, list[Rpg]]:
    """A whole campaign; the players' seed is the campaign's."""
    games = []
    while campaign.reason is None:
        games.append(play(campaign.next_game(), choose, campaign.seed))
        campaign = campaign.after(games[-1])
    return campaign, games


def measure(seeds: range, players: int, adventures: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Endings, lengths and seeds. An adventure's key is its ending and how many died in it."""
    choose = scripted_player()
    endings, lengths, totals = Counter[str](), [], []
    shown: dict[str, list[int]] = {}
    for seed in seeds:
        start = Campaign(players=players, seed=seed, adventures=adventures, settings=settings)
        end, games = play_campaign(start, choose)
        for game in games:
            outcome = game.outcome()
            assert outcome is not None
            endings[f"{outcome.reason}, {len(deaths_in(game))} dead"] += 1
            lengths.append(outcome.turns)
        totals.append(sum(len(game.log) for game in games))
        key = f"{end.reason} after {end.done}, {'+'.join(str(len(deaths_in(game))) for game in games)} dead"
        shown.setdefault(key, []).append(seed)
    return {
        "bench": "rpg_seeds",
        "players": players,
        "adventures": adventures,
        "endings": dict(endings.most_common()),
        "decisions_per_adventure": {"median": statistics.median(lengths), "max": max(lengths)},
        "decisions_per_campaign": {"median": statistics.median(totals), "max": max(totals)},
        "campaigns": {key: {"n": len(found), "seeds": found[:SHOWN]} for key, found in sorted(shown.items())},
    }


def main() -> None:
    """Parse what to play, measure, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100, help="campaigns to play, seeds from 0")
    parser.add_argument("--players", type=int, default=3)
    parser.add_argument("--adventures", type=int, default=1)
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="settings of every adventure, as JSON"
    )
    asked = parser.parse_args()
    result = measure(range(asked.seeds), asked.players, asked.adventures, asked.settings)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
