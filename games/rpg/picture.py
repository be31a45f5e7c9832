"""The dungeon and the party as an SVG picture: rooms along a corridor, then a card for each hero."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from games.rpg.quest import Phase, Quest
from games.rpg.sketch import headline, is_known, plain_name

WIDTH: Final = 1120
ROOMS_PER_ROW: Final = 6
ROOM: Final = 150  # pixels of a room's side, walls included
CORRIDOR: Final = 26
MARGIN: Final = 45
TOP: Final = 90
CARD_WIDTH: Final = 330
CARD_HEIGHT: Final = 96
INK: Final = "#2b2118"
PAPER: Final = "#f4ead2"
STONE: Final = "#4a423a"
FLOOR: Final = {
    "rest": "#7fa37a",
    "combat": "#a35d52",
    "trap": "#b58a45",
    "treasure": "#d9b64a",
    "puzzle": "#6f86b5",
    "barrier": "#8a7f8f",
    "boss": "#6d2f3f",
}
SEAT_FILL: Final = ("#d6453d", "#3f7fd0", "#e2a52b", "#4fa35b", "#a862c4", "#38a9b0")


def picture(quest: Quest, names: Sequence[str], turn: int) -> str:
    """A standalone SVG document, drawn from the adventure as it stands."""
    rows = -(-len(quest.rooms) // ROOMS_PER_ROW)
    cards_top = TOP + rows * (ROOM + 20) + 20
    height = cards_top + -(-len(quest.heroes) // 3) * (CARD_HEIGHT + 16) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans, Verdana, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" rx="18" fill="#221d19"/>',
        _text(MARGIN, 52, headline(quest), 26, PAPER, bold=True),
        f'<text x="{WIDTH - MARGIN}" y="52" font-size="17" text-anchor="end" fill="#b9aa8c">'
        f"adventure {quest.settings.adventure} of {quest.settings.adventures} · decision {turn}</text>",
        *_rooms(quest),
        *_cards(quest, names, cards_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rooms(quest: Quest) -> Iterator[str]:
    for place, room in enumerate(quest.rooms):
        row, column = divmod(place, ROOMS_PER_ROW)
        x, y = MARGIN + column * (ROOM + CORRIDOR), TOP + row * (ROOM + 20)
        known, here = is_known(quest, place), place == quest.place and quest.phase is not Phase.TOWN
        fill = FLOOR[room.kind.value] if known else STONE
        stroke = "#f2c94c" if here else "#14110e"
        if column:
            yield f'<rect x="{x - CORRIDOR}" y="{y + 65}" width="{CORRIDOR}" height="20" fill="{STONE}"/>'
        yield (
            f'<rect x="{x}" y="{y}" width="{ROOM}" height="{ROOM}" rx="10" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="5"/>'
        )
        if not known:
            yield _text(x + 64, y + 88, "?", 34, "#8d8273", bold=True)
            continue
        yield _text(x + 12, y + 26, room.name, 16, PAPER, bold=True)
        yield _text(x + 12, y + 44, room.kind.value, 13, PAPER)
        yield from _foes(quest, place, x, y)
        if here:
            yield from _tokens(quest, x, y)


def _foes(quest: Quest, place: int, x: int, y: int) -> Iterator[str]:
    for index, foe in enumerate(quest.rooms[place].foes):
        cx, cy = x + 24 + index * 24, y + 74
        fill = "#1d1512" if foe.is_here else "none"
        yield f'<circle cx="{cx}" cy="{cy}" r="10" fill="{fill}" stroke="{PAPER}" stroke-width="1.5"/>'
        yield _centred(cx, cy + 4, foe.kind.value[0].upper() if foe.is_here else "×")


def _tokens(quest: Quest, x: int, y: int) -> Iterator[str]:
    for index, player in enumerate(quest.living()):
        cx = x + 24 + index * 23
        yield (
            f'<circle cx="{cx}" cy="{y + 122}" r="10.5" fill="{SEAT_FILL[player]}" stroke="{PAPER}" '
            f'stroke-width="2"/>'
        )
        yield _centred(cx, y + 126, quest.heroes[player].klass.value[0].upper())


def _cards(quest: Quest, names: Sequence[str], top: int) -> Iterator[str]:
    for player, hero in enumerate(quest.heroes):
        row, column = divmod(player, 3)
        x, y = MARGIN + column * (CARD_WIDTH + 20), top + row * (CARD_HEIGHT + 16)
        yield (
            f'<rect x="{x}" y="{y}" width="{CARD_WIDTH}" height="{CARD_HEIGHT}" rx="12" fill="{PAPER}" '
            f'opacity="{"0.55" if hero.dead or player in quest.away else "1"}"/>'
            f'<circle cx="{x + 30}" cy="{y + 32}" r="15" fill="{SEAT_FILL[player]}"/>'
        )
        yield _text(x + 56, y + 30, plain_name(names, player), 17, INK, bold=True)
        yield _text(x + 56, y + 48, f"{hero.klass.value}, level {hero.level}, {hero.xp} xp", 13, INK)
        if player in quest.away:
            yield _text(x + 16, y + 78, "not here yet", 15, INK)
            continue
        if hero.dead:
            yield _text(x + 16, y + 78, f"† {hero.cause}", 15, "#8c1d18", bold=True)
            continue
        yield from _bar(x + 16, y + 62, hero.hp, hero.max_hp, "#c0392b", "hp")
        yield from _bar(x + 172, y + 62, hero.mp, max(1, hero.max_mp), "#2d6fb0", "mp")
        effects = ", ".join(effect.value for effect in hero.effects)
        yield _text(x + 16, y + 90, " · ".join(filter(None, (f"{hero.gold} gold", effects))), 12, INK)


def _bar(x: int, y: int, value: int, most: int, fill: str, unit: str) -> Iterator[str]:
    yield f'<rect x="{x}" y="{y}" width="140" height="14" rx="7" fill="#cdbf9f"/>'
    yield f'<rect x="{x}" y="{y}" width="{140 * value // most}" height="14" rx="7" fill="{fill}"/>'
    yield _text(x + 46, y + 11, f"{value}/{most} {unit}", 11, "#ffffff", bold=True)


def _text(x: int, y: int, text: str, size: int, fill: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight} fill="{fill}">{escape(text)}</text>'


def _centred(x: int, y: int, text: str) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="11" font-weight="bold" text-anchor="middle" '
        f'fill="{PAPER}">{escape(text)}</text>'
    )
