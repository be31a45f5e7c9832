"""Longest road: how long each player's is, and who holds the card."""

from collections.abc import Mapping, Sequence
from typing import Final

from games.catan.topology import EDGES, NODE_EDGES

SHORTEST_LONGEST_ROAD: Final = 5  # roads; base game rulebook, "Longest Road"


def road_length(roads: frozenset[int], blocked: frozenset[int]) -> int:
    """Number of roads on the longest trail that uses none twice and passes through no blocked node.

    Args:
        roads: the edges of one player.
        blocked: nodes with another player's building; a trail may start or end there.
    """
    links: dict[int, list[tuple[int, int]]] = {}
    for edge in roads:
        a, b = EDGES[edge]
        links.setdefault(a, []).append((edge, b))
        links.setdefault(b, []).append((edge, a))
    return max((_longest_from(node, links, blocked, set()) for node in links), default=0)


def _longest_from(
    node: int, links: Mapping[int, list[tuple[int, int]]], blocked: frozenset[int], used: set[int]
) -> int:
    if used and node in blocked:
        return len(used)
    best = len(used)
    for edge, other in links[node]:
        if edge not in used:
            used.add(edge)
            best = max(best, _longest_from(other, links, blocked, used))
            used.remove(edge)
    return best


def longest_road_holder(lengths: Sequence[int], holder: int | None) -> int | None:
    """Who has the card now. The holder keeps it on a tie; a tie among others leaves it to nobody."""
    best = max(lengths)
    if best < SHORTEST_LONGEST_ROAD:
        return None
    leaders = [player for player, length in enumerate(lengths) if length == best]
    if holder in leaders:
        return holder
    return leaders[0] if len(leaders) == 1 else None


def can_extend(node: int, roads: Mapping[int, int], player: int, owner: int | None) -> bool:
    """True if `player` may build a road from this node: from a building, or from a road not cut here."""
    if owner is not None:
        return owner == player
    return any(roads.get(edge) == player for edge in NODE_EDGES[node])
