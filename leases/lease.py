"""A lease: the right of one agent to one sandbox in one environment. Pure data and its checks."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from leases.errors import FieldInvalid

LeaseId = NewType("LeaseId", str)

# atproto.com/specs/did: method in lower case, never ends in a colon or percent sign, at most 2 KiB
_DID: Final = re.compile(r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]", re.ASCII)
MAX_DID_CHARS: Final = 2048
# printable, no space, no leading colon: with the "::" check below the canonical key stays unambiguous
_ENVIRONMENT_ID: Final = re.compile(r"[A-Za-z0-9_~][A-Za-z0-9._~:/@#%+=-]{0,511}", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}", re.ASCII)
_KEY: Final = re.compile(r"[!-~]{1,2600}", re.ASCII)  # long enough for a canonical key
MAX_CONDITIONS: Final = 32
MAX_TEXT_CHARS: Final = 4096  # a reference to an event, somebody's words for an ending
MAX_TTL_MS: Final = 366 * 86_400_000  # a year: more than any environment lasts, and far from int64 overflow


class LeaseStatus(StrEnum):
    """Where a lease stands; ACTIVE and SLEEPING are live."""

    ACTIVE = "active"
    SLEEPING = "sleeping"
    EXPIRED = "expired"  # ended; the tier has not yet confirmed that nothing of the sandbox is left
    DESTROYED = "destroyed"


LIVE: Final = frozenset({LeaseStatus.ACTIVE, LeaseStatus.SLEEPING})


class SandboxState(StrEnum):
    """Where a sandbox stands, as its host last reported it; WARMING is also our intent before it exists."""

    COLD = "cold"
    WARMING = "warming"
    WARM = "warm"
    RUNNING = "running"
    WAITING = "waiting"
    SUSPENDING = "suspending"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row of the ledger; times are epoch milliseconds."""

    id: LeaseId
    agent_did: str
    environment_id: str
    environment_type: str
    authority_did: str
    tier: str
    image: str | None
    leased_at: int
    last_activity: int
    expires_at: int
    max_expires_at: int | None  # None: renewals may slide it for ever
    ttl_ms: int
    sleep_after_ms: int
    expiry_conditions: tuple[str, ...]
    status: LeaseStatus
    epoch: int
    sandbox_id: str
    node_id: str | None  # None: not placed in this epoch
    last_turn: int | None
    ended_at: int | None
    ended_by: str | None

    @property
    def is_live(self) -> bool:
        """Whether the agent still holds its sandbox."""
        return self.status in LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """What `acquire` gives: the lease, and whether this very call created it."""

    lease: Lease
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One sandbox as the ledger knows it: the intent to create it, then what its host reported."""

    sandbox_id: str
    lease_id: LeaseId
    epoch: int
    node_id: str
    tier: str
    image: str | None
    state: SandboxState
    placed_at: int
    changed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the firehose last said about an identity."""

    did: str
    handle: str | None
    active: bool
    status: str | None
    rev: str | None
    seq: int | None


def lease_id_of(agent_did: str, environment_id: str) -> LeaseId:
    """Give the canonical key of an agent in an environment; two different pairs never share one."""
    check_did("agent_did", agent_did)
    if not is_environment_id(environment_id):
        raise FieldInvalid(
            "environment_id", environment_id, "1-512 printable characters, no space and no '::'"
        )
    return LeaseId(f"{agent_did}::{environment_id}")


def is_environment_id(text: str) -> bool:
    """Say whether an environment can have this id."""
    return _ENVIRONMENT_ID.fullmatch(text) is not None and "::" not in text


def check_did(field: str, value: str) -> None:
    """Refuse what is no DID by syntax."""
    if len(value) > MAX_DID_CHARS or not _DID.fullmatch(value):
        raise FieldInvalid(field, value, "a DID is 'did:', a method, ':' and an identifier")


def check_word(field: str, value: str) -> None:
    """Refuse what is no short name: a tier, an image, a node, a sandbox, a condition, a counter."""
    if not _WORD.fullmatch(value):
        raise FieldInvalid(field, value, "1-256 of the characters a-z A-Z 0-9 . _ : / @ + -")


def check_key(field: str, value: str) -> None:
    """Refuse what is no identifier of ours: a sandbox id, a cursor's name."""
    if not _KEY.fullmatch(value):
        raise FieldInvalid(field, value, "1-2600 printable characters without a space")


def check_text(field: str, value: str | None) -> None:
    """Refuse text that is too long to keep."""
    if value is not None and (not value or len(value) > MAX_TEXT_CHARS):
        raise FieldInvalid(field, value, f"1-{MAX_TEXT_CHARS} characters, or nothing at all")


def check_range(field: str, value: int, least: int, most: int) -> None:
    """Refuse a whole number outside `least`..`most`, and what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FieldInvalid(field, value, f"a whole number from {least} to {most}")
