"""Colours and shapes of the picture: what each terrain and each piece looks like."""

from dataclasses import dataclass
from typing import Final

INK: Final = "#2b2b2b"
PAPER: Final = "#fbf5e4"

TERRAIN_PAINT: Final = {
    "wood": "#3b7d46",
    "brick": "#c0683c",
    "sheep": "#9ccb56",
    "wheat": "#edc34f",
    "ore": "#8d95a3",
    "desert": "#e2cf9c",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """The two colours of a player's pieces."""

    fill: str
    edge: str


SEAT_PAINT: Final = (
    Paint(fill="#d8352a", edge="#5e0f0a"),
    Paint(fill="#2f6fd6", edge="#0d2a5c"),
    Paint(fill="#f58a1f", edge="#6b3503"),
    Paint(fill="#fafafa", edge="#3a3a3a"),
)

_TREE: Final = (
    '<path d="M0,-15 L9,1 H-9 Z M0,-7 L11,9 H-11 Z" fill="#1f5530"/>'
    '<rect x="-2" y="9" width="4" height="5" fill="#5b3b20"/>'
)
_SHEEP: Final = (
    '<path d="M-7,5 v6 M-2,6 v6 M4,6 v6 M8,5 v6" stroke="#4a4a4a" stroke-width="2"/>'
    '<ellipse rx="12" ry="7.5" fill="#fdfdf6"/><circle cx="-7" cy="-4" r="5" fill="#fdfdf6"/>'
    '<circle cx="2" cy="-6" r="6" fill="#fdfdf6"/><ellipse cx="13" cy="-3" rx="5" ry="4" fill="#4a4a4a"/>'
)
_WHEAT: Final = (
    '<path d="M0,14 V-12" stroke="#8a6410" stroke-width="2"/>'
    '<path d="M0,-16 q4,5 0,9 q-4,-4 0,-9 M0,-5 q8,-6 8,-10 q-8,2 -8,10 M0,-5 q-8,-6 -8,-10 q8,2 8,10 '
    'M0,4 q8,-6 8,-10 q-8,2 -8,10 M0,4 q-8,-6 -8,-10 q8,2 8,10" fill="#b9820f"/>'
)
_BRICKS: Final = "".join(
    f'<rect x="{x}" y="{y}" width="15" height="8" rx="1.5" fill="#8c3f1c" stroke="#e0a583" stroke-width="1"/>'
    for x, y in ((-24, 4), (-8, 4), (8, 4), (-16, -5), (0, -5), (-8, -14))
)
_PEAKS: Final = (
    '<path d="M-28,13 L-12,-14 L4,13 Z" fill="#5c6472"/>'
    '<path d="M-16,-7 L-12,-14 L-8,-7 L-12,-4 Z" fill="#f4f6f8"/>'
    '<path d="M-6,13 L11,-18 L28,13 Z" fill="#6d7686"/>'
    '<path d="M6,-9 L11,-18 L16,-9 L11,-5 Z" fill="#f4f6f8"/>'
)
_CACTUS: Final = (
    '<path d="M0,20 V-16 M0,6 h-11 v-10 M0,0 h11 v-10" fill="none" stroke="#5e8a4a" stroke-width="7" '
    'stroke-linecap="round" stroke-linejoin="round"/>'
)


def _several(shape: str, places: tuple[tuple[int, int], ...]) -> str:
    return "".join(f'<g transform="translate({x} {y})">{shape}</g>' for x, y in places)


DEFINITIONS: Final = f"""<defs>
<linearGradient id="sea" x1="0" y1="0" x2="0.6" y2="1">
<stop offset="0" stop-color="#2f8fc4"/><stop offset="1" stop-color="#1b5f95"/></linearGradient>
<g id="wood">{_several(_TREE, ((-22, 3), (22, 3), (0, -1)))}</g>
<g id="brick">{_BRICKS}</g>
<g id="sheep">{_several(_SHEEP, ((-17, 2), (15, -3)))}</g>
<g id="wheat">{_several(_WHEAT, ((-20, 1), (0, -3), (20, 1)))}</g>
<g id="ore">{_PEAKS}</g>
<g id="desert">{_several(_CACTUS, ((-24, 0),))}</g>
<path id="settlement" d="M-11,9 V-3 L0,-13 L11,-3 V9 Z"/>
<path id="city" d="M-16,11 V-7 L-8,-16 L0,-7 V-2 H16 V11 Z"/>
<g id="robber" fill="#23232b" stroke="#f5f5f5" stroke-width="1.6">
<path d="M-12,17 Q-11,4 -5,-3 H5 Q11,4 12,17 Z"/><circle cy="-8" r="7.5"/></g>
</defs>"""
