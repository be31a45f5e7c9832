"""The terms of a lease: what an acquire asks for, checked once."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from leases.conditions import default_conditions
from leases.errors import FieldInvalid
from leases.lease import MAX_CONDITIONS, MAX_TTL_MS, check_did, check_range, check_word


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a lease is given for; durations in milliseconds.

    Raises: FieldInvalid: a value that no lease can have.
    """

    environment_type: str
    authority_did: str
    ttl_ms: int
    max_ttl_ms: int | None  # from the moment it is leased; None: no limit
    sleep_after_ms: int
    expiry_conditions: tuple[str, ...]
    tier: str
    image: str | None

    def __post_init__(self) -> None:
        check_word("environment_type", self.environment_type)
        check_did("authority_did", self.authority_did)
        check_range("ttl_ms", self.ttl_ms, 1, MAX_TTL_MS)
        check_range("sleep_after_ms", self.sleep_after_ms, 1, MAX_TTL_MS)
        if self.max_ttl_ms is not None:
            check_range("max_ttl_ms", self.max_ttl_ms, 1, MAX_TTL_MS)
        if len(self.expiry_conditions) > MAX_CONDITIONS:
            raise FieldInvalid(
                "expiry_conditions", self.expiry_conditions, f"at most {MAX_CONDITIONS} conditions"
            )
        for condition in self.expiry_conditions:
            check_word("condition", condition)
        check_word("tier", self.tier)
        if self.image is not None:
            check_word("image", self.image)

    def expires_at(self, at: int) -> int:
        """Give when a lease that begins at `at` expires unless it is renewed."""
        return at + min(self.ttl_ms, self.max_ttl_ms or self.ttl_ms)

    def max_expires_at(self, at: int) -> int | None:
        """Give when a lease that begins at `at` expires at the latest; None: renewals may go on for ever."""
        return None if self.max_ttl_ms is None else at + self.max_ttl_ms

    def as_detail(self) -> dict[str, Any]:
        """Give them as JSON, for the history."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def conditions_for(asked: Iterable[str] | None, environment_type: str) -> tuple[str, ...]:
    """Give the conditions asked for, without doubles, or those of the environment type."""
    if asked is None:
        return default_conditions(environment_type)
    if isinstance(asked, str):
        raise FieldInvalid("expiry_conditions", asked, "a list of conditions, not one string")
    return tuple(dict.fromkeys(asked))
