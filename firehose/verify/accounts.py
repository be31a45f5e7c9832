"""What is known of each account of a stream, within a bound of memory."""

from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

from firehose.cid import Cid
from firehose.syntax import Did, Tid

MAX_ACCOUNTS: Final = 200_000  # ours: about 100 MB; the least recently used go first


class RepoState(
    NamedTuple
):  # and not a frozen dataclass: one is made for each commit, in a third of the time
    """What was last accepted of a repository."""

    rev: Tid
    data: Cid


class AccountState(NamedTuple):
    """What the stream said last of an account."""

    repo: RepoState | None = None  # None: no commit of it was accepted yet
    active: bool = True
    status: str | None = None  # an open vocabulary; `active` decides
    seq: int | None = None  # of the #account that said so


class AccountStore(Protocol):
    """Where accounts go that memory has no room for."""

    def load(self, did: Did) -> AccountState | None:
        """What was saved last of an account, or None."""

    def save(self, did: Did, state: AccountState) -> None:
        """Keep what is known of an account."""


UNKNOWN: Final = AccountState()


class AccountBook:
    """The accounts of one stream; what does not fit goes to the store, or is forgotten without one."""

    def __init__(self, *, max_accounts: int = MAX_ACCOUNTS, store: AccountStore | None = None) -> None:
        """Keep `max_accounts` in memory."""
        self._states: OrderedDict[Did, AccountState] = OrderedDict()
        self._max_accounts = max_accounts
        self._store = store

    def __len__(self) -> int:
        return len(self._states)

    def get(self, did: Did) -> AccountState:
        """What is known of an account; `UNKNOWN` if nothing is."""
        state = self._states.get(did)
        if state is not None:
            self._states.move_to_end(did)
            return state
        if self._store is None:
            return UNKNOWN
        state = self._store.load(did)
        if state is None:
            return UNKNOWN
        self.put(did, state)
        return state

    def put(self, did: Did, state: AccountState) -> None:
        """Note what is known now."""
        states = self._states
        states[did] = state
        states.move_to_end(did)
        while len(states) > self._max_accounts:
            evicted, old = states.popitem(last=False)
            if self._store is not None:
                self._store.save(evicted, old)

    def put_repo(self, did: Did, repo: RepoState | None) -> None:
        """Note where an account's repository stands."""
        known = self.get(did)
        self.put(did, AccountState(repo, known.active, known.status, known.seq))

    def clear(self) -> None:
        """Forget everything in memory; what the store has stays there."""
        self._states.clear()

    def flush(self) -> None:
        """Hand everything to the store, such as before the process ends."""
        if self._store is not None:
            for did, state in self._states.items():
                self._store.save(did, state)

    def items(self) -> list[tuple[Did, AccountState]]:
        """Every account in memory."""
        return list(self._states.items())
