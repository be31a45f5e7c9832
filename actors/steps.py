"""Steps of a loop that must not stop one another."""

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


class Steps:
    """Runs them; `failures` has the reason of each that failed last time, for `status`."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    async def run(self, name: str, step: Awaitable[None]) -> None:
        """Carry out one step; what it raises is logged once and kept until it succeeds."""
        try:
            await step
            self.failures.pop(name, None)
        except Exception as error:  # noqa: BLE001  one failing step must not stop the others; shown by status
            if self.failures.get(name) != str(error):
                log.warning("step failed", extra={"step": name, "error": str(error)})
            self.failures[name] = str(error)
