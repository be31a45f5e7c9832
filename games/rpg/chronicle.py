"""What happened in an adventure, told in Markdown for people."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from games.rpg.hero import Hero
from games.rpg.quest import Quest
from games.rpg.sketch import headline, plain_name
from games.rules import GameEvent

Name = Callable[[int], str]

_SCENES: Final = {
    "rest": "a quiet corner; here one can breathe",
    "combat": "somebody lives here",
    "trap": "the floor looks wrong",
    "treasure": "something glitters in the dust",
    "puzzle": "a door without a handle, and a riddle on it",
    "barrier": "the way is walled off",
    "boss": "here sits the warlord",
}
_QUIET: Final = frozenset({"experience", "cleared", "hint", "refreshed", "foe_searches", "skipped"})
_WOUNDS: Final = {  # how: verb, with what
    "blow": ("hits", ""),
    "critical": ("hits", " *hard*"),
    "luck": ("is lucky against", ""),
}
_COUNTS: Final = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
_MARKS: Final = re.compile(r"\\(.)|\*+")  # Markdown's: what is escaped stays, what is stressed does not
_ESCAPED: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def chronicle(quest: Quest, story: Sequence[GameEvent], names: Sequence[str]) -> str:
    """The whole story so far: a heading, the party, a chapter per room, and how it ended."""

    def name(player: int) -> str:
        return _plain(plain_name(names, player))

    settings = quest.settings
    lines = [f"# Adventure {settings.adventure} of {settings.adventures}", "", "The party:", ""]
    lines += [f"- **{name(player)}**, {hero.klass.value}" for player, hero in enumerate(quest.heroes)]
    lines += ["", "## In town", ""]
    for event in story:
        kind = event["type"]
        if kind == "room":
            heading = f"## Room {event['room']}: the {event['name']}"
            lines += [*_gap(lines), heading, "", f"*{_SCENES[event['kind']]}*", ""]
        elif kind not in _QUIET and (sentence := _tell(event, name)):
            lines.append(f"- {sentence}")
    lines += [*_gap(lines), "## The end" if quest.reason else "## So far", "", f"{headline(quest)}.", ""]
    for player, hero in enumerate(quest.heroes):
        fate = f"{_fate(hero)}; {hero.xp} experience" if player not in quest.away else "never came"
        lines.append(f"- **{name(player)}**, {hero.klass.value} of level {hero.level}: {fate}")
    return "\n".join(lines) + "\n"


def _gap(lines: list[str]) -> list[str]:
    return [""] if lines[-1] else []


def sentence(event: GameEvent, names: Sequence[str]) -> str:
    """One event as a plain sentence for a terminal; empty for what is not worth one."""
    if event["type"] == "room":
        return f"The party enters room {event['room']}, the {event['name']}: {_SCENES[event['kind']]}"
    told = "" if event["type"] in _QUIET else _tell(event, lambda player: _plain(plain_name(names, player)))
    return _MARKS.sub(lambda mark: mark.group(1) or "", told)


def _fate(hero: Hero) -> str:
    if not hero.dead:
        return f"lives, {hero.hp} of {hero.max_hp} hit points"
    called_back = ", but was called back and will ride again" if hero.raised else ""
    return f"was killed by {_plain(hero.cause or '')}{called_back}"


def _plain(text: str) -> str:
    """A stranger's text without any meaning to Markdown."""
    return _ESCAPED.sub(r"\\\1", text)


def _tell(event: GameEvent, name: Name) -> str:
    """One event as a sentence; an empty one is not told."""
    teller = _TELLERS.get(event["type"])
    return teller(event, name) if teller else ""


def _who(event: GameEvent, name: Name) -> str:
    return name(event["player"])


def _foe(event: GameEvent) -> str:
    return f"the {event['kind']}"


def _outcome_of(verb: str, works: str, fails: str) -> Callable[[GameEvent, Name], str]:
    def tell(event: GameEvent, name: Name) -> str:
        return f"{_who(event, name)} {verb}: {works if event['works'] else fails}"

    return tell


def _message(event: GameEvent, name: Name) -> str:
    if "text" not in event:
        return f"{_who(event, name)} whispers to {name(int(event['to'][1:]))}"
    to = "the party" if event["to"] == "@party" else "the game master"
    return f"{_who(event, name)} to {to}: “{_plain(event['text'])}”"


def _combat(event: GameEvent, name: Name) -> str:
    crowds: Counter[str] = Counter(event["foes"])
    foes = " and ".join(_crowd(kind, count) for kind, count in crowds.items())
    return f"**Ambush!** Out of the dark: {foes}" if event["ambush"] else f"**A fight** begins: {foes}"


def _crowd(kind: str, count: int) -> str:
    if kind == "warlord":
        return "the warlord"
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" if count == 1 else f"{_COUNTS.get(count, count)} {kind}s"


def _wound(event: GameEvent, name: Name) -> str:
    verb, with_what = _WOUNDS.get(event["how"], ("burns", f" with {event['how'].replace('_', ' ')}"))
    return f"{_who(event, name)} {verb} {_foe(event)}{with_what} for {event['damage']}: {event['condition']}"


