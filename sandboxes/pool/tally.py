"""What a pool counts and times."""

import statistics
from collections import Counter, defaultdict, deque
from typing import Any, Final

from sandboxes.pool.entry import Entry
from sandboxes.pool.states import Cause

KEPT_TIMES: Final = 256  # of each kind of transition, the newest


class Tally:
    """Counts since this process started: who was found alive, woken, evicted, and how long it took."""

    def __init__(self) -> None:
        self.warm_hits: Counter[str] = Counter()  # by source: up, nap, doze
        self.cold_hits: Counter[str] = Counter()  # by source: local, store; fresh has no snapshot
        self.evictions: Counter[str] = Counter()  # by kind: failed, cold, slot, warm, waiting
        self.not_evicted: Counter[str] = Counter()  # by reason
        self.slots_made = 0
        self.prewarmed = self.prewarm_hits = self.slot_hits = self.slot_misses = self.refused = 0
        self.naps = self.dozes = self.slept = self.woken = self.made = self.destroyed = self.died = 0
        self._times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT_TIMES))
        self._counts: Counter[str] = Counter()

    def observe(self, before: Entry, cause: Cause, after: Entry, lasted_ms: float) -> None:
        """Note a transition of the book."""
        kind = "slot " if before.is_slot else ""
        key = f"{kind}{before.state} > {after.state}"
        self._counts[key] += 1
        self._times[key].append(lasted_ms)
        if cause is Cause.DIED:
            self.died += 1

    def transitions(self) -> dict[str, dict[str, Any]]:
        """Return how often each transition was, and how many ms its state before had lasted: p50, p99."""
        return {
            key: {"n": self._counts[key], "p50_ms": _rank(times, 0.5), "p99_ms": _rank(times, 0.99)}
            for key, times in sorted(self._times.items())
        }


def _rank(times: deque[float], share: float) -> float:
    if share == 0.5:
        return round(statistics.median(times), 2)
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)
