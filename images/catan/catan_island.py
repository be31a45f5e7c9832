"""The island as the scripted player reads it: what touches what, what yields what, who is where."""

RESOURCES = ("wood", "brick", "sheep", "wheat", "ore")
COSTS = {
    "road": (1, 1, 0, 0, 0),
    "settlement": (1, 1, 1, 1, 0),
    "city": (0, 0, 0, 2, 3),
    "card": (0, 0, 1, 1, 1),
}
PIECES = {"road": 15, "settlement": 5, "city": 4}
# How much a pip of each resource is worth when settling; wheat and ore make cities and cards.
WORTH = {"wood": 1.0, "brick": 1.0, "sheep": 0.85, "wheat": 1.15, "ore": 1.1}


def pips(number):
    """How many of the 36 rolls give this number."""
    return 6 - abs(7 - number) if number else 0


def as_hand(counts):
    """A hand as five counts, from {"ore": 2}."""
    return tuple(counts.get(resource, 0) for resource in RESOURCES)


class Island:
    """A state, indexed by node."""

    def __init__(self, state):
        """Index the state's board and what every player has built."""
        self.state = state
        self.you = state["you"]
        board = state["board"]
        self.hexes, self.edges = board["hexes"], board["edges"]
        self.robber = board["robber"]
        self.node_hexes, self.node_edges, self.neighbours, self.ports = {}, {}, {}, {}
        for tile, hexagon in enumerate(self.hexes):
            for node in hexagon["nodes"]:
                self.node_hexes.setdefault(node, []).append(tile)
        for edge, (a, b) in enumerate(self.edges):
            self.node_edges.setdefault(a, []).append((edge, b))
            self.node_edges.setdefault(b, []).append((edge, a))
            self.neighbours.setdefault(a, []).append(b)
            self.neighbours.setdefault(b, []).append(a)
        for port in board["ports"]:
            for node in port["nodes"]:
                self.ports[node] = port["resource"]
        self.owner, self.size, self.road_owner = {}, {}, {}
        for player, seat in enumerate(state["players"]):
            for size, nodes in ((1, seat["settlements"]), (2, seat["cities"])):
                for node in nodes:
                    self.owner[node], self.size[node] = player, size
            for edge in seat["roads"]:
                self.road_owner[edge] = player

    def yields(self, node):
        """Pips per resource around a node."""
        found = {}
        for tile in self.node_hexes[node]:
            resource = self.hexes[tile]["resource"]
            if resource != "desert":
                found[resource] = found.get(resource, 0) + pips(self.hexes[tile]["number"])
        return found

    def production(self, player):
        """Expected cards per roll of each resource, as five numbers; the robber's hex yields nothing."""
        pips_of = dict.fromkeys(RESOURCES, 0)
        for node, owner in self.owner.items():
            if owner != player:
                continue
            for tile in self.node_hexes[node]:
                resource = self.hexes[tile]["resource"]
                if resource != "desert" and tile != self.robber:
                    pips_of[resource] += self.size[node] * pips(self.hexes[tile]["number"])
        return tuple(pips_of[resource] / 36 for resource in RESOURCES)

    def has_room(self, node):
        """True if a settlement may stand here: free, and nobody next door."""
        return node not in self.owner and not any(other in self.owner for other in self.neighbours[node])

    def site_worth(self, node):
        """How good a settlement here would be for you, given what you have already."""
        mine = self.production(self.you)
        worth = 0.0
        for resource, count in self.yields(node).items():
            worth += WORTH[resource] * count
            worth += 2.0 if mine[RESOURCES.index(resource)] == 0 else 0.0
        port = self.ports.get(node)
        if port == "any":
            worth += 1.0
        elif port:
            worth += 0.5 + 6 * mine[RESOURCES.index(port)]
        return worth

    def network(self, player):
        """Nodes from which a player may build a road."""
        nodes = {node for node, owner in self.owner.items() if owner == player}
        for edge, owner in self.road_owner.items():
            if owner == player:
                nodes.update(self.edges[edge])
        return {node for node in nodes if self.owner.get(node, player) == player}

    def touched(self, player):
        """Nodes at the ends of a player's roads: where a settlement may go."""
        return {
            node for edge, owner in self.road_owner.items() if owner == player for node in self.edges[edge]
        }

    def reach(self, player, most_roads):
        """Every node that new roads can reach: node -> edges to build, the first one first."""
        paths = dict.fromkeys(sorted(self.network(player)), ())
        border = list(paths)
        for _ in range(most_roads):
            fresh = []
            for node in border:
                if self.owner.get(node, player) != player:
                    continue
                for edge, other in self.node_edges[node]:
                    if edge not in self.road_owner and other not in paths:
                        paths[other] = (*paths[node], edge)
                        fresh.append(other)
            border = fresh
        return paths

    def left(self, piece):
        """How many of your pieces of a kind are still in the box."""
        return PIECES[piece] - len(
            self.state["players"][self.you][{"city": "cities"}.get(piece, piece + "s")]
        )
