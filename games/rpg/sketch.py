"""The dungeon and the party as text for a terminal: rooms in a row, then a line per hero and enemy."""

from collections.abc import Sequence
from typing import Final

from games.rpg.dungeon import Room
from games.rpg.quest import Phase, Quest

MAX_NAME: Final = 24  # characters of a name that are shown
BAR: Final = 12  # characters of a bar of hit points
RESET: Final = "\x1b[0m"
DIM: Final = "\x1b[2m"
BOLD: Final = "\x1b[1m"
RED: Final = "\x1b[91m"
SEAT_COLOURS: Final = ("\x1b[91m", "\x1b[94m", "\x1b[93m", "\x1b[92m", "\x1b[95m", "\x1b[96m")


def plain_name(names: Sequence[str], player: int) -> str:
    """A player's name as it may be shown: a stranger chose it, so no control codes and not too long."""
    name = names[player] if player < len(names) else f"player {player + 1}"
    printable = "".join(letter for letter in name if letter.isprintable())
    return printable if len(printable) <= MAX_NAME else printable[: MAX_NAME - 1] + "…"


def headline(quest: Quest) -> str:
    """Where the party is, in a few words."""
    if quest.reason is not None:
        return {
            "victory": "The dungeon is conquered",
            "wipe": "Nobody came back",
            "abandoned": "The party gave up",
            "turn_cap": "The torches are burnt down",
        }[quest.reason.value]
    if quest.phase is Phase.TOWN:
        return "In town"
    doing = "fighting" if quest.phase is Phase.COMBAT else "exploring"
    return f"Room {quest.place + 1} of {len(quest.rooms)}, the {quest.room.name}: {doing}"


def is_known(quest: Quest, place: int) -> bool:
    """Whether the party has seen this room."""
    return quest.phase is not Phase.TOWN and (place <= quest.place or quest.rooms[place].cleared)


def sketch(quest: Quest, names: Sequence[str]) -> str:
    """Rooms as boxes, the party's in bold, those not seen yet as `?`."""
    rooms = " ─ ".join(_box(quest, place, room) for place, room in enumerate(quest.rooms))
    lines = [f"{BOLD}{headline(quest)}{RESET}", "", rooms, ""]
    for player, hero in enumerate(quest.heroes):
        colour = DIM if hero.dead or player in quest.away else SEAT_COLOURS[player]
        health = f"dead: {hero.cause}" if hero.dead else _bar(hero.hp, hero.max_hp)
        health = "is not here yet" if player in quest.away else health
        effects = " ".join(effect.value for effect in hero.effects)
        lines.append(
            f"{colour}■ {plain_name(names, player)}{RESET} {hero.klass.value} {hero.level} {health} "
            f"{hero.mp}/{hero.max_mp} mp {hero.gold} gold {effects}".rstrip()
        )
    if quest.phase is not Phase.TOWN:
        lines += [f"{RED}  {foe.kind.value} {foe.id}: {foe.condition()}{RESET}" for foe in quest.room.foes]
    return "\n".join(lines)


def _box(quest: Quest, place: int, room: Room) -> str:
    if not is_known(quest, place):
        return f"{DIM}[?]{RESET}"
    mark = "✓" if room.cleared and not room.here() else "!"
    text = f"[{room.kind.value} {mark}]"
    return f"{BOLD}{text}{RESET}" if place == quest.place else text


def _bar(hp: int, max_hp: int) -> str:
    full = -(-BAR * hp // max_hp)
    return f"{'█' * full}{'░' * (BAR - full)} {hp}/{max_hp}"
