"""Which key signs for which account, as far as we know, and when to ask again.

A key is parsed once and kept for a day. If a signature does not fit it, the account may have rotated its
key: the document is asked for once more, past every cache, and then the answer is final. How often that may
happen is limited for each account, because anybody can send a signature that does not fit.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from firehose.document import pds_url, signing_key
from firehose.errors import DocumentInvalid
from firehose.keys import VerifyingKey
from firehose.syntax import Did

KEY_TTL_MS: Final = 86_400_000  # 24 h; the relay of github.com/bluesky-social/indigo keeps identities as long
FAILURE_TTL_MS: Final = 120_000  # 2 min; the same relay's
MAX_ACCOUNTS: Final = 200_000  # ours: of which keys are kept, the least recently used go first
REFRESHES: Final = 5  # ours: of one account …
REFRESH_WINDOW_MS: Final = 60_000  # … within this time


class KeyState(StrEnum):
    """How a signature and an account's key stand to each other."""

    SIGNED = "signed"
    NOT_SIGNED = "not-signed"
    NEEDED = "needed"  # the document, before anything can be said
    NO_KEY = "no-key"  # the document has no key that we can use
    OUT_OF_REACH = "out-of-reach"  # the document could not be had: nothing is known
    OTHER_HOST = "other-host"  # the account lives on another PDS than the one that speaks for it here


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveDid:
    """A need of the verifier: fetch this account's DID document and `learn` it."""

    did: Did
    refresh: bool = False  # past every cache: what was known may be out of date


@dataclass(slots=True, kw_only=True)
class _Entry:
    key: VerifyingKey | None = None
    host: str | None = None  # of its PDS, with the port if there is one
    trouble: str = ""  # why there is no key
    in_reach: bool = True  # False if the last resolution failed
    learned_ms: int = 0
    refreshed_for: int | None = None  # the seq of the frame that asked for a refresh
    refreshes_ms: deque[int] = field(default_factory=deque)


class KeyBook:
    """The keys of the accounts of one stream."""

    def __init__(self, *, host: str | None = None) -> None:
        """If `host` is given, accounts must live on that PDS."""
        self._host = host
        self._entries: OrderedDict[Did, _Entry] = OrderedDict()
        self._now_ms = 0

    def check(
        self, did: Did, seq: int, is_signed_by: Callable[[VerifyingKey], bool], now_ms: int
    ) -> tuple[KeyState, ResolveDid | None, str]:
        """Say whether the account signed the commit of frame `seq`.

        Returns: the state, the need if the state is NEEDED, and a detail for a person.
        """
        self._now_ms = now_ms
        entry = self._entries.get(did)
        if entry is None or self._is_stale(entry):
            return KeyState.NEEDED, ResolveDid(did=did), ""
        self._entries.move_to_end(did)
        is_signed = entry.key is not None and is_signed_by(entry.key)
        is_at_home = self._host is None or entry.host == self._host
        if is_signed and is_at_home:
            return KeyState.SIGNED, None, ""
        if entry.refreshed_for != seq and entry.in_reach and self._may_refresh(entry):
            entry.refreshed_for = seq
            return KeyState.NEEDED, ResolveDid(did=did, refresh=True), ""
        if not entry.in_reach:
            return KeyState.OUT_OF_REACH, None, entry.trouble
        if is_signed:
            return KeyState.OTHER_HOST, None, f"its PDS is {entry.host}"
        return (KeyState.NO_KEY if entry.key is None else KeyState.NOT_SIGNED), None, entry.trouble

    def trusted(self, did: Did, now_ms: int) -> VerifyingKey | None:
        """The key that `check` would try, if that is all it would have to do."""
        self._now_ms = now_ms
        entry = self._entries.get(did)
        if entry is None or entry.key is None or self._is_stale(entry):
            return None
        if self._host is not None and entry.host != self._host:
            return None
        self._entries.move_to_end(did)
        return entry.key

    def learn(self, did: Did, document: Mapping[str, Any] | None) -> None:
        """Note the document of an account, or that it could not be had."""
        entry = self._entries.setdefault(did, _Entry())
        entry.learned_ms = self._now_ms
        entry.in_reach = document is not None
        if document is None:
            entry.trouble = "its document could not be had"  # a key that was known stays: it may still fit
        else:
            try:
                entry.key, entry.trouble = signing_key(document, did), ""
                entry.host = _pds_host(document, did)
            except DocumentInvalid as error:
                entry.key, entry.trouble = None, error.reason
        while len(self._entries) > MAX_ACCOUNTS:
            self._entries.popitem(last=False)

    def key_of(self, did: Did) -> VerifyingKey | None:
        """The key that was last learned for an account, or None."""
        entry = self._entries.get(did)
        return None if entry is None else entry.key

    def host_of(self, did: Did) -> str | None:
        """The host of the PDS that the account's document named last, or None if it is not known."""
        entry = self._entries.get(did)
        return None if entry is None else entry.host

    def forget(self, did: Did) -> None:
        """Drop what is known of an account: its document may have changed."""
        entry = self._entries.get(did)
        if entry is not None:
            entry.learned_ms = -KEY_TTL_MS  # so that it is asked for again; how often it was refreshed stays
            entry.key = None

    def _is_stale(self, entry: _Entry) -> bool:
        lifetime = KEY_TTL_MS if entry.in_reach else FAILURE_TTL_MS
        return self._now_ms - entry.learned_ms >= lifetime

    def _may_refresh(self, entry: _Entry) -> bool:
        while entry.refreshes_ms and self._now_ms - entry.refreshes_ms[0] >= REFRESH_WINDOW_MS:
            entry.refreshes_ms.popleft()
        if len(entry.refreshes_ms) >= REFRESHES:
            return False
        entry.refreshes_ms.append(self._now_ms)
        return True


def _pds_host(document: Mapping[str, Any], did: Did) -> str | None:
    try:
        return urlsplit(pds_url(document, did)).netloc.lower()
    except (
        DocumentInvalid
    ):  # an account may have a key and no PDS: then nobody can be asked for its repository
        return None
