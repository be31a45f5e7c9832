"""The scripted player: what a hero of each class does in town, in a room and in a fight.

The same state and seed give the same action; the seed decides a hero's temper and breaks ties.
"""

import hashlib
import json

WORST_FIRST = {"badly hurt": 0, "hurt": 1, "unhurt": 2}
SHOPPING = {  # what a class wants, in order, and how many of it
    "warrior": (("leather", 1), ("potion", 2), ("keen_edge", 1), ("mail", 1)),
    "scout": (("leather", 1), ("potion", 2), ("keen_edge", 1), ("mail", 1)),
    "mage": (("leather", 1), ("draught", 1), ("potion", 2), ("mail", 1)),
    "healer": (("leather", 1), ("draught", 1), ("potion", 1), ("mail", 1)),
}
DRINK_AT = 40  # per cent of hit points
HEAL_AT = 60
REST_AT = 75
WEAK_AT = 50  # per cent of the party's hit points: then it would rather not fight
FLEE_AT = 25
TALKATIVE = 40  # per cent of heroes try words before blows


class Situation:
    """A state, sorted for deciding."""

    def __init__(self, state, seed):
        self.state, self.seed = state, seed
        self.you = state["you"]
        self.me = state["party"][self.you]
        self.party = [hero for hero in state["party"] if not hero["dead"] and not hero["away"]]
        self.foes = [foe for foe in state["foes"] if foe["condition"] in WORST_FIRST]
        self.legal = state["legal"]

    def find(self, **wanted):
        """The first legal action with these fields, or None."""
        for action in self.legal:
            if all(action.get(key) == value for key, value in wanted.items()):
                return action
        return None

    def chance(self, what):
        """A number from 0 to 99 that follows from the seed, the hero and `what`."""
        key = json.dumps([self.seed, self.state["character"]["id"], what])
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100

    def weakest_ally(self):
        """Whoever has the smallest part of the hit points left."""
        return min(self.party, key=lambda hero: (share(hero), hero["player"]))

    def prey(self):
        """The enemy to strike: the worst hurt; ties by the seed."""
        return min(
            self.foes, key=lambda foe: (WORST_FIRST[foe["condition"]], self.chance(["prey", foe["id"]]))
        )


def choose(state, seed):
    """One of the legal actions of this state."""
    situation = Situation(state, seed)
    plan = {"town": in_town, "exploring": exploring, "combat": fighting}[state["phase"]]
    return plan(situation) or state["legal"][0]


def share(hero):
    """The hit points left, in per cent."""
    return 100 * hero["hp"] // hero["max_hp"]


def in_town(here):
    """Buy what the class wants, then go."""
    items = here.state["character"]["items"]
    for item, wanted in SHOPPING[here.me["class"]]:
        if item == "leather" and "mail" in items:
            continue
        if items.get(item, 0) < wanted:
            bought = here.find(type="buy", item=item)
            if bought:
                return bought
    return here.find(type="depart")


def exploring(here):
    """Get well, then deal with what the room holds, then go on."""
    return recover(here) or (meet(here) if here.foes else explore_room(here))


def explore_room(here):
    """A room without enemies."""
    return (
        here.find(type="search")
        or open_way(here)
        or (share(here.me) < REST_AT and here.find(type="rest"))
        or here.find(type="advance")
        or here.find(type="wait")
    )


def open_way(here):
    """Traps, puzzles and barriers."""
    scouts = [hero for hero in here.party if hero["class"] == "scout"]
    if here.find(type="disarm") and (here.me in scouts or not scouts):
        return here.find(type="disarm")
    return (
        here.find(type="solve")
        or here.find(type="overcome", approach="class")
        or (share(here.me) > WEAK_AT and here.find(type="overcome", approach="force"))
        or (share(here.me) <= WEAK_AT and here.find(type="overcome", approach="mana"))
        or here.find(type="overcome", approach="check")
    )


def recover(here):
    """Healing, from the best to the dearest; None when nobody needs it."""
    weakest = here.weakest_ally()
    dead = [hero for hero in here.state["party"] if hero["dead"] and hero["raised"] is None]
    if share(weakest) < HEAL_AT:
        healing = here.find(type="cast", spell="heal", target=weakest["player"])
        if share(weakest) < DRINK_AT:
            healing = here.find(type="mend", target=weakest["player"]) or healing
        if healing:
            return healing
    if share(here.me) < DRINK_AT and here.find(type="drink", item="potion"):
        return here.find(type="drink", item="potion")
    if here.me["mp"] < 3 and here.find(type="drink", item="draught"):
        return here.find(type="drink", item="draught")
    if dead and not here.foes:
        return here.find(type="resurrect", target=dead[0]["player"])
    return None


def meet(here):
    """Enemies that have not attacked yet: past them, a word, or the first blow."""
    strength = sum(hero["hp"] for hero in here.party) * 100 // sum(hero["max_hp"] for hero in here.party)
    if strength < WEAK_AT or (here.me["class"] == "scout" and here.chance("sneaky") < TALKATIVE):
        sneaking = here.find(type="sneak")
        if sneaking:
            return sneaking
    if here.chance("talkative") < TALKATIVE or strength < WEAK_AT:
        word = here.find(type="negotiate") or here.find(type="intimidate")
        if word:
            return word
    return strike(here)


def fighting(here):
    """A fight: stay alive, help, strike."""
    saved = recover(here)
    if saved:
        return saved
    if all(share(hero) < FLEE_AT for hero in here.party) and here.find(type="flee"):
        return here.find(type="flee")
    return special(here) or strike(here)


def special(here):
    """What only this class does in a fight."""
    fragile = [hero for hero in here.party if hero["class"] in ("mage", "healer") and share(hero) < HEAL_AT]
    if here.me["class"] == "warrior" and fragile and share(here.me) > WEAK_AT:
        return here.find(type="taunt")
    if here.me["class"] == "scout" and share(here.me) < WEAK_AT and len(here.party) > 1:
        return here.find(type="hide")
    if here.me["class"] == "mage" and len(here.foes) > 2:
        return here.find(type="storm")
    return None


def strike(here):
    """The best way to wound somebody."""
    prey = here.prey()
    boss = prey["kind"] == "warlord"
    wounding = len(here.foes) > 1 and here.find(type="cast", spell="fireball")
    if boss and not wounding and "stunned" not in prey["effects"]:
        wounding = here.find(type="cast", spell="lightning", target=prey["id"])
    if here.me["class"] == "healer" and here.me["mp"] < 6 and len(here.party) > 1:
        return here.find(type="attack", target=prey["id"])  # keep two healings
    return (
        wounding
        or here.find(type="cast", spell="ice_lance", target=prey["id"])
        or here.find(type="cast", spell="smite", target=prey["id"])
        or here.find(type="attack", target=prey["id"])
    )
