"""All that lies on and around the table: the state that the rules read and the moves change."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from games.catan.board import ANY_PORT_RATE, OWN_PORT_RATE, RATE, Board
from games.catan.cards import BANK_OF_EACH, CARDS, EMPTY, RESOURCES, Card, Hand, Resource, add, subtract
from games.catan.roads import longest_road_holder, road_length
from games.catan.settings import Settings
from games.catan.topology import EDGES

# Base game, Catan Studio rulebook: pieces of each player, and what the cards are worth.
ROADS_EACH: Final = 15
SETTLEMENTS_EACH: Final = 5
CITIES_EACH: Final = 4
LARGEST_ARMY_FROM: Final = 3  # knights
CARD_POINTS: Final = 2  # for longest road, and for largest army
HAND_LIMIT: Final = 7  # cards; who holds more when a 7 is rolled discards half


class Phase(StrEnum):
    """What is to be decided next."""

    SETUP_SETTLEMENT = "setup_settlement"
    SETUP_ROAD = "setup_road"
    ROLL = "roll"  # before the dice
    DISCARD = "discard"
    ROBBER = "robber"
    MAIN = "main"
    ROAD_BUILDING = "road_building"  # the free roads of the card
    ANSWER = "answer"  # the others answer a trade offer
    SETTLE = "settle"  # the one who offered picks a partner
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """A settlement or a city on a node."""

    player: int
    is_city: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A trade that the player whose turn it is offers to all others."""

    give: Hand
    get: Hand
    answers: tuple[bool | None, ...]  # per player; None: has not answered (or made the offer)


@dataclass(slots=True, kw_only=True)
class Seat:
    """What one player holds."""

    hand: Hand = EMPTY
    cards: dict[Card, int] = field(default_factory=lambda: dict.fromkeys(CARDS, 0))
    bought: dict[Card, int] = field(default_factory=lambda: dict.fromkeys(CARDS, 0))  # this turn
    knights: int = 0  # played
    road_length: int = 0

    def playable(self, card: Card) -> int:
        """How many of these cards were not bought this turn."""
        return self.cards[card] - self.bought[card]


@dataclass(slots=True, kw_only=True)
class Table:
    """The whole game at one moment. Moves change it in place, after they were found legal."""

    board: Board
    settings: Settings
    seats: list[Seat]
    deck: list[Card]  # the next card to be bought is the last
    robber: int
    bank: Hand = (BANK_OF_EACH,) * 5
    buildings: dict[int, Building] = field(default_factory=dict)  # by node
    roads: dict[int, int] = field(default_factory=dict)  # player by edge
    phase: Phase = Phase.SETUP_SETTLEMENT
    current: int = 0  # whose turn it is
    setup_node: int | None = None  # the settlement whose road comes next
    rolled: bool = False
    dice: tuple[int, int] | None = None
    card_played: bool = False
    free_roads: int = 0
    discards: dict[int, int] = field(default_factory=dict)  # cards still to give up, by player
    offer: Offer | None = None
    offers_made: int = 0  # this turn
    longest_road: int | None = None
    largest_army: int | None = None
    ended_turns: int = 0
    idle_turns: int = 0  # turns in a row in which nothing was built or bought

    @property
    def decider(self) -> int:
        """The player whose decision is next."""
        if self.phase is Phase.DISCARD:
            return min(self.discards)
        if self.phase is Phase.ANSWER and self.offer is not None:
            return next(player for player in self.others() if self.offer.answers[player] is None)
        return self.current

    def others(self) -> list[int]:
        """The other players, in the order in which they sit after the current one."""
        count = len(self.seats)
        return [(self.current + step) % count for step in range(1, count)]

    def owner(self, node: int) -> int | None:
        """Who has a building on this node."""
        building = self.buildings.get(node)
        return None if building is None else building.player

    def nodes_of(self, player: int, *, cities: bool) -> list[int]:
        """The nodes of a player's cities, or of the settlements."""
        return sorted(
            node for node, b in self.buildings.items() if b.player == player and b.is_city is cities
        )

    def edges_of(self, player: int) -> list[int]:
        """The edges of a player's roads."""
        return sorted(edge for edge, owner in self.roads.items() if owner == player)

    def roads_left(self, player: int) -> int:
        """Roads still in the box."""
        return ROADS_EACH - len(self.edges_of(player))

    def settlements_left(self, player: int) -> int:
        """Settlements still in the box; a city gives one back."""
        return SETTLEMENTS_EACH - len(self.nodes_of(player, cities=False))

    def cities_left(self, player: int) -> int:
        """Cities still in the box."""
        return CITIES_EACH - len(self.nodes_of(player, cities=True))

    def rates(self, player: int) -> dict[Resource, int]:
        """How many cards of each resource buy one other from the bank."""
        rates = dict.fromkeys(RESOURCES, RATE)
        kinds = {
            kind for edge, kind in self.board.ports if any(self.owner(node) == player for node in EDGES[edge])
        }
        if None in kinds:
            rates = dict.fromkeys(RESOURCES, ANY_PORT_RATE)
        return rates | {kind: OWN_PORT_RATE for kind in kinds if kind is not None}

    def public_points(self, player: int) -> int:
        """Points that everybody can count."""
        settlements = len(self.nodes_of(player, cities=False))
        cities = len(self.nodes_of(player, cities=True))
        held = (self.longest_road == player) + (self.largest_army == player)
        return settlements + 2 * cities + CARD_POINTS * held

    def points(self, player: int) -> int:
        """All points, with the hidden victory point cards."""
        return self.public_points(player) + self.seats[player].cards[Card.VICTORY_POINT]

    def take(self, player: int, cards: Hand) -> None:
        """Bank to player; the bank must have them."""
        self.bank = subtract(self.bank, cards)
        self.seats[player].hand = add(self.seats[player].hand, cards)

    def pay(self, player: int, cards: Hand) -> None:
        """Player to bank; the player must have them."""
        self.seats[player].hand = subtract(self.seats[player].hand, cards)
        self.bank = add(self.bank, cards)

    def move_cards(self, giver: int, taker: int, cards: Hand) -> None:
        """Player to player."""
        self.seats[giver].hand = subtract(self.seats[giver].hand, cards)
        self.seats[taker].hand = add(self.seats[taker].hand, cards)

    def measure_roads(self) -> None:
        """Recount every road and hand the card to whom it belongs."""
        for player, seat in enumerate(self.seats):
            blocked = frozenset(node for node, b in self.buildings.items() if b.player != player)
            seat.road_length = road_length(frozenset(self.edges_of(player)), blocked)
        lengths = [seat.road_length for seat in self.seats]
        self.longest_road = longest_road_holder(lengths, self.longest_road)
