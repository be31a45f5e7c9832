"""The last words to an agent whose part is over: one notice to its turn script, which asks for nothing.

Best effort: the script brings the agent's own files up to date with it (images/rpg/data.md). An image that
keeps no such files gets none.
"""

from typing import Any, Final

from actors import records

ENVIRONMENT_TYPES: Final = frozenset({"rpg"})  # whose images understand a notice
GRACE_S: Final = (
    0.5  # a sandbox outlives its lease by this much, so that the notice finds it; a turn takes 10 ms
)


def notice_of(collection: str, record: dict[str, Any]) -> dict[str, Any] | None:
    """The state that tells a turn script of this ending; None for one that it need not know."""
    if collection == records.AGENT_DEATH:
        return {"notice": "death", "cause": record["cause"]}
    if collection == records.GAME_FINISHED:
        return {"notice": "end", "reason": record["reason"]}
    return None
