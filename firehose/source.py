"""What a tap follows: one stream of frames, wherever they come from."""

from collections.abc import AsyncIterator
from typing import Any, Protocol


class FrameSource(Protocol):
    """Raw frames, each seq once and in order. `Subscriber` is one; several hosts together can be another.

    The seqs are of one numbering, which the source keeps over restarts: a tap passes them on, and opens the
    source with the highest that it has. Frames without a seq (#info) may come in between.
    """

    def frames(self) -> AsyncIterator[bytes]:
        """Every frame after the one that the source was opened with, until it is closed.

        Raises: SubscriptionError: the stream cannot be followed any further.
        """

    def done(self, seq: int) -> None:
        """Everything up to `seq` is dealt with and on disk: positions upstream may be saved."""

    def stats(self) -> dict[str, Any]:
        """At least `url`, `state`, `cursor` and `counters`, for people."""

    async def close(self) -> None:
        """Leave; `frames` ends."""
