"""Catan as an environment: requests, forced moves, refusals, endings, the log."""

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from games import IllegalAction, LogInvalid, Outcome, Rules, SettingsInvalid
from games.catan import Catan
from games.catan.cards import Card
from games.catan.table import Phase, Table


def finish(game: Catan, player: Any, seed: int = 0) -> list[dict[str, Any]]:
    """Play to the end; all events."""
    rng, events = random.Random(seed), []
    while (request := game.request()) is not None:
        events += game.apply(request.player, player(request, rng))
    return events


def test_catan_has_the_face_of_an_environment() -> None:
    game: Rules = Catan.new(3, 1, {})
    assert game.turn_number == 1
    assert game.outcome() is None


# -- requests and forced moves ------------------------------------------------------------------------------


def test_asking_again_gives_the_same_request() -> None:
    game = Catan.new(4, 7, {})
    assert game.request() == game.request()


def test_every_request_is_a_choice(any_action: Any) -> None:
    game, rng = Catan.new(4, 5, {"turn_cap": 400}), random.Random(5)
    while (request := game.request()) is not None:
        assert request.legal is not None
        assert len(request.legal) > 1 or request.legal[0]["open"]
        assert request.state["turn"] == game.turn_number
        game.apply(request.player, any_action(request, rng))


def test_every_listed_action_is_accepted(any_action: Any) -> None:
    game, rng = Catan.new(3, 11, {"turn_cap": 60}), random.Random(2)
    while (request := game.request()) is not None:
        for action in request.legal or []:
            if not action.get("open"):
                copy.deepcopy(game).apply(request.player, action)
        game.apply(request.player, any_action(request, rng))


def test_a_player_with_nothing_to_do_is_not_asked(scene: Any) -> None:
    scene.give(1, 4, 0, 0, 0, 0)  # the others can do nothing; player 1 can go to the bank
    scene.chance.rolls = [(1, 1)]
    request = scene.play().request()
    assert (request.player, request.phase) == (1, "main")


# -- refusals -----------------------------------------------------------------------------------------------

GARBAGE: list[Any] = [
    None,
    0,
    "roll",
    [],
    ["roll"],
    {},
    {"type": None},
    {"type": "rob"},
    {"type": ["roll"]},
    {"type": "roll"},
    {"type": "end_turn", "really": True},
    {"type": "build_road"},
    {"type": "build_road", "edge": -1},
    {"type": "build_road", "edge": 72},
    {"type": "build_road", "edge": 10**400},
    {"type": "build_road", "edge": "3"},
    {"type": "build_road", "edge": True},
    {"type": "build_road", "edge": [1, 2]},
    {"type": "build_settlement", "node": 54},
    {"type": "build_city", "node": 0},
    {"type": "buy_card"},
    {"type": "play_knight"},
    {"type": "play_year_of_plenty", "get": {"ore": 2}},
    {"type": "play_monopoly", "resource": "ore"},
    {"type": "play_monopoly", "resource": {"ore": 1}},
    {"type": "move_robber", "hex": 0, "victim": None},
    {"type": "move_robber", "hex": 0, "victim": 9},
    {"type": "discard", "cards": {"ore": 1}},
    {"type": "discard", "open": True, "count": 4},
    {"type": "bank_trade", "give": "ore", "get": "ore"},
    {"type": "bank_trade", "give": "gold", "get": "ore"},
    {"type": "offer_trade", "give": {"wood": 1}, "get": {}},
    {"type": "offer_trade", "open": True},
    {"type": "offer_trade", "give": None, "get": None},
    {"type": "accept_trade"},
    {"type": "settle_trade", "with": 0},
    {"type": "cancel_trade"},
    {1: 2},
]


@pytest.mark.parametrize("action", GARBAGE, ids=repr)
def test_a_bad_action_is_refused_and_nothing_changes(scene: Any, action: Any) -> None:
    scene.give(0, 1, 0, 0, 0, 0)
    scene.give(1, 0, 1, 0, 0, 0)
    game = scene.play()
    before = copy.deepcopy(game.table)
    with pytest.raises(IllegalAction):
        game.apply(0, action)
    assert game.table == before
    assert game.log == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(kind=st.sampled_from(["build_road", "discard", "offer_trade", "bank_trade", "move_robber"]), body=JSON)
