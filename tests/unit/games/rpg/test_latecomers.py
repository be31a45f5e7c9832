"""Heroes who are not there when the others set out, and catch up."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from games import Gathering, IllegalAction, LogInvalid
from games.rpg import Rpg
from games.rpg.quest import Phase


def late(seed: int, *players: int, of: int = 3) -> Rpg:
    game = Rpg.new(of, seed, {})
    for player in players:
        game.leave_behind(player)
    return game


def test_nobody_asks_hurts_or_pays_a_hero_who_is_not_there(choose: Any) -> None:
    game = late(9, 1)
    assert isinstance(game, Gathering)
    assert game.away == [1]
    born = game.characters()[1]
    while (request := game.request()) is not None:
        assert request.player != 1
        assert [one["away"] for one in request.state["party"]] == [False, True, False]
        assert 1 not in request.state["order"]
        assert not any(entry.get("type") == "mend" and entry["target"] == 1 for entry in request.legal or [])
        game.apply(request.player, choose(request.state, 9))
    assert game.characters()[1] == born
    assert "never came" in game.chronicle(["a", "b", "c"])


def test_a_latecomer_acts_from_the_next_round_on(choose: Any) -> None:
    game, asked = late(7, 2), set()
    while game.quest.phase is not Phase.COMBAT:
        request = game.request()
        assert request is not None
        game.apply(request.player, choose(request.state, 7))
    before = game.request()
    game.arrive(2)
    after = game.request()
    assert before is not None
    assert after is not None
    assert (after.player, game.turn_number) == (before.player, before.state["turn"])  # nobody's turn is taken
    arrived_in = game.quest.round
    while (request := game.request()) is not None and 2 not in asked:
        asked.add(request.player)
        game.apply(request.player, choose(request.state, 7))
    assert 2 in asked
    assert game.quest.round > arrived_in
    assert "**c catches up with the party**" in game.chronicle(["a", "b", "c"])


@pytest.mark.parametrize("seed", range(6))
def test_who_came_when_is_in_the_log_and_replays(seed: int, any_action: Callable[..., Any]) -> None:
    game, rng = late(seed, *range(1, 4), of=4), random.Random(seed)
    while (request := game.request()) is not None:
        if game.away and rng.random() < 0.1:
            game.arrive(rng.choice(game.away))
        request = game.request()
        assert request is not None
        game.apply(request.player, any_action(request, rng))
    log = json.loads(json.dumps(game.log))
    again = Rpg.replay(4, seed, {}, log)
    assert (again.log_sha256(), again.story, again.away) == (game.log_sha256(), game.story, game.away)
    punctual = Rpg.new(4, seed, {})
    assert punctual.log_sha256() != late(seed, 1, of=4).log_sha256()


def test_who_can_be_left_behind_and_who_can_arrive() -> None:
    game = Rpg.new(2, 1, {})
    with pytest.raises(IllegalAction, match="is here"):
        game.arrive(0)
    game.leave_behind(0)
    with pytest.raises(IllegalAction, match="somebody has to set out"):
        game.leave_behind(1)
    with pytest.raises(IllegalAction, match="not here"):
        game.leave_behind(0)
    with pytest.raises(IllegalAction, match="not here"):
        game.apply(0, {"type": "depart"})
    game.skip(1, "asleep")
    with pytest.raises(IllegalAction, match="has begun"):
        game.leave_behind(1)
    game.arrive(0)
    assert game.away == []
    while game.outcome() is None:
        game.skip(game.quest.decider, "asleep")
    with pytest.raises(IllegalAction, match="over"):
        game.arrive(0)


@pytest.mark.parametrize(
    "entry",
    [
        {"turn": 1, "player": 0, "presence": "here"},
        {"turn": 2, "player": 0, "presence": "away"},
        {"turn": 1, "player": 7, "presence": "away"},
        {"turn": 1, "presence": "away"},
        {"turn": 1, "player": [], "presence": "away"},
    ],
    ids=repr,
)
def test_a_presence_that_does_not_follow_is_refused(entry: Any) -> None:
    with pytest.raises(LogInvalid, match="entry 0"):
        Rpg.replay(2, 0, {}, [entry])
