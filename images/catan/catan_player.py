"""The scripted player: one decision from one state, no memory, no luck beyond a seed that breaks ties."""

import random

from catan_island import RESOURCES, Island, as_hand, pips
from catan_plans import Outlook, covers, minus, one, plus


def choose(state, seed=0):
    """The action for `state`: always one of its legal ones, or a form of them filled in."""
    legal = state["legal"]
    if len(legal) == 1 and not legal[0].get("open"):
        return legal[0]
    island = Island(state)
    rng = random.Random(f"{seed} {state.get('turn', 0)} {state['you']}")
    action = PHASES[state["phase"]](island, legal, rng)
    return action if action is not None else next(entry for entry in legal if not entry.get("open"))


def _best(options, score, rng):
    """The option with the highest score; the seed breaks ties."""
    return max(options, key=lambda option: (score(option), rng.random()))


# -- before the first turn -----------------------------------------------------------------------------------


def _setup_settlement(island, legal, rng):
    return _best(legal, lambda action: island.site_worth(action["node"]), rng)


def _setup_road(island, legal, rng):
    def promise(action):
        """The best site two steps along this road."""
        home = island.owner.get(island.edges[action["edge"]][0])
        near, far = island.edges[action["edge"]]
        end = far if home == island.you else near
        sites = [node for node in island.neighbours[end] if island.has_room(node)]
        return max((island.site_worth(node) for node in sites), default=0.0)

    return _best(legal, promise, rng)


# -- the robber ----------------------------------------------------------------------------------------------


def _robber(island, legal, rng):
    return _best(legal, lambda action: _harm(island, action), rng)


def _harm(island, action):
    """What it costs the others, the leader most, less what it costs you."""
    seats = island.state["players"]
    dots = pips(island.hexes[action["hex"]]["number"])
    harm = 0.0
    for node in island.hexes[action["hex"]]["nodes"]:
        owner = island.owner.get(node)
        if owner == island.you:
            harm -= 2.0 * dots * island.size[node]
        elif owner is not None:
            harm += dots * island.size[node] * (0.5 + 0.1 * seats[owner]["points"])
    if action["victim"] is not None:
        victim = seats[action["victim"]]
        harm += 3.0 + 0.3 * victim["points"] + 0.1 * min(victim["hand"], 8)
    return harm


def _discard(island, legal, rng):
    """Give up, one by one, the card that the best plan misses least."""
    outlook = Outlook(island)
    hand, given = list(outlook.hand), dict.fromkeys(RESOURCES, 0)
    for _ in range(legal[0]["count"]):
        held = [index for index, count in enumerate(hand) if count]
        index = max(held, key=lambda i: (outlook.score(minus(hand, one(i))), hand[i]))
        hand[index] -= 1
        given[RESOURCES[index]] += 1
    return {"type": "discard", "cards": {resource: count for resource, count in given.items() if count}}


# -- a turn --------------------------------------------------------------------------------------------------


def _roll(island, legal, rng):
    return _find(legal, "play_knight") or _find(legal, "roll")


def _road_building(island, legal, rng):
    outlook = Outlook(island)
    roads = [plan for plan in outlook.plans if plan.first in legal]
    return max(roads, key=lambda plan: plan.worth).first if roads else _best(legal, lambda action: 0, rng)


def _main(island, legal, rng):
    outlook = Outlook(island)
    for step in (_card, _build, _bank, _offer):
        action = step(island, legal, outlook)
        if action is not None:
            return action
    return _find(legal, "end_turn")


