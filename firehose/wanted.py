"""What one client of a stream asked for, and who of many wants a frame without asking each of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeVar

MAX_WANTED_DIDS: Final = 10_000  # Jetstream's limits
MAX_WANTED_COLLECTIONS: Final = 100
OPTIONS_UPDATE: Final = "options_update"  # Jetstream's word, and its form: {"type", "payload"}
_FIELDS: Final = ("wantedDids", "wantedCollections")


class Filterable(Protocol):
    """What filters look at."""

    @property
    def did(self) -> str | None:
        """Whose event it is."""

    @property
    def collections(self) -> tuple[str, ...]:
        """Of all ops of a #commit; empty for other events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one client asked for; None means everything."""

    dids: frozenset[str] | None = None
    collections: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()  # "app.bsky." of "app.bsky.*"; only with `collections`

    @classmethod
    def parse(cls, dids: Iterable[str], collections: Iterable[str]) -> Self:
        """Read the repeated query parameters; nothing given means everything.

        Raises:
            ValueError: more than the limits, or a `*` that does not end a prefix.
        """
        wanted_dids, patterns = frozenset(dids), frozenset(collections)
        if len(wanted_dids) > MAX_WANTED_DIDS:
            raise ValueError(f"wantedDids: at most {MAX_WANTED_DIDS}")
        if len(patterns) > MAX_WANTED_COLLECTIONS:
            raise ValueError(f"wantedCollections: at most {MAX_WANTED_COLLECTIONS}")
        prefixes = tuple(sorted(pattern[:-1] for pattern in patterns if pattern.endswith(".*")))
        exact = frozenset(pattern for pattern in patterns if not pattern.endswith(".*"))
        if any("*" in name for name in (*exact, *prefixes)):
            raise ValueError("wantedCollections: '*' may only stand for everything after a dot")
        return cls(dids=wanted_dids or None, collections=exact if patterns else None, prefixes=prefixes)

    @classmethod
    def parse_update(cls, message: str | bytes) -> Self:
        """Read a client's `{"type": "options_update", "payload": {"wantedDids": […], …}}`.

        It says the whole filter: a list that is left out or empty means everything.

        Raises:
            ValueError: it is something else, or over the limits.
        """
        try:
            update: Any = json.loads(message) if isinstance(message, str) else None
        except (ValueError, RecursionError):
            update = None
        if not isinstance(update, dict) or update.get("type") != OPTIONS_UPDATE:
            raise ValueError(f'expected {{"type": "{OPTIONS_UPDATE}", "payload": …}}')
        payload = update.get("payload")
        if not isinstance(payload, dict):
            raise ValueError("payload: expected an object")
        return cls.parse(*(_names(payload, field) for field in _FIELDS))

    def matches(self, entry: Filterable) -> bool:
        """Whether this client gets `entry`: one op of a commit suffices; other events go by their DID."""
        if self.dids is not None and entry.did not in self.dids:
            return False
        if self.collections is None or not entry.collections:
            return True
        if any(name in self.collections for name in entry.collections):
            return True
        return bool(self.prefixes) and any(name.startswith(self.prefixes) for name in entry.collections)


def _names(payload: dict[str, Any], field: str) -> list[str]:
    names = payload.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{field}: expected a list of strings")
    return names


T = TypeVar("T")


class Audience(Generic[T]):
    """Members by what they want: finding those who want a frame costs the same however many do not.

    A member with accounts is found by them alone, one with collections only by each of these; an event
    without collections (#identity, #account, #sync) concerns everybody who follows collections only.
    """

    def __init__(self) -> None:
        self._wanted: dict[T, Wanted] = {}
        self._to_all: dict[T, None] = {}  # dicts as ordered sets: who came first is told first
        self._to_followers: dict[T, None] = {}  # of collections, whoever's they are
        self._by_did: dict[str, dict[T, None]] = {}
        self._by_collection: dict[str, dict[T, None]] = {}
        self._by_prefix: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def members(self) -> list[T]:
        """Everybody."""
        return list(self._wanted)

    def put(self, member: T, wanted: Wanted) -> None:
        """Add a member, or change what it wants."""
        self.discard(member)
        self._wanted[member] = wanted
        if wanted.dids is not None:
            for did in wanted.dids:
                self._by_did.setdefault(did, {})[member] = None
        elif wanted.collections is None:
            self._to_all[member] = None
        else:
            self._to_followers[member] = None
            for name in wanted.collections:
                self._by_collection.setdefault(name, {})[member] = None
            for prefix in wanted.prefixes:
                self._by_prefix.setdefault(prefix, {})[member] = None

    def discard(self, member: T) -> None:
        """Remove a member, if it is one."""
        wanted = self._wanted.pop(member, None)
        if wanted is None:
            return
        self._to_all.pop(member, None)
        self._to_followers.pop(member, None)
        for names, places in (
            (wanted.dids, self._by_did),
            (wanted.collections, self._by_collection),
            (wanted.prefixes, self._by_prefix),
        ):
            for name in names or ():
                _leave(places, name, member)

    def of(self, entry: Filterable) -> list[T]:
        """Who wants `entry`, each once."""
        found = dict(self._to_all)
        if self._by_did and entry.did is not None:
            for member in self._by_did.get(entry.did, ()):
                if self._wanted[member].matches(entry):
                    found[member] = None
        if not self._to_followers:
            return list(found)
        if not entry.collections:
            found |= self._to_followers
        for name in entry.collections:
            found |= self._by_collection.get(name, {})
            dot = name.find(".") if self._by_prefix else -1
            while dot >= 0:
                found |= self._by_prefix.get(name[: dot + 1], {})
                dot = name.find(".", dot + 1)
        return list(found)


def _leave(places: dict[str, dict[T, None]], name: str, member: T) -> None:
    members = places.get(name)
    if members is not None:
        members.pop(member, None)
        if not members:
            del places[name]
