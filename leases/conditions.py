"""Which endings end which leases. Pure: the ledger asks here, then writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from leases.lease import LIVE, Lease

# what a lease ends on when acquire names nothing; the conditions are NSIDs without our authority
DEFAULT_CONDITIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "rpg": ("agent.death", "game.finished", "campaign.ended"),
        "catan": ("game.finished",),
        "coding": ("task.complete", "pr.merged"),
    }
)
OTHER_CONDITIONS: Final = ("game.finished",)


class Verdict(StrEnum):
    """What an ending does to a lease; declared from the strongest to the weakest."""

    ENDS = "ends"
    NOT_AUTHORITY = "not_authority"
    NOT_A_CONDITION = "not_a_condition"
    NOT_LIVE = "not_live"
    OTHER_LEASE = "other_lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A verified record that says something is over; its schema is in config/lexicons."""

    condition: str  # the record's NSID without our authority, e.g. "game.finished"
    environment_id: str
    author_did: str
    subject_did: str | None = None  # None: everyone in the environment


def judge(ending: Ending, lease: Lease) -> Verdict:
    """Say whether `ending` ends `lease` and, if not, why not (counted, never raised)."""
    if ending.environment_id != lease.environment_id or ending.subject_did not in (None, lease.agent_did):
        return Verdict.OTHER_LEASE
    if ending.author_did != lease.authority_did:
        return Verdict.NOT_AUTHORITY  # or any account on the firehose could end any game
    if ending.condition not in lease.expiry_conditions:
        return Verdict.NOT_A_CONDITION
    return Verdict.ENDS if lease.status in LIVE else Verdict.NOT_LIVE


def sum_up(verdicts: Iterable[Verdict]) -> Verdict:
    """Give the word an ending is counted under: its strongest verdict, OTHER_LEASE if it met no lease."""
    met = set(verdicts)
    return next((verdict for verdict in Verdict if verdict in met), Verdict.OTHER_LEASE)


def default_conditions(environment_type: str) -> tuple[str, ...]:
    """Give the conditions of an environment type that acquire was not told about."""
    return DEFAULT_CONDITIONS.get(environment_type, OTHER_CONDITIONS)