def _card(island, legal, outlook):
    """Play a development card when it helps now."""
    for kind in ("play_knight", "play_road_building"):
        if _find(legal, kind):
            return _find(legal, kind)
    plan = outlook.best(outlook.hand)
    if plan is None or outlook.rolls(plan, outlook.hand) == 0:
        return None
    hand = outlook.hand
    plenty = [action for action in legal if action["type"] == "play_year_of_plenty"]
    for action in plenty:
        if covers(plus(hand, as_hand(action["get"])), plan.cost):
            return action
    for action in legal:
        if action["type"] == "play_monopoly":
            index = RESOURCES.index(action["resource"])
            taken = plus(hand, one(index, _held_by_others(island, outlook, index)))
            if outlook.rolls(plan, taken) == 0:
                return action
    return None


def _held_by_others(island, outlook, index):
    """Cards of a resource in the others' hands: the bank is open, and there are 19 of each."""
    return 19 - island.state["bank"][RESOURCES[index]] - outlook.hand[index]


def _build(island, legal, outlook):
    """The best plan's first step if it is paid for; another's if it does not set the best one back much."""
    best = outlook.best(outlook.hand)
    if best is None:
        return None
    if best.first in legal:
        return best.first
    waiting = outlook.rolls(best, outlook.hand)
    crowded = sum(outlook.hand) > 7
    for plan in sorted(outlook.plans, key=lambda plan: -plan.worth):
        if plan.first not in legal:
            continue
        later = outlook.rolls(best, minus(outlook.hand, plan.first_cost))
        if later <= waiting + (6 if crowded else 1):
            return plan.first
    return None


def _bank(island, legal, outlook):
    """Trade with the bank when that pays for the best plan at once."""
    plan = outlook.best(outlook.hand)
    if plan is None or outlook.rolls(plan, outlook.hand) > 0:
        return None
    for action in legal:
        if action["type"] != "bank_trade":
            continue
        give, get = RESOURCES.index(action["give"]), RESOURCES.index(action["get"])
        after = outlook.swapped(one(give, outlook.rates[give]), one(get))
        if outlook.hand[get] < plan.cost[get] and after[give] >= plan.cost[give]:
            return action
    return None


def _offer(island, legal, outlook):
    """Offer one card for one, once a turn, when that brings the best plan nearer."""
    state = island.state
    if not _find(legal, "offer_trade") or state["offers_left"] < state.get(
        "offers_per_turn", state["offers_left"]
    ):
        return None
    now, best, offer = outlook.score(outlook.hand), 0.0, None
    for get in range(len(RESOURCES)):
        if _held_by_others(island, outlook, get) <= 0:
            continue
        for give in range(len(RESOURCES)):
            if give == get or not outlook.hand[give]:
                continue
            gain = outlook.score(outlook.swapped(one(give), one(get))) - now
            if gain > best:
                best, offer = gain, (give, get)
    if offer is None or best < 0.25 * now:
        return None
    give, get = offer
    return {"type": "offer_trade", "give": {RESOURCES[give]: 1}, "get": {RESOURCES[get]: 1}}


# -- trades of others ----------------------------------------------------------------------------------------


def _answer(island, legal, rng):
    offer = island.state["offer"]
    accept = _find(legal, "accept_trade")
    rival = island.state["players"][offer["from"]]["points"]
    if accept is None or rival >= island.state["points_to_win"] - 2:
        return _find(legal, "reject_trade")
    outlook = Outlook(island)
    after = outlook.swapped(as_hand(offer["get"]), as_hand(offer["give"]))
    better = outlook.score(after) > outlook.score(outlook.hand)
    return accept if better else _find(legal, "reject_trade")


def _settle(island, legal, rng):
    seats = island.state["players"]
    partners = [action for action in legal if action["type"] == "settle_trade"]
    return _best(partners, lambda action: -seats[action["with"]]["points"], rng)


def _find(legal, kind):
    return next((action for action in legal if action["type"] == kind), None)


PHASES = {
    "setup_settlement": _setup_settlement,
    "setup_road": _setup_road,
    "roll": _roll,
    "discard": _discard,
    "robber": _robber,
    "main": _main,
    "road_building": _road_building,
    "answer": _answer,
    "settle": _settle,
}