def _hurt(event: GameEvent, name: Name) -> str:
    if not event["damage"]:
        return f"{_who(event, name)} is hit by {event['cause']}, but the armour holds"
    points = "1 hit point" if event["damage"] == 1 else f"{event['damage']} hit points"
    return f"{_who(event, name)} loses {points} to {event['cause']}, {event['hp']} left"


def _healed(event: GameEvent, name: Name) -> str:
    if event["by"] == event["player"]:
        return f"{_who(event, name)} gets {event['points']} hit points back"
    return f"{name(event['by'])} heals {_who(event, name)} by {event['points']}"


def _shielded(event: GameEvent, name: Name) -> str:
    whom = "" if event["by"] == event["player"] else f" before {_who(event, name)}"
    return f"{name(event['by'])} raises a shield{whom}"


def _thing(item: str) -> str:
    return item.replace("_", " ") if item in ("leather", "mail") else f"a {item.replace('_', ' ')}"


def _search(event: GameEvent, name: Name) -> str:
    return f"{_who(event, name)} finds " + (f"{event['gold']} gold" if event["gold"] else "nothing")


def _stunned(event: GameEvent, name: Name) -> str:
    return (
        f"{_who(event, name)} is stunned" if "player" in event else f"{_foe(event)} is stunned".capitalize()
    )


def _overcome(event: GameEvent, name: Name) -> str:
    result = "it opens" if event["works"] else "it holds"
    return f"{_who(event, name)} tries the barrier by {event['approach']}: {result}"


_Teller = Callable[[GameEvent, Name], str]
_TELLERS: Final[dict[str, _Teller]] = {
    "message": _message,
    "buy": lambda e, n: f"{_who(e, n)} buys {_thing(e['item'])} for {e['gold']} gold",
    "is_awaited": lambda e, n: f"{_who(e, n)} is not here yet: the others will not wait",
    "arrives": lambda e, n: f"**{_who(e, n)} catches up with the party**",
    "depart": lambda e, n: "The party sets out",
    "combat": _combat,
    "miss": lambda e, n: f"{_who(e, n)} misses {_foe(e)}",
    "fumble": lambda e, n: f"{_who(e, n)} stumbles",
    "wound": _wound,
    "kill": lambda e, n: f"**{_who(e, n)} slays {_foe(e)}**",
    "spell": lambda e, n: f"{_who(e, n)} casts {e['spell'].replace('_', ' ')}",
    "storm": lambda e, n: f"{_who(e, n)} calls down a storm",
    "fizzle": lambda e, n: f"{_who(e, n)}'s {e['spell'].replace('_', ' ')} fizzles",
    "foe_miss": lambda e, n: f"{_foe(e).capitalize()} misses {_who(e, n)}",
    "foe_fumble": lambda e, n: f"{_foe(e).capitalize()} stumbles and hurts itself",
    "foe_fled": lambda e, n: f"{_foe(e).capitalize()} runs away",
    "boss_sweep": lambda e, n: "The warlord sweeps his axe through all of them",
    "hurt": _hurt,
    "death": lambda e, n: f"**{_who(e, n)} is killed by {e['cause']}**",
    "poisoned": lambda e, n: f"{_who(e, n)} is poisoned",
    "stunned": _stunned,
    "loses_turn": lambda e, n: f"{_who(e, n)} is too dazed to act",
    "taunt": lambda e, n: f"{_who(e, n)} roars at the enemies",
    "defend": lambda e, n: f"{_who(e, n)} takes cover",
    "hide": _outcome_of("slips into the shadows", "gone", "seen"),
    "healed": _healed,
    "shielded": _shielded,
    "drink": lambda e, n: f"{_who(e, n)} drinks a {e['item']}",
    "resurrect": lambda e, n: (
        f"{n(e['by'])} calls {_who(e, n)} back: " + ("a breath" if e["works"] else "no answer")
    ),
    "negotiate": _outcome_of("talks", "they agree and leave", "they spit"),
    "intimidate": _outcome_of("threatens", "the weak run", "nobody is impressed"),
    "sneak": _outcome_of("leads the party past the enemies", "unseen", "a stone rolls"),
    "flee": _outcome_of("calls the retreat", "the party runs one room back", "no way out"),
    "level": lambda e, n: f"**{_who(e, n)} reaches level {e['level']}**",
    "rest": lambda e, n: f"{_who(e, n)} rests",
    "search": _search,
    "found": lambda e, n: f"{_who(e, n)} finds a {e['item']}",
    "disarm": _outcome_of("works on the trap", "click, harmless", "click, not harmless"),
    "solve": _outcome_of("ponders the riddle", "the door opens", "nothing"),
    "overcome": _overcome,
    "crumbles": lambda e, n: "The barrier crumbles",
    "pushed_on": lambda e, n: "Enough waiting: things move on by themselves",
    "wants_to_abandon": lambda e, n: f"{_who(e, n)} wants to go home",
}


def told() -> frozenset[str]:
    """The kinds of events that the chronicle knows, told or passed over."""
    return frozenset(_TELLERS) | _QUIET | {"room", "finished"}
