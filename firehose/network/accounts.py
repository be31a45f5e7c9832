"""Accounts: who they are, what signs for them, and whether they are active."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from firehose.cid import Cid
from firehose.errors import SyntaxInvalid
from firehose.keys import SigningKey
from firehose.network.refusals import Refusal, invalid_request
from firehose.network.store import Store
from firehose.syntax import Did, Tid, parse_handle

_COLUMNS = "did, handle, email, password_hash, signing_key, status, head, rev"


class AccountStatus(StrEnum):
    """The statuses that this network gives; a real one has more."""

    ACTIVE = "active"
    DEACTIVATED = "deactivated"  # by its owner, who may come back
    TAKENDOWN = "takendown"  # by the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account as it is stored."""

    did: Did
    handle: str
    email: str | None
    password_hash: str = field(repr=False)
    secret: bytes = field(repr=False)  # of the signing key: parsing one costs more than a write does
    status: AccountStatus
    head: Cid | None  # None only before its first commit, inside one transaction
    rev: Tid | None

    @property
    def signing_key(self) -> SigningKey:
        """Signs this account's commits."""
        return SigningKey.from_bytes(self.secret)

    @property
    def is_active(self) -> bool:
        """Whether its repo is served and may be written."""
        return self.status is AccountStatus.ACTIVE

    def describe(self) -> dict[str, Any]:
        """The fields `active` and `status` of the protocol."""
        return {"active": True} if self.is_active else {"active": False, "status": self.status.value}


class Accounts:
    """The accounts table; parsed accounts are kept in memory."""

    def __init__(self, store: Store, *, clock: Callable[[], int]) -> None:
        """Keep accounts in `store`; `clock` gives epoch milliseconds."""
        self._store = store
        self._clock = clock
        self._cache: dict[str, Account] = {}

    def insert(self, account: Account) -> None:
        """Add an account.

        Raises:
            Refusal: HandleNotAvailable.
        """
        try:
            self._store.execute(
                "INSERT INTO accounts (did, handle, email, password_hash, signing_key, status, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                account.did,
                account.handle,
                account.email,
                account.password_hash,
                account.secret,
                account.status,
                self._clock(),
            )
        except sqlite3.IntegrityError:
            raise Refusal("HandleNotAvailable", f"the handle {account.handle} is taken") from None

    def find(self, identifier: str) -> Account | None:
        """The account with this DID or handle, None if there is none here."""
        if identifier in self._cache:
            return self._cache[identifier]
        column = "did" if identifier.startswith("did:") else "handle"
        row = self._store.row(f"SELECT {_COLUMNS} FROM accounts WHERE {column} = ?", identifier.lower())
        if row is None:
            return None
        account = _account(row)
        self._cache[account.did] = account
        return account

    def get(self, identifier: str) -> Account:
        """The account with this DID or handle.

        Raises:
            Refusal: RepoNotFound.
        """
        account = self.find(identifier)
        if account is None:
            raise Refusal("RepoNotFound", f"there is no account {identifier[:256]} here")
        return account

    def served(self, did: str) -> Account:
        """The account with this DID, if its repo may be shown.

        Raises:
            Refusal: RepoNotFound, RepoDeactivated, RepoTakendown.
        """
        account = self.get(did)
        if not account.is_active:
            raise Refusal(f"Repo{account.status.value.capitalize()}", f"{did} is {account.status}")
        return account

    def page(self, after: str, limit: int) -> list[Account]:
        """At most `limit` accounts in the order of their DIDs."""
        rows = self._store.rows(
            f"SELECT {_COLUMNS} FROM accounts WHERE did > ? ORDER BY did LIMIT ?", after, limit
        )
        return [_account(row) for row in rows]

    def count(self) -> int:
        """How many accounts there are."""
        row = self._store.row("SELECT count(*) FROM accounts")
        return int(row[0]) if row else 0

    def set_status(self, did: Did, status: AccountStatus) -> None:
        """Change whether it is active."""
        self._store.execute("UPDATE accounts SET status = ? WHERE did = ?", status, did)
        self.forget(did)

    def set_handle(self, did: Did, handle: str) -> None:
        """Change its handle.

        Raises:
            Refusal: HandleNotAvailable.
        """
        try:
            self._store.execute("UPDATE accounts SET handle = ? WHERE did = ?", handle, did)
        except sqlite3.IntegrityError:
            raise Refusal("HandleNotAvailable", f"the handle {handle} is taken") from None
        self.forget(did)

    def set_head(self, did: Did, head: Cid, rev: Tid) -> None:
        """Note its latest commit."""
        self._store.execute("UPDATE accounts SET head = ?, rev = ? WHERE did = ?", head.bytes, rev, did)
        if did in self._cache:
            self._cache[did] = replace(self._cache[did], head=head, rev=rev)

    def forget(self, did: str) -> None:
        """Drop what is cached: it was changed, or the transaction that changed it has failed."""
        self._cache.pop(did, None)


def check_handle(handle: object) -> str:
    """A handle in its normal form.

    Raises:
        Refusal: InvalidHandle.
    """
    try:
        return parse_handle(handle).lower()
    except SyntaxInvalid as error:
        raise Refusal("InvalidHandle", str(error)) from None


def check_text(value: object, name: str, max_chars: int) -> str:
    """A text field of a call.

    Raises:
        Refusal: InvalidRequest.
    """
    if not isinstance(value, str) or not value or len(value) > max_chars:
        raise invalid_request(f"{name}: expected a text of 1 to {max_chars} characters")
    return value


def _account(row: tuple[Any, ...]) -> Account:
    did, handle, email, password_hash, secret, status, head, rev = row
    return Account(
        did=Did(did),
        handle=handle,
        email=email,
        password_hash=password_hash,
        secret=bytes(secret),
        status=AccountStatus(status),
        head=None if head is None else Cid.from_bytes(head),
        rev=None if rev is None else Tid(rev),
    )
