"""One XRPC call as a method sees it, and what a method may answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from firehose.errors import SyntaxInvalid
from firehose.network.accounts import Account
from firehose.network.pds import Pds
from firehose.network.refusals import Refusal, invalid_request


class Verb(StrEnum):
    """Queries are GET, procedures are POST."""

    QUERY = "GET"
    PROCEDURE = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """An answer that is not JSON."""

    content: bytes
    content_type: str


Answer = dict[str, Any] | Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who calls with what; nothing of it is checked yet but that the body is JSON where it should be."""

    pds: Pds
    parameters: Mapping[str, str]
    body: dict[str, Any]
    raw_body: bytes
    content_type: str
    authorization: str | None

    def caller(self) -> Account:
        """The account whose access token this is.

        Raises:
            Refusal: AuthMissing, InvalidToken, ExpiredToken.
        """
        account = self.pds.accounts.find(self.pds.tokens.check_access(self.authorization))
        if account is None:
            raise Refusal("InvalidToken", "the token's account is not here")
        return account

    def writer(self) -> Account:
        """The caller, if the repo of the body is its own and may be written.

        Raises:
            Refusal: as `caller`; or the repo is another's.
        """
        account = self.caller()
        repo = self.body.get("repo")
        if not isinstance(repo, str) or repo.lower() not in (account.did, account.handle):
            raise Refusal("AuthenticationRequired", "the token is not for this repo", 401)
        return self.pds.check_active(account)

    def parameter(self, name: str) -> str:
        """A query parameter that must be there.

        Raises:
            Refusal: InvalidRequest.
        """
        value = self.parameters.get(name)
        if not value:
            raise invalid_request(f"the parameter {name} is missing")
        return value

    def limit(self, default: int, maximum: int) -> int:
        """The parameter `limit`.

        Raises:
            Refusal: InvalidRequest.
        """
        text = self.parameters.get("limit") or str(default)
        if not text.isdecimal() or not 1 <= int(text[:9]) <= maximum:
            raise invalid_request(f"limit: expected 1 to {maximum}")
        return int(text)


T = TypeVar("T")
Method = Callable[[Call], Awaitable[Answer]]


def parsed(parse: Callable[[object], T], value: object) -> T:
    """What `parse` makes of a stranger's value.

    Raises:
        Refusal: InvalidRequest.
    """
    try:
        return parse(value)
    except SyntaxInvalid as error:
        raise invalid_request(str(error)) from None