def test_any_json_is_refused_or_legal_never_worse(kind: str, body: Any) -> None:
    game = Catan.new(2, 0, {})
    before = copy.deepcopy(game.table)
    action = {"type": kind, **body} if isinstance(body, dict) else body
    with pytest.raises(IllegalAction):
        game.apply(0, action)
    assert game.table == before


@pytest.mark.parametrize("player", [1, 2, 3, -1, 4, "0", None, False])
def test_nobody_acts_out_of_turn(player: Any) -> None:
    game = Catan.new(4, 7, {})
    with pytest.raises(IllegalAction):
        game.apply(player, {"type": "build_settlement", "node": 0})
    with pytest.raises(IllegalAction):
        game.skip(player, "late")
    assert game.log == []


# -- skips --------------------------------------------------------------------------------------------------


def test_a_game_of_nothing_but_skips_ends_in_a_stalemate() -> None:
    game = Catan.new(3, 4, {})
    while (request := game.request()) is not None:
        events = game.skip(request.player, "the script crashed")
        assert events[0] == {"event": "skipped", "player": request.player, "reason": "the script crashed"}
    outcome = game.outcome()
    assert outcome is not None
    assert outcome.reason == "stalemate"
    assert all(len(game.table.nodes_of(player, cities=False)) == 2 for player in range(3))


def test_skips_and_actions_mix_in_every_phase(any_action: Any) -> None:
    for seed in range(3):
        game, rng = Catan.new(4, seed, {"turn_cap": 300}), random.Random(seed)
        while (request := game.request()) is not None:
            if rng.random() < 0.3:
                game.skip(request.player, "timeout")
            else:
                game.apply(request.player, any_action(request, rng))
        assert Catan.replay(4, seed, {"turn_cap": 300}, game.log).log_sha256() == game.log_sha256()


def test_a_skip_reason_is_cut_and_made_encodable() -> None:
    game = Catan.new(2, 0, {})
    game.skip(0, "\ud800" + "x" * 900)
    assert len(game.log[0]["skip"]) == 500
    assert game.log_sha256()


# -- endings ------------------------------------------------------------------------------------------------


def test_ten_points_win_on_ones_own_turn_only(scene: Any) -> None:
    scene.build(1, cities=(0, 2, 20, 50), settlements=(52, 29))
    scene.give(0, 4, 0, 0, 0, 0)
    game = scene.play()
    assert scene.table.points(1) == 10
    assert game.outcome() is None
    events = game.apply(0, {"type": "end_turn"})
    assert game.outcome() == Outcome(reason="win", winner=1, turns=1)
    assert events[-1] == {"event": "finished", "reason": "win", "winner": 1}


def test_a_hidden_victory_point_card_wins(scene: Any) -> None:
    scene.build(0, cities=(0, 2, 20, 50), settlements=(52,))
    scene.give(0, 0, 0, 1, 1, 1)
    scene.table.deck.append(Card.VICTORY_POINT)
    game = scene.play()
    game.apply(0, {"type": "buy_card"})
    assert game.outcome() == Outcome(reason="win", winner=0, turns=1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param({}, "win", id="win"),
        pytest.param({"stalemate_rounds": 1}, "stalemate", id="stalemate"),
        pytest.param({"turn_cap": 40}, "turn_cap", id="turn-cap"),
    ],
)
def test_a_game_ends_once(any_action: Any, settings: dict[str, int], reason: str) -> None:
    game = Catan.new(3, 8, settings)
    events = finish(game, any_action)
    outcome = game.outcome()
    assert outcome is not None
    assert (outcome.reason, outcome.turns) == (reason, len(game.log))
    assert [event["event"] for event in events].count("finished") == 1
    assert game.request() is None
    assert game.turn_number == len(game.log)
    with pytest.raises(IllegalAction):
        game.apply(0, {"type": "end_turn"})
    with pytest.raises(IllegalAction):
        game.skip(0, "late")
    assert game.outcome() == outcome


