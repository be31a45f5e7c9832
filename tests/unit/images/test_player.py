"""The scripted player: always legal, deterministic, quick to the point, and clearly better than chance."""

import copy
import json
from collections import Counter
from typing import Any

import pytest

from games.catan import Catan


@pytest.mark.parametrize(("players", "seed"), [(4, 7), (3, 2), (2, 3)])
def test_every_action_is_accepted_and_the_game_is_won(choose: Any, players: int, seed: int) -> None:
    game, kinds = Catan.new(players, seed, {}), Counter[str]()
    while (request := game.request()) is not None:
        action = choose(json.loads(json.dumps(request.state)), seed)
        kinds[action["type"]] += 1
        game.apply(request.player, action)
    outcome = game.outcome()
    assert outcome is not None
    assert outcome.reason == "win"
    assert kinds["build_city"]
    assert kinds["offer_trade"] <= game.table.ended_turns + 1  # at most one a turn


def test_seed_7_takes_few_decisions(choose: Any) -> None:
    game = Catan.new(4, 7, {})
    while (request := game.request()) is not None:
        game.apply(request.player, choose(request.state, 0))
    assert len(game.log) <= 600


def test_the_same_state_and_seed_give_the_same_action_and_leave_the_state_alone(choose: Any) -> None:
    game = Catan.new(4, 3, {"turn_cap": 80})
    while (request := game.request()) is not None:
        before = copy.deepcopy(request.state)
        action = choose(request.state, 5)
        assert choose(request.state, 5) == action
        assert request.state == before
        game.apply(request.player, action)


def test_it_beats_three_random_players(strength: Any) -> None:
    measured = strength.measure(6)
    assert measured["wins"] >= 5  # one or two are expected of a player no better than the others
    assert measured["endings"] == {"win": 6}
