"""How often something may happen: so many at once, then so many a second. Pure."""


class Pace:
    """A leaky bucket. Whoever asks is told how long to wait, and is expected to.

    Args:
        rate: per second, in the long run.
        burst: at once, after a pause.
    """

    __slots__ = ("_due", "_each_s", "_lead_s")

    def __init__(self, *, rate: float, burst: int) -> None:
        self._each_s, self._lead_s = 1 / rate, burst / rate
        self._due: float | None = None

    def delay_s(self, now: float) -> float:
        """Return the seconds to wait before the next one, at `now` of a monotonic clock."""
        earliest = now - self._lead_s
        self._due = max(self._due if self._due is not None else earliest, earliest) + self._each_s
        return max(0.0, self._due - now)
