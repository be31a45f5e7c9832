"""The report that `simulate` ends with, out of what every actor told; docs/records.md has its fields."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.faces import Report
from actors.latency import percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A game that is over: its last status, what it tells a next one, and its answer times in ms."""

    status: Report
    sequel: Report
    event_to_action_ms: list[float]


def summary(
    played: Sequence[Played],
    *,
    agents: list[Report],
    leases: list[Report],
    hosts: list[Report],
    tap: Report,
    refused: dict[str, int],
) -> Report:
    """One object for the whole simulation; numbers add up over its games."""
    statuses = [game.status for game in played]
    skipped = sum(status["skipped"] for status in statuses)
    ended = sum(lease["status"] == "destroyed" for lease in leases)
    return {
        "environment_type": statuses[0]["type"],
        "games": [_game(game) for game in played],
        "agents": len(agents),
        "leases": {
            "acquired": len(leases),
            "ended": ended,
            "live": sum(lease["status"] in ("active", "sleeping") for lease in leases),
        },
        "sandboxes": {
            "created": sum(host["made"] for host in hosts),
            "destroyed": ended,
            "left": sum(host["sandboxes"] for host in hosts),
            "tier": hosts[0]["tier"],
        },
        "hosts": [{key: host[key] for key in ("node", "tier", "passed_over", "lacks")} for host in hosts],
        "turns": {
            "taken": sum(status["outcome"]["turns"] for status in statuses) - skipped,
            "skipped": skipped,
        },
        "turn_ms": percentiles([ms for report in agents for ms in report["turn_ms"]]),
        "event_to_action_ms": percentiles([ms for game in played for ms in game.event_to_action_ms]),
        "events": {key: tap.get(key) for key in ("seen", "verified", "rejected")},
        "refused": refused,
        "game_log_sha256": _digest([status["game_log_sha256"] for status in statuses]),
    }


def _game(game: Played) -> dict[str, Any]:
    told = {"environment": game.status["environment"], **game.status["outcome"]}
    return told | ({"deaths": game.status["deaths"]} if game.sequel else {})


def _digest(digests: list[str]) -> str:
    """Of one game its own; of several the SHA-256 over their digests, one a line, in order."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
