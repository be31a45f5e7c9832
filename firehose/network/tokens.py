"""Sessions: access tokens for two hours, refresh tokens for ninety days, as a real PDS issues them."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import jwt

from firehose.network.refusals import Refusal, not_authenticated
from firehose.network.store import Store

ACCESS_TTL_MS: Final = 2 * 3600 * 1000  # @atproto/pds: two hours
REFRESH_TTL_MS: Final = 90 * 24 * 3600 * 1000  # @atproto/pds: ninety days
REFRESH_GRACE_MS: Final = (
    2 * 3600 * 1000
)  # a used refresh token still works so long: its answer may have been lost
JTI_BYTES: Final = 24
MAX_KNOWN: Final = 10_000  # tokens; checking a signature takes a tenth of a write
_ALGORITHM: Final = "HS256"


class Scope(StrEnum):
    """What a token is for."""

    ACCESS = "com.atproto.access"
    REFRESH = "com.atproto.refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPair:
    """One session."""

    access: str
    refresh: str


class Tokens:
    """Issues and checks tokens; refresh tokens are known by their id, so that each can be revoked."""

    def __init__(
        self, store: Store, secret: bytes, *, clock: Callable[[], int], entropy: Callable[[int], bytes]
    ) -> None:
        """Sign with `secret`; `clock` gives epoch milliseconds, `entropy` random bytes."""
        self._store = store
        self._secret = secret
        self._clock = clock
        self._entropy = entropy
        self._known: dict[str, dict[str, Any]] = {}  # tokens whose signature was checked before

    def issue(self, did: str) -> TokenPair:
        """A new session for this account."""
        now = self._clock()
        jti = base64.urlsafe_b64encode(self._entropy(JTI_BYTES)).decode("ascii")
        self._store.execute("INSERT INTO refresh_tokens VALUES (?, ?, ?)", jti, did, now + REFRESH_TTL_MS)
        return TokenPair(
            access=self._sign(did, Scope.ACCESS, now, now + ACCESS_TTL_MS),
            refresh=self._sign(did, Scope.REFRESH, now, now + REFRESH_TTL_MS, jti),
        )

    def check_access(self, header: str | None) -> str:
        """The DID that the Authorization header proves.

        Raises:
            Refusal: AuthMissing, InvalidToken or ExpiredToken.
        """
        return str(self._claims(header, Scope.ACCESS)["sub"])

    def refresh(self, header: str | None) -> tuple[str, TokenPair]:
        """A new session for a refresh token; the old one stays good for a short while.

        Raises:
            Refusal: AuthMissing, InvalidToken or ExpiredToken.
        """
        claims = self._claims(header, Scope.REFRESH)
        did, jti, now = str(claims["sub"]), str(claims.get("jti")), self._clock()
        found = self._store.row("SELECT expires_at FROM refresh_tokens WHERE jti = ? AND did = ?", jti, did)
        if found is None:
            raise Refusal("ExpiredToken", "the token has been revoked")
        if found[0] <= now:
            raise Refusal("ExpiredToken", "the token has been used before")
        with self._store.transaction():
            until = min(found[0], now + REFRESH_GRACE_MS)
            self._store.execute("UPDATE refresh_tokens SET expires_at = ? WHERE jti = ?", until, jti)
            self._store.execute("DELETE FROM refresh_tokens WHERE did = ? AND expires_at <= ?", did, now)
            return did, self.issue(did)

    def revoke(self, header: str | None) -> None:
        """End the session of a refresh token.

        Raises:
            Refusal: AuthMissing, InvalidToken or ExpiredToken.
        """
        claims = self._claims(header, Scope.REFRESH)
        self._store.execute("DELETE FROM refresh_tokens WHERE jti = ?", str(claims.get("jti")))

    def _sign(self, did: str, scope: Scope, now: int, expires_at: int, jti: str | None = None) -> str:
        claims: dict[str, Any] = {"scope": scope, "sub": did, "iat": now // 1000, "exp": expires_at // 1000}
        if jti is not None:
            claims["jti"] = jti
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def _claims(self, header: str | None, scope: Scope) -> dict[str, Any]:
        if not header:
            raise not_authenticated()
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer":
            raise Refusal("InvalidToken", "expected 'Bearer' and a token")
        claims = self._verified(token.strip())
        if claims["scope"] != scope:
            raise Refusal("InvalidToken", f"this method needs a token of scope {scope}")
        if int(claims["exp"]) * 1000 <= self._clock():
            raise Refusal("ExpiredToken", "the token has expired")
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        """The claims of a token with our signature; whether it is still good is for the caller to say."""
        known = self._known.get(token)
        if known is not None:
            return known
        try:
            # The clock is ours to give: the caller checks the expiry, not the library with its own clock.
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                options={"verify_exp": False, "verify_iat": False, "require": ["exp", "sub", "scope"]},
            )
        except jwt.InvalidTokenError:
            raise Refusal("InvalidToken", "the token is not one of ours") from None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[token] = claims
        return claims
