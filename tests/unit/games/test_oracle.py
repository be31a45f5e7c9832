"""Our rules against catanatron's, move by move, with the same board, dice and cards.

Both sides start from catanatron's board and deck and get every move and every piece of luck we draw. After
each move the decider, the legal moves, all hands, the bank, the buildings, the points and both bonus cards
must agree. Where catanatron departs from the rulebook that is named here, and checked to be just that:

- it lets a card be played on the turn it was bought, and no card but a knight before the roll;
- it asks for the price of a road before it lets road building be played;
- it offers a single card for year of plenty when the bank lacks a pair, even if other pairs are there;
- it gives nothing of a resource the bank is short of, even if one player alone is due;
- its longest road ignores roads that end at a rival's building, and hands the card on below five roads.
"""

import random
from collections import Counter
from typing import Any

import pytest

catanatron = pytest.importorskip(
    "catanatron", reason="the oracle is not installed: pip install catanatron==3.2.1"
)

from catanatron.models.actions import generate_playable_actions  # noqa: E402
from catanatron.models.enums import Action, ActionType  # noqa: E402
from catanatron.models.map import PORT_DIRECTION_TO_NODEREFS  # noqa: E402
from catanatron.models.player import Color, RandomPlayer  # noqa: E402

from games.catan.board import Board  # noqa: E402
from games.catan.cards import RESOURCES, ROAD_COST, Card, Hand, Resource, covers, hand_of, subtract  # noqa: E402
from games.catan.chance import SeededChance  # noqa: E402
from games.catan.effects import play  # noqa: E402
from games.catan.legal import check_move, legal_moves, open_forms  # noqa: E402
from games.catan.moves import Kind, Move  # noqa: E402
from games.catan.settings import Settings  # noqa: E402
from games.catan.table import Phase, Seat, Table  # noqa: E402
from games.catan.topology import (  # noqa: E402
    COAST,
    EDGE_BETWEEN,
    EDGES,
    HEX_COUNT,
    HEX_POSITIONS,
    NODE_POSITIONS,
    PORT_EDGES,
)

GAMES, BATCH = 100, 10
MAX_MOVES = 200  # of one game
CORNERS = {
    "NORTH": (0, -2),
    "NORTHEAST": (1, -1),
    "SOUTHEAST": (1, 1),
    "SOUTH": (0, 2),
    "SOUTHWEST": (-1, 1),
    "NORTHWEST": (-1, -1),
}
CARD_KINDS = {
    ActionType.PLAY_KNIGHT_CARD: (Kind.PLAY_KNIGHT, Card.KNIGHT),
    ActionType.PLAY_ROAD_BUILDING: (Kind.PLAY_ROAD_BUILDING, Card.ROAD_BUILDING),
    ActionType.PLAY_YEAR_OF_PLENTY: (Kind.PLAY_YEAR_OF_PLENTY, Card.YEAR_OF_PLENTY),
    ActionType.PLAY_MONOPOLY: (Kind.PLAY_MONOPOLY, Card.MONOPOLY),
}
CARD_OF = dict(CARD_KINDS.values())
LATER_CARDS = {Kind.PLAY_ROAD_BUILDING, Kind.PLAY_YEAR_OF_PLENTY, Kind.PLAY_MONOPOLY}
WEIGHTS = {Kind.END_TURN: 2, Kind.BUILD_SETTLEMENT: 20, Kind.BUILD_CITY: 20, Kind.BANK_TRADE: 1}


