"""What a pool tells of itself."""

from collections import Counter
from typing import Any

from sandboxes.pool.ground import Ground
from sandboxes.pool.room import Room
from sandboxes.pool.states import Kind
from sandboxes.spec import SandboxState


def stats(ground: Ground, room: Room) -> dict[str, Any]:
    """Return the sandboxes by state, and what was counted and timed; JSON-ready."""
    sandboxes = ground.book.entries(Kind.SANDBOX)
    slots = Counter(entry.state for entry in ground.book.entries(Kind.SLOT))
    states = Counter(entry.state for entry in sandboxes)
    tally = ground.tally
    return {
        "total": len(sandboxes),
        **{state.value: states[state] for state in SandboxState if state is not SandboxState.DELETED},
        "dozing": sum(entry.is_dozing for entry in sandboxes),
        "capacity": ground.policy.capacity,
        "in_use": room.in_use(),
        "slots": {
            "warm": slots[SandboxState.WARM],
            "warming": slots[SandboxState.WARMING],
            "target": ground.policy.warm_slots,
            "made": tally.slots_made,
        },
        "resume_warm_hits": tally.warm_hits.total(),
        "resume_cold_hits": tally.cold_hits["local"] + tally.cold_hits["store"],
        "resume_hits": {source: (tally.warm_hits + tally.cold_hits)[source] for source in SOURCES},
        "prewarmed": tally.prewarmed,
        "prewarm_hits": tally.prewarm_hits,
        "slot_hits": tally.slot_hits,
        "slot_misses": tally.slot_misses,
        "evictions": dict(tally.evictions),
        "not_evicted": dict(tally.not_evicted),
        "refused": tally.refused,
        "died": tally.died,
        "transitions": tally.transitions(),
    }


# Where a sandbox came from that was asked for: it was up, or frozen; had a snapshot, on this node or in the
# shared store alone; or it was new.
SOURCES = ("up", "nap", "doze", "local", "store", "fresh")