def test_the_leader_wins_a_stalemate_and_a_tie_has_no_winner(scene: Any) -> None:
    scene.build(2, settlements=(0,))
    scene.chance.rolls = [(1, 1)] * 60
    outcome = scene.play().outcome()
    assert outcome == Outcome(reason="stalemate", winner=2, turns=0)
    assert Catan.new(2, 0, {"turn_cap": 1}).outcome() is None
    game = Catan.new(2, 0, {"turn_cap": 4})
    for _ in range(4):
        game.skip(game.table.decider, "")
    assert game.outcome() == Outcome(reason="turn_cap", winner=None, turns=4)


# -- settings, log, replay ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("players", "settings", "word"),
    [
        (1, {}, "players"),
        (5, {}, "players"),
        (True, {}, "players"),
        (4, {"points": 8}, "points_to_win"),
        (4, {"turn_cap": 0}, "turn_cap"),
        (4, {"turn_cap": 10.5}, "turn_cap"),
        (4, {"turn_cap": "many"}, "turn_cap"),
        (4, {"offers_per_turn": -1}, "offers_per_turn"),
    ],
)
def test_a_setting_that_cannot_be_is_named(players: Any, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingsInvalid, match=word):
        Catan.new(players, 0, settings)


def test_a_game_resumes_from_any_prefix_of_its_log(any_action: Any) -> None:
    game, rng = Catan.new(4, 9, {"turn_cap": 150}), random.Random(1)
    checkpoints: list[tuple[int, Table, Any]] = []
    while (request := game.request()) is not None:
        if game.turn_number % 10 == 1:
            checkpoints.append((len(game.log), copy.deepcopy(game.table), request))
        game.apply(request.player, any_action(request, rng))
    log = json.loads(json.dumps(game.log))
    for length, table, request in checkpoints:
        resumed = Catan.replay(4, 9, {"turn_cap": 150}, log[:length])
        assert resumed.table == table
        assert resumed.request() == request
    assert Catan.replay(4, 9, {"turn_cap": 150}, log).outcome() == game.outcome()


@pytest.mark.parametrize(
    "entry",
    [
        {"turn": 1, "player": 1, "action": {"type": "build_settlement", "node": 0}},
        {"turn": 2, "player": 0, "action": {"type": "build_settlement", "node": 0}},
        {"turn": 1, "player": 0, "action": {"type": "roll"}},
        {"turn": 1, "player": 0},
        {"player": 0, "action": {"type": "build_settlement", "node": 0}},
        "nonsense",
    ],
    ids=repr,
)
def test_a_log_that_does_not_follow_is_refused_by_entry(entry: Any) -> None:
    with pytest.raises(LogInvalid, match="entry 0"):
        Catan.replay(2, 0, {}, [entry])


def test_the_digest_tells_games_apart_and_equal_games_not() -> None:
    def played(seed: int, node: int, settings: dict[str, int]) -> str:
        game = Catan.new(2, seed, settings)
        game.apply(0, {"type": "build_settlement", "node": node})
        return game.log_sha256()

    digests = [played(1, 5, {}), played(1, 6, {}), played(2, 5, {}), played(1, 5, {"turn_cap": 9})]
    assert len(set(digests)) == 4
    assert played(1, 5, {}) == played(1, 5, {"turn_cap": 3_000})  # a default said out loud is the same game


def test_the_log_is_a_copy(any_action: Any) -> None:
    game = Catan.new(2, 0, {})
    game.skip(0, "")
    game.log.clear()
    assert len(game.log) == 1


def test_a_known_game_has_a_known_digest() -> None:
    """Fails when the rules, the chance or the log change: then recorded games no longer replay."""
    game = Catan.new(4, 7, {})
    for _ in range(60):
        game.skip(game.table.decider, "x")
    assert game.log_sha256() == "f6304f59a2ad368df76146716b5a7e369bab5d62527058f1bb6164b6f30a2f87"
    assert game.table.phase is not Phase.OVER
