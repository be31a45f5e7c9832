"""Whose sandbox is meant: one per session, per user, per agent, or one for all. Pure."""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType
from urllib.parse import quote

from sandboxes.names import HASH_CHARS, MAX_NAME_CHARS, check_name
from sandboxes.sharing.errors import ScopeKeyMissing, UnknownScope

ScopeKey = NewType("ScopeKey", str)

MAX_PART_CHARS: Final = 2048  # as long as a DID may be


class Scope(StrEnum):
    """Who shares a sandbox."""

    SESSION = "session"  # the calls of one session
    USER = "user"  # one user's sessions with one agent
    AGENT = "agent"  # everybody who talks to one agent
    GLOBAL = "global"  # everybody


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks; blank counts as not given."""

    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None


# GLOBAL needs nobody's name. A user belongs to an agent: two agents never share what one user gave them.
_PARTS: Final = {
    Scope.SESSION: ("session_id",),
    Scope.USER: ("agent_id", "user_id"),
    Scope.AGENT: ("agent_id",),
    Scope.GLOBAL: (),
}


def parse_scope(text: str) -> Scope:
    """Return the scope of this name.

    Raises:
        UnknownScope: there is none.
    """
    try:
        return Scope(text)
    except ValueError:
        raise UnknownScope(text, ", ".join(Scope)) from None


def key_of(scope: Scope, caller: Caller) -> ScopeKey | None:
    """Return the key under which this caller's sandbox is known; two different ones never share a key.

    None: nobody's session, in the scope SESSION; such a sandbox is for one use, and nothing of it is stored.
    In the other scopes somebody expects to find files again, so a missing name is an error.

    Raises:
        ScopeKeyMissing: the scope needs a part that was not given, or that cannot be one.

    >>> key_of(Scope.USER, Caller(agent_id="did:plc:a", user_id="ann/b"))
    'user/did%3Aplc%3Aa/ann%2Fb'
    """
    values = [(getattr(caller, part) or "").strip() for part in _PARTS[scope]]
    if scope is Scope.SESSION and not values[0]:
        return None
    for part, value in zip(_PARTS[scope], values, strict=True):
        if not value:
            raise ScopeKeyMissing(scope, part, "was not given")
        if len(value) > MAX_PART_CHARS or not value.isprintable():
            raise ScopeKeyMissing(scope, part, f"is not 1-{MAX_PART_CHARS} printable characters")
    return ScopeKey("/".join((scope.value, *(quote(value, safe="") for value in values))))


def sandbox_name(key: ScopeKey) -> str:
    """Return the name of the sandbox of a key: a readable slug and a hash of the whole key."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:HASH_CHARS]
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower())[: MAX_NAME_CHARS - HASH_CHARS - 1].strip("-")
    return check_name(f"{slug}-{digest}")
