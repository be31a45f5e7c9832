"""What holds in every game: conservation, points, secrets, size, replay."""

import copy
import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from games.catan import MAX_STATE_BYTES, Catan
from games.catan.cards import CARDS, EMPTY, RESOURCES, Card, add, hand_of
from games.catan.roads import road_length
from games.catan.table import Table
from games.catan.topology import EDGES, NODE_EDGES, NODE_NEIGHBOURS
from games.catan.view import player_state

GAMES = settings(max_examples=10, deadline=None)
SEEDS = st.integers(min_value=0, max_value=10**9)


def points_from_events(events: list[dict[str, Any]], players: int) -> list[int]:
    """Public points, counted from nothing but what was announced."""
    points = [0] * players
    road: int | None = None
    army: int | None = None
    for event in events:
        if event["event"] == "built" and event["what"] in ("settlement", "city"):
            points[event["player"]] += 1
        elif event["event"] == "longest_road":
            road = event["player"]
        elif event["event"] == "largest_army":
            army = event["player"]
    for holder in (road, army):
        if holder is not None:
            points[holder] += 2
    return points


def check_pieces(table: Table) -> None:
    """Buildings keep their distance; every road hangs on an own road or building."""
    for node, building in table.buildings.items():
        assert not any(other in table.buildings for other in NODE_NEIGHBOURS[node])
        assert (
            any(table.roads.get(edge) == building.player for edge in NODE_EDGES[node])
            or table.setup_node == node
        )
    for edge, player in table.roads.items():
        near = [other for node in EDGES[edge] for other in NODE_EDGES[node] if other != edge]
        owners = [table.owner(node) for node in EDGES[edge]]
        assert player in owners or any(table.roads.get(other) == player for other in near)


@GAMES
@given(seed=SEEDS, players=st.integers(min_value=2, max_value=4))
def test_cards_are_conserved_and_points_add_up(
    any_action: Any, check_table: Any, seed: int, players: int
) -> None:
    game, rng = Catan.new(players, seed, {"turn_cap": 250}), random.Random(seed)
    events: list[dict[str, Any]] = []
    while (request := game.request()) is not None:
        events += game.apply(request.player, any_action(request, rng))
        check_table(game.table)
        played = [event["card"] for event in events if event["event"] == "card_played"]
        held = sum(sum(seat.cards.values()) for seat in game.table.seats)
        assert len(game.table.deck) + held + len(played) == 25
    check_pieces(game.table)
    public = [game.table.public_points(player) for player in range(players)]
    assert public == points_from_events(events, players)
    hidden = [seat.cards[Card.VICTORY_POINT] for seat in game.table.seats]
    assert [row["points"] for row in game.standings()] == [a + b for a, b in zip(public, hidden, strict=True)]
    assert Catan.replay(players, seed, {"turn_cap": 250}, game.log).log_sha256() == game.log_sha256()


def swap_secrets(table: Table, player: int, rng: random.Random) -> Table:
    """The same table for `player`: the others' cards, and the deck with theirs, dealt anew."""
    other = copy.deepcopy(table)
    rivals = [seat for index, seat in enumerate(other.seats) if index != player]
    cards = [
        r for seat in rivals for r, count in zip(RESOURCES, seat.hand, strict=True) for _ in range(count)
    ]
    rng.shuffle(cards)
    for seat in rivals:
        size = sum(seat.hand)
        seat.hand, cards = add(EMPTY, hand_of(cards[:size])), cards[size:]
    secret = other.deck + [card for seat in rivals for card in CARDS for _ in range(seat.cards[card])]
    rng.shuffle(secret)
    for seat in rivals:
        size = sum(seat.cards.values())
        mine, secret = secret[:size], secret[size:]
        seat.cards = {card: mine.count(card) for card in CARDS}
        seat.bought = dict.fromkeys(CARDS, 0)
    other.deck = secret
    return other


@GAMES
@given(seed=SEEDS)
def test_a_state_tells_nothing_that_is_hidden(any_action: Any, seed: int) -> None:
    game, rng = Catan.new(4, seed, {"turn_cap": 120}), random.Random(seed)
    while (request := game.request()) is not None:
        assert player_state(swap_secrets(game.table, request.player, rng), request.player) == player_state(
            game.table, request.player
        )
        game.apply(request.player, any_action(request, rng))


@settings(GAMES, max_examples=3)
@given(seed=SEEDS)
def test_a_state_stays_small_whole_and_free_of_floats(any_action: Any, seed: int) -> None:
    game, rng = Catan.new(4, seed, {"turn_cap": 500}), random.Random(seed)
    while (request := game.request()) is not None:
        encoded = json.dumps(request.state, separators=(",", ":"), allow_nan=False).encode()
        assert len(encoded) < MAX_STATE_BYTES
        assert b'"seed"' not in encoded
        assert json.loads(encoded, parse_float=no_float) == request.state
        game.apply(request.player, any_action(request, rng))


def no_float(text: str) -> float:
    raise AssertionError(f"{text}: records hold no floats")


def longest_trail_by_cutting(roads: frozenset[int], blocked: frozenset[int]) -> int:
    """Reference: cut a blocked node into one end for every road there, then try every trail."""
    links: dict[Any, list[tuple[int, Any]]] = {}
    for edge in roads:
        a, b = ((node, edge) if node in blocked else node for node in EDGES[edge])
        links.setdefault(a, []).append((edge, b))
        links.setdefault(b, []).append((edge, a))
    best, trails = 0, [(node, frozenset[int]()) for node in links]
    while trails:
        node, used = trails.pop()
        best = max(best, len(used))
        trails += [(other, used | {edge}) for edge, other in links[node] if edge not in used]
    return best


def grown(start: int, choices: list[int]) -> frozenset[int]:
    """A connected network of roads: each choice adds one edge that touches it."""
    roads = {start}
    for choice in choices:
        near = sorted({e for edge in roads for node in EDGES[edge] for e in NODE_EDGES[node]} - roads)
        roads.add(near[choice % len(near)])
    return frozenset(roads)


@given(
    start=st.integers(min_value=0, max_value=71),
    choices=st.lists(st.integers(min_value=0, max_value=30), max_size=14),
    blocked=st.frozensets(st.integers(min_value=0, max_value=53), max_size=12),
)
def test_the_longest_road_is_the_longest_trail_however_it_is_cut(
    start: int, choices: list[int], blocked: frozenset[int]
) -> None:
    roads = grown(start, choices)
    assert road_length(roads, blocked) == longest_trail_by_cutting(roads, blocked)