class Pair:
    """One game on both sides."""

    def __init__(self, seed: int, players: int) -> None:
        self.rng = random.Random(f"oracle {seed}")
        self.theirs = catanatron.Game([RandomPlayer(color) for color in list(Color)[:players]], seed=seed + 1)
        self.state = self.theirs.state
        self._map_places()
        deck = [Card(card.lower()) for card in self.state.development_listdeck]
        board = self._board()
        self.ours = Table(
            board=board,
            settings=Settings(),
            seats=[Seat() for _ in range(players)],
            deck=deck,
            robber=board.desert,
        )
        self.chance = SeededChance(seed)
        self.bought: Counter[Card] = Counter()
        self.roads_met_rivals = False
        self.pieces: Any = None
        self.seen: Counter[str] = Counter()

    def _map_places(self) -> None:
        hex_at = {position: tile for tile, position in enumerate(HEX_POSITIONS)}
        node_at = {position: node for node, position in enumerate(NODE_POSITIONS)}
        self.hex_of, self.node_of = {}, {}
        for (x, y, z), tile in self.state.board.map.land_tiles.items():
            cx, cy = x - y, 3 * z
            self.hex_of[x, y, z] = hex_at[cx, cy]
            for ref, node in tile.nodes.items():
                dx, dy = CORNERS[ref.value]
                self.node_of[node] = node_at[cx + dx, cy + dy]
        self.coordinate_of = {tile: coordinate for coordinate, tile in self.hex_of.items()}
        self.edge_of: dict[tuple[int, int], int] = {}
        for tile in self.state.board.map.land_tiles.values():
            for a, b in tile.edges.values():
                ends = sorted((self.node_of[a], self.node_of[b]))
                self.edge_of[a, b] = self.edge_of[b, a] = EDGE_BETWEEN[ends[0], ends[1]]

    def _board(self) -> Board:
        land = self.state.board.map.land_tiles
        tiles = [land[self.coordinate_of[tile]] for tile in range(HEX_COUNT)]
        ports = []
        for port in self.state.board.map.ports_by_id.values():
            a, b = (self.node_of[port.nodes[ref]] for ref in PORT_DIRECTION_TO_NODEREFS[port.direction])
            ports.append((EDGE_BETWEEN[min(a, b), max(a, b)], ours_resource(port.resource)))
        return Board(
            terrain=tuple(ours_resource(tile.resource) for tile in tiles),
            numbers=tuple(tile.number for tile in tiles),
            ports=tuple(ports),
        )

    def as_move(self, action: Any) -> Move:
        """Their action as our move, luck left out."""
        kind, value = action.action_type, action.value
        match kind:
            case ActionType.ROLL:
                return Move(kind=Kind.ROLL)
            case ActionType.END_TURN:
                return Move(kind=Kind.END_TURN)
            case ActionType.BUY_DEVELOPMENT_CARD:
                return Move(kind=Kind.BUY_CARD)
            case ActionType.DISCARD:
                return Move(kind=Kind.DISCARD)
            case ActionType.BUILD_ROAD:
                return Move(kind=Kind.BUILD_ROAD, place=self.edge_of[value])
            case ActionType.BUILD_SETTLEMENT:
                return Move(kind=Kind.BUILD_SETTLEMENT, place=self.node_of[value])
            case ActionType.BUILD_CITY:
                return Move(kind=Kind.BUILD_CITY, place=self.node_of[value])
            case ActionType.MOVE_ROBBER:
                victim = None if value[1] is None else self.state.color_to_index[value[1]]
                return Move(kind=Kind.MOVE_ROBBER, place=self.hex_of[value[0]], player=victim)
            case ActionType.PLAY_KNIGHT_CARD | ActionType.PLAY_ROAD_BUILDING:
                return Move(kind=CARD_KINDS[kind][0])
            case ActionType.PLAY_YEAR_OF_PLENTY:
                return Move(
                    kind=Kind.PLAY_YEAR_OF_PLENTY, get=hand_of(Resource(name.lower()) for name in value)
                )
            case ActionType.PLAY_MONOPOLY:
                return Move(kind=Kind.PLAY_MONOPOLY, get=hand_of([Resource(value.lower())]))
            case ActionType.MARITIME_TRADE:
                give, get = hand_of([Resource(value[0].lower())]), hand_of([Resource(value[4].lower())])
                rate = sum(1 for name in value[:4] if name is not None)
                assert rate == self.ours.rates(self.ours.current)[Resource(value[0].lower())]
                return Move(kind=Kind.BANK_TRADE, give=give, get=get)
        raise AssertionError(kind)

    # -- one step --------------------------------------------------------------------------------------------

    def common_moves(self) -> dict[Move, Any]:
        """The moves legal on both sides; what only one side allows must be a named difference."""
        player = self.ours.decider
        assert self.state.colors[player] == self.state.current_color()
        theirs = {self.as_move(action): action for action in self.state.playable_actions}
        ours = set(legal_moves(self.ours))
        if Kind.DISCARD in open_forms(self.ours) or self.ours.phase is Phase.DISCARD:
            assert list(theirs) == [Move(kind=Kind.DISCARD)]
            return theirs
        only_theirs = {move for move in theirs if move not in ours}
        for move in only_theirs:
            self._explain_theirs(move, player)
        for move in ours - set(theirs):
            self._explain_ours(move, player)
        return {move: action for move, action in theirs.items() if move in ours}

    def _explain_theirs(self, move: Move, player: int) -> None:
        card = CARD_OF.get(move.kind)
        assert card is not None, f"only catanatron allows {move}"
        if move.kind is Kind.PLAY_YEAR_OF_PLENTY and sum(move.get) == 1:
            self.seen["single card of plenty"] += 1
            return
        assert self.bought[card] >= self.ours.seats[player].cards[card], f"only catanatron allows {move}"
        self.seen["card bought this turn"] += 1

    def _explain_ours(self, move: Move, player: int) -> None:
        if self.ours.phase is Phase.ROLL and move.kind in LATER_CARDS:
            self.seen["card before the roll"] += 1
            return
        assert move.kind is Kind.PLAY_ROAD_BUILDING, f"only we allow {move}"
        assert not covers(self.ours.seats[player].hand, ROAD_COST)
        self.seen["free roads without money"] += 1

    def step(self) -> None:
        """Play one random common move on both sides and compare everything."""
        moves = self.common_moves()
        if Kind.OFFER_TRADE in open_forms(self.ours) and self.rng.random() < 0.1:
            self._trade()
            self.compare()
            return
        options = sorted(moves, key=repr)
        move = self.rng.choices(options, [WEIGHTS.get(option.kind, 5) for option in options])[0]
        action = moves[move]
        if move.kind is Kind.DISCARD:
            move = self._some_discard()
        check_move(self.ours, move)
        self._play_both(move, action)
        self.compare()

    def _play_both(self, move: Move, action: Any) -> None:
        ours, player = self.ours, self.ours.decider
        hands = [seat.hand for seat in ours.seats]
        before_roll = (ours.bank, hands)
        card = ours.deck[-1] if ours.deck else None
        play(ours, move, self.chance)
        value = action.value
        if move.kind is Kind.ROLL:
            value = ours.dice
        elif move.kind is Kind.BUY_CARD and card is not None:
            self.bought[card] += 1
        elif move.kind is Kind.MOVE_ROBBER and move.player is not None:
            lost = subtract(hands[move.player], ours.seats[move.player].hand)
            value = (action.value[0], action.value[1], their_cards(lost)[0])
        elif move.kind is Kind.DISCARD:
            value = their_cards(move.give)
        elif move.kind is Kind.END_TURN:
            self.bought.clear()
        self.theirs.execute(
            Action(self.state.colors[player], action.action_type, value), validate_action=False
        )
        if move.kind is Kind.ROLL:
            self._even_out_short_bank(*before_roll)

    def _even_out_short_bank(self, bank: Hand, hands: list[Hand]) -> None:
        """Give their lone creditor the rest of a short pile, as the rulebook has it."""
        for player, hand in enumerate(hands):
            gained = subtract(self.ours.seats[player].hand, hand)
            missing = subtract(gained, subtract(self.their_hand(player), hand))
            if any(missing):
                assert all(not due or gained[i] == bank[i] for i, due in enumerate(missing))
                self.state.resource_freqdeck = list(self.ours.bank)
                self._give_theirs(player, missing)
                self.seen["lone creditor of a short bank"] += 1

    def _some_discard(self) -> Move:
        player = self.ours.decider
        held = [
            r for r, count in zip(RESOURCES, self.ours.seats[player].hand, strict=True) for _ in range(count)
        ]
        given = hand_of(self.rng.sample(held, self.ours.discards[player]))
        return Move(kind=Kind.DISCARD, give=given)

    def _trade(self) -> None:
        """A trade between players, which catanatron does not know: ours by the rules, theirs by hand."""
        ours, player = self.ours, self.ours.current
        held = [r for r, count in zip(RESOURCES, ours.seats[player].hand, strict=True) if count]
        give = self.rng.choice(held)
        get = self.rng.choice([r for r in RESOURCES if r is not give])
        hands = [seat.hand for seat in ours.seats]
        move = Move(kind=Kind.OFFER_TRADE, give=hand_of([give]), get=hand_of([get]))
        while True:
            check_move(ours, move)
            play(ours, move, self.chance)
            if ours.phase is Phase.MAIN:
                break
            move = self.rng.choice(legal_moves(ours))
        for other, hand in enumerate(hands):
            now = ours.seats[other].hand
            change = tuple(b - a for a, b in zip(hand, now, strict=True))
            if any(change):
                self._give_theirs(other, change)
                self.seen["trade between players"] += 1

    def _give_theirs(self, player: int, cards: tuple[int, ...]) -> None:
        for resource, count in zip(RESOURCES, cards, strict=True):
            self.state.player_state[f"P{player}_{resource.value.upper()}_IN_HAND"] += count
        self.state.playable_actions = generate_playable_actions(self.state)

    # -- comparing -------------------------------------------------------------------------------------------

    def their_hand(self, player: int) -> Hand:
        wood, brick, sheep, wheat, ore = (
            self.state.player_state[f"P{player}_{resource.value.upper()}_IN_HAND"] for resource in RESOURCES
        )
        return wood, brick, sheep, wheat, ore

    def compare(self) -> None:
        ours, state = self.ours, self.state
        assert list(ours.bank) == state.resource_freqdeck
        assert [card.value.upper() for card in ours.deck] == state.development_listdeck
        assert ours.robber == self.hex_of[state.board.robber_coordinate]
        for player in range(len(ours.seats)):
            self._compare_seat(player)
        pieces = (dict(ours.buildings), len(ours.roads), len(state.board.buildings), len(state.board.roads))
        if pieces != self.pieces:  # a city is a new piece in `buildings`, so this misses nothing
            self._compare_pieces()
        self.pieces = pieces

    def _compare_pieces(self) -> None:
        ours, state = self.ours, self.state
        buildings = {
            self.node_of[node]: (state.color_to_index[color], kind == "CITY")
            for node, (color, kind) in state.board.buildings.items()
        }
        assert {node: (b.player, b.is_city) for node, b in ours.buildings.items()} == buildings
        roads = {self.edge_of[edge]: state.color_to_index[color] for edge, color in state.board.roads.items()}
        assert ours.roads == roads
        for player in range(len(ours.seats)):
            assert ours.seats[player].road_length == longest_trail(ours, player)
        self._compare_longest_road()

    def _compare_longest_road(self) -> None:
        ours, state = self.ours, self.state
        self.roads_met_rivals |= any(
            ours.owner(node) not in (None, player)
            for edge, player in ours.roads.items()
            for node in EDGES[edge]
        )
        if self.roads_met_rivals:
            self.seen["roads met rivals"] += 1
            return
        self.seen["roads compared"] += 1
        for player, color in enumerate(state.colors):
            assert ours.seats[player].road_length == state.board.road_lengths[color]
            assert (ours.longest_road == player) is self._their(player, "HAS_ROAD")

    def _compare_seat(self, player: int) -> None:
        ours, seat = self.ours, self.ours.seats[player]
        assert seat.hand == self.their_hand(player)
        for card in Card:
            assert seat.cards[card] == self._their(player, f"{card.value.upper()}_IN_HAND")
        assert seat.knights == self._their(player, "PLAYED_KNIGHT")
        assert (ours.largest_army == player) is self._their(player, "HAS_ARMY")
        assert ours.roads_left(player) == self._their(player, "ROADS_AVAILABLE")
        assert ours.settlements_left(player) == self._their(player, "SETTLEMENTS_AVAILABLE")
        assert ours.cities_left(player) == self._their(player, "CITIES_AVAILABLE")
        has_road, they_say = ours.longest_road == player, self._their(player, "HAS_ROAD")
        points = self._their(player, "ACTUAL_VICTORY_POINTS")
        assert ours.points(player) - 2 * has_road == points - 2 * they_say

    def _their(self, player: int, key: str) -> Any:
        return self.state.player_state[f"P{player}_{key}"]


