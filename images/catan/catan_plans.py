"""What the scripted player could go for, and how many rolls of the dice away each of it is."""

import operator

from catan_island import COSTS, RESOURCES, as_hand

HORIZON = 40  # rolls; what is further away is not planned
PATIENCE = 4.0  # rolls; how soon weighs against how much


class Plan:
    """Something to build: its whole cost, what it is worth, and the first action of it."""

    def __init__(self, name, cost, worth, first, first_cost):
        """Args: cost of all of it; worth in points; first action as JSON and what that alone costs."""
        self.name, self.cost, self.worth = name, cost, worth
        self.first, self.first_cost = first, first_cost


def rolls_until(hand, cost, production, rates):
    """How many rolls until `hand` pays `cost`, trading what is over with the bank; HORIZON if not before."""
    for rolls in range(HORIZON):
        missing = spare = 0
        for index, rate in enumerate(rates):
            balance = hand[index] + production[index] * rolls - cost[index]
            if balance < 0:
                missing += -balance
            else:
                spare += int(balance / rate)
        if missing <= spare + 1e-9:
            return rolls
    return HORIZON


def covers(hand, cost):
    """True if the hand pays the cost."""
    return all(map(operator.ge, hand, cost))


def minus(hand, cost):
    """What is left of a hand."""
    return tuple(map(operator.sub, hand, cost))


def plus(hand, cards):
    """A hand with more cards in it."""
    return tuple(map(operator.add, hand, cards))


def with_roads(cost, roads):
    """The cost plus that of some roads."""
    return plus(cost, [roads * due for due in COSTS["road"]])


def plans_of(island):
    """Everything worth going for."""
    plans = [*_cities(island), *_settlements(island), *_long_road(island)]
    if island.state["deck"]:
        plans.append(Plan("card", COSTS["card"], _card_worth(island), {"type": "buy_card"}, COSTS["card"]))
    return plans


def _cities(island):
    if not island.left("city"):
        return
    for node in island.state["players"][island.you]["settlements"]:
        gain = sum(island.yields(node).values())
        yield Plan(
            "city", COSTS["city"], 1.0 + 0.06 * gain, {"type": "build_city", "node": node}, COSTS["city"]
        )


def _settlements(island):
    if not island.left("settlement"):
        return
    touched = island.touched(island.you)
    for node, path in island.reach(island.you, min(3, island.left("road"))).items():
        if not island.has_room(node) or (not path and node not in touched):
            continue
        worth = (1.0 + 0.05 * island.site_worth(node)) * 0.85 ** len(path)
        first = (
            {"type": "build_road", "edge": path[0]} if path else {"type": "build_settlement", "node": node}
        )
        first_cost = COSTS["road"] if path else COSTS["settlement"]
        yield Plan("settlement", with_roads(COSTS["settlement"], len(path)), worth, first, first_cost)


def _long_road(island):
    """Two points for the longest road, where a few roads at one end would do."""
    seats = island.state["players"]
    mine = seats[island.you]
    if mine["longest_road"] or not island.left("road"):
        return
    rival = max(seat["road_length"] for seat in seats)
    holder = any(seat["longest_road"] for seat in seats)
    needed = max(5, rival + 1 if holder or rival >= 5 else 5) - mine["road_length"]
    if not 1 <= needed <= min(3, island.left("road")):
        return
    for node, path in island.reach(island.you, needed).items():
        if len(path) == needed and island.has_room(node):
            first = {"type": "build_road", "edge": path[0]}
            yield Plan("long_road", with_roads((0,) * 5, needed), 1.1, first, COSTS["road"])


def _card_worth(island):
    seats = island.state["players"]
    mine = seats[island.you]
    knights = mine["knights"] + island.state["cards"]["knight"]
    rival = max(seat["knights"] for seat in seats if seat is not mine)
    army = 0.35 if not mine["largest_army"] and max(3, rival + 1) - knights <= 2 else 0.0
    return 0.6 + army


class Outlook:
    """How near the plans are from one hand, and which is best."""

    def __init__(self, island):
        """Collect the plans once; `best` and `score` take any hand."""
        self.plans = plans_of(island)
        self.production = island.production(island.you)
        self.rates = as_hand(island.state["rates"])
        self.hand = as_hand(island.state["hand"])

    def rolls(self, plan, hand):
        """Rolls until the hand pays the whole plan."""
        return rolls_until(hand, plan.cost, self.production, self.rates)

    def score(self, hand):
        """How good a hand is: the worth of its best plan, discounted by the rolls it takes."""
        return max((plan.worth / (PATIENCE + self.rolls(plan, hand)) for plan in self.plans), default=0.0)

    def best(self, hand):
        """The best plan for a hand, or None."""
        rated = [(plan.worth / (PATIENCE + self.rolls(plan, hand)), plan) for plan in self.plans]
        return max(rated, key=lambda pair: pair[0])[1] if rated else None

    def swapped(self, give, get):
        """Your hand after a trade."""
        return plus(minus(self.hand, give), get)


def one(index, count=1):
    """A hand of one resource, by its index."""
    return tuple(count if other == index else 0 for other in range(len(RESOURCES)))