def ours_resource(name: str | None) -> Resource | None:
    return None if name is None else Resource(name.lower())


def their_cards(hand: Hand) -> list[str]:
    return [r.value.upper() for r, count in zip(RESOURCES, hand, strict=True) for _ in range(count)]


def longest_trail(table: Table, player: int) -> int:
    """Reference: cut the road graph apart at every rival's building, then try every trail, edge by edge."""
    links: dict[Any, list[tuple[int, Any]]] = {}
    for edge in table.edges_of(player):
        a, b = ((n, edge) if table.owner(n) not in (None, player) else n for n in EDGES[edge])
        links.setdefault(a, []).append((edge, b))
        links.setdefault(b, []).append((edge, a))
    best, trails = 0, [(node, frozenset[int]()) for node in links]
    while trails:
        node, used = trails.pop()
        best = max(best, len(used))
        trails += [(other, used | {edge}) for edge, other in links[node] if edge not in used]
    return best


def play_pair(seed: int) -> Counter[str]:
    pair = Pair(seed, players=2 + seed % 3)
    pair.compare()
    for _ in range(MAX_MOVES):
        pair.step()
        pair.seen["moves"] += 1
        if max(pair.ours.points(player) for player in range(len(pair.ours.seats))) >= 10:
            break
    return pair.seen


@pytest.mark.parametrize("first", range(0, GAMES, BATCH), ids="from-seed-{}".format)
def test_random_games_agree_with_the_oracle_after_every_move(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        seen += play_pair(seed)
    assert seen["moves"] > 100 * BATCH
    assert seen["roads compared"] > 10 * BATCH
    assert seen["trade between players"]
    for difference in ("card bought this turn", "card before the roll", "free roads without money"):
        assert seen[difference], f"{difference} never came up"


def test_ports_are_as_far_apart_as_on_the_oracles_board() -> None:
    ports = {edge for edge, _ in Pair(0, players=2).ours.board.ports}
    assert gaps(ports) in rotations(gaps(set(PORT_EDGES)))


def gaps(ports: set[int]) -> list[int]:
    """Coastal edges from each port to the next, once round the island."""
    places = [place for place, edge in enumerate(COAST) if edge in ports]
    return [(b - a) % len(COAST) for a, b in zip(places, places[1:] + places[:1], strict=True)]


def rotations(steps: list[int]) -> list[list[int]]:
    return [steps[start:] + steps[:start] for start in range(len(steps))]
