"""XrpcClient: an account's side of a PDS, over one keep-alive connection pool. Light: agents import this."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from firehose.errors import HttpError, HttpUnreachable, XrpcError
from firehose.http import MAX_BODY_BYTES, HttpResponse, HttpSession

REQUEST_TIMEOUT_S: Final = 30.0
MAX_REPO_BYTES: Final = 512 * 1024 * 1024
MAX_BLOB_BYTES: Final = 64 * 1024 * 1024
MAX_ATTEMPTS: Final = 6  # of an idempotent call; with the pauses below some 2.5 s of a restarting server
RETRY_BASE_S: Final = 0.1
RETRY_CAP_S: Final = 2.0
RETRY_STATUSES: Final = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who we are at this PDS. The tokens are secrets: they stay out of this object's repr."""

    did: str
    handle: str
    access_jwt: str
    refresh_jwt: str

    def __repr__(self) -> str:
        return f"Session(did={self.did!r}, handle={self.handle!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRef:
    """A record as it was written: where, and which version."""

    uri: str
    cid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The state of a repo."""

    cid: str
    rev: str


class XrpcClient:
    """Calls to one PDS, as nobody or, after `create_account` or `login`, as one account.

    An expired access token is refreshed once, whichever call hits it. Calls that may be repeated without
    harm are, when the connection breaks or the server is briefly away; `create_record` and `apply_writes`
    are repeated only if the request cannot have reached the server.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        *,
        session: Session | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Take the server's address; nothing is opened before the first call.

        Args:
            base_url: of the PDS, "http://127.0.0.1:2583".
            timeout_s: seconds for one attempt of one call.
            session: to go on with one from before.
            rng: draws the jitter of pauses.

        Raises:
            HttpAddressInvalid: not an http(s) URL.
        """
        self.session = session
        self._http = HttpSession(base_url, timeout_s=timeout_s)
        self._rng = rng or random.Random()
        self._refreshing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the session stays good for another client."""
        await self._http.close()

    # who we are

    async def create_account(self, handle: str, password: str, *, email: str | None = None) -> Session:
        """Create an account and be it. Raises: XrpcError (HandleNotAvailable, …); HttpError."""
        body = {"handle": handle, "password": password, **({} if email is None else {"email": email})}
        return self._become(await self.procedure("com.atproto.server.createAccount", body, is_anonymous=True))

    async def login(self, identifier: str, password: str) -> Session:
        """Be the account with this handle or DID. Raises: XrpcError (AuthenticationRequired); HttpError."""
        body = {"identifier": identifier, "password": password}
        answer = await self.procedure(
            "com.atproto.server.createSession", body, is_anonymous=True, is_idempotent=True
        )
        return self._become(answer)

    async def refresh(self) -> Session:
        """A new session for the refresh token. Raises: XrpcError (ExpiredToken: log in again); HttpError."""
        method = "com.atproto.server.refreshSession"
        return self._become(
            _json(method, await self._send_once("POST", method, token=self._me().refresh_jwt))
        )

    # records of ours

    async def put_record(
        self,
        collection: str,
        rkey: str,
        record: Mapping[str, Any],
        *,
        swap_record: str | None = None,
        validate: bool | None = None,
    ) -> RecordRef:
        """Write one record, new or not; the same record again changes nothing and emits nothing.

        Args:
            collection: its NSID.
            rkey: its key.
            record: in JSON form ($link, $bytes).
            swap_record: only if the present record has this CID.
            validate: False leaves the schema unchecked; None checks what the server knows.

        Raises:
            XrpcError: InvalidRequest, InvalidSwap, …
            HttpError: no answer; the record may have been written.
        """
        body: dict[str, Any] = {
            "repo": self._me().did,
            "collection": collection,
            "rkey": rkey,
            "record": {"$type": collection, **record},
        }
        if swap_record is not None:
            body["swapRecord"] = swap_record
        if validate is not None:
            body["validate"] = validate
        # With swapRecord a repetition of a call that did succeed would be refused.
        answer = await self.procedure("com.atproto.repo.putRecord", body, is_idempotent=swap_record is None)
        return _ref("com.atproto.repo.putRecord", answer)

    async def create_record(
        self,
        collection: str,
        record: Mapping[str, Any],
        *,
        rkey: str | None = None,
        validate: bool | None = None,
    ) -> RecordRef:
        """Add a record, under a new TID unless a key is given. Raises: as `put_record`."""
        body: dict[str, Any] = {
            "repo": self._me().did,
            "collection": collection,
            "record": {"$type": collection, **record},
        }
        if rkey is not None:
            body["rkey"] = rkey
        if validate is not None:
            body["validate"] = validate
        return _ref(
            "com.atproto.repo.createRecord", await self.procedure("com.atproto.repo.createRecord", body)
        )

    async def delete_record(self, collection: str, rkey: str, *, swap_record: str | None = None) -> None:
        """Delete a record; one that is not there is no error. Raises: as `put_record`."""
        body = {"repo": self._me().did, "collection": collection, "rkey": rkey}
        if swap_record is not None:
            body["swapRecord"] = swap_record
        await self.procedure("com.atproto.repo.deleteRecord", body, is_idempotent=swap_record is None)

    async def apply_writes(
        self,
        writes: Sequence[Mapping[str, Any]],
        *,
        swap_commit: str | None = None,
        validate: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Several writes as one commit, all or nothing.

        Args:
            writes: as in the lexicon: {"$type": "com.atproto.repo.applyWrites#create", "collection", "rkey",
                "value"}.
            swap_commit: only if this is the repo's present commit.
            validate: as `put_record`.

        Returns: one result for each write. Raises: as `put_record`.
        """
        body: dict[str, Any] = {"repo": self._me().did, "writes": list(writes)}
        if swap_commit is not None:
            body["swapCommit"] = swap_commit
        if validate is not None:
            body["validate"] = validate
        answer = await self.procedure("com.atproto.repo.applyWrites", body)
        return list(answer.get("results", ()))

    async def upload_blob(
        self, content: bytes, mime_type: str = "application/octet-stream"
    ) -> dict[str, Any]:
        """Upload bytes; the blob reference to put in a record. Raises: XrpcError; HttpError."""
        method = "com.atproto.repo.uploadBlob"
        response = await self._call("POST", method, content, {"Content-Type": mime_type}, is_idempotent=True)
        blob: dict[str, Any] = _json(method, response)["blob"]
        return blob

    # anybody's

    async def get_record(self, repo: str, collection: str, rkey: str) -> dict[str, Any] | None:
        """A record as {"uri", "cid", "value"}; None if it is not there. Raises: XrpcError; HttpError."""
        try:
            return await self.query("com.atproto.repo.getRecord", repo=repo, collection=collection, rkey=rkey)
        except XrpcError as error:
            if error.name == "RecordNotFound":
                return None
            raise

    async def list_records(
        self, repo: str, collection: str, limit: int = 50, cursor: str | None = None, reverse: bool = False
    ) -> tuple[list[dict[str, Any]], str | None]:
        """One page of a collection, newest key first, and the cursor of the next page (None: that was all).

        Raises: XrpcError; HttpError.
        """
        answer = await self.query(
            "com.atproto.repo.listRecords",
            repo=repo,
            collection=collection,
            limit=limit,
            cursor=cursor,
            reverse="true" if reverse else None,
        )
        return list(answer["records"]), answer.get("cursor")

    async def get_repo(self, did: str) -> bytes:
        """A whole repo as a CAR; nothing of it is checked here. Raises: XrpcError; HttpError."""
        response = await self._get("com.atproto.sync.getRepo", {"did": did}, max_body_bytes=MAX_REPO_BYTES)
        return response.body

    async def get_blob(self, did: str, cid: str) -> bytes:
        """A blob's bytes; the hash is not checked here. Raises: XrpcError (BlobNotFound); HttpError."""
        response = await self._get(
            "com.atproto.sync.getBlob", {"did": did, "cid": cid}, max_body_bytes=MAX_BLOB_BYTES
        )
        return response.body

    async def latest_commit(self, did: str) -> Commit:
        """Where a repo stands. Raises: XrpcError (RepoNotFound); HttpError."""
        answer = await self.query("com.atproto.sync.getLatestCommit", did=did)
        return Commit(cid=answer["cid"], rev=answer["rev"])

    async def resolve_handle(self, handle: str) -> str | None:
        """The DID of a handle, None if it has none here. Raises: XrpcError; HttpError."""
        try:
            return str((await self.query("com.atproto.identity.resolveHandle", handle=handle))["did"])
        except XrpcError as error:
            if error.status in (400, 404) and error.name in ("HandleNotFound", "InvalidRequest"):
                return None
            raise

    # any method

    async def query(self, method: str, **parameters: str | int | None) -> dict[str, Any]:
        """Call any query by its NSID; a parameter that is None is left out. Raises: XrpcError; HttpError."""
        return _json(method, await self._get(method, parameters))

    async def procedure(
        self,
        method: str,
        body: Mapping[str, Any] | None = None,
        *,
        is_idempotent: bool = False,
        is_anonymous: bool = False,
    ) -> dict[str, Any]:
        """Call any procedure by its NSID with a JSON body. Raises: XrpcError; HttpError."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        response = await self._call(
            "POST", method, content, headers, is_idempotent=is_idempotent, is_anonymous=is_anonymous
        )
        return _json(method, response)

    async def _get(
        self, method: str, parameters: Mapping[str, str | int | None], *, max_body_bytes: int = MAX_BODY_BYTES
    ) -> HttpResponse:
        given = {name: value for name, value in parameters.items() if value is not None}
        target = f"{method}?{urlencode(given, quote_via=quote)}" if given else method
        return await self._call("GET", target, None, {}, is_idempotent=True, max_body_bytes=max_body_bytes)

    async def _call(
        self,
        verb: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        is_idempotent: bool = False,
        is_anonymous: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> HttpResponse:
        """One call with its repetitions: an expired token once, a broken connection where that is safe."""
        attempt, has_refreshed = 0, False
        while True:
            attempt += 1
            token = None if is_anonymous or self.session is None else self.session.access_jwt
            try:
                return await self._send_once(
                    verb, target, body, headers, token=token, max_body_bytes=max_body_bytes
                )
            except XrpcError as error:
                if error.name == "ExpiredToken" and token is not None and not has_refreshed:
                    has_refreshed = True
                    await self._refresh_from(token)
                    continue
                if not (is_idempotent and error.status in RETRY_STATUSES) or attempt >= MAX_ATTEMPTS:
                    raise
            except HttpError as error:
                was_not_sent = isinstance(error, HttpUnreachable) and not error.is_sent
                if not (is_idempotent or was_not_sent) or attempt >= MAX_ATTEMPTS:
                    raise
            await asyncio.sleep(self._rng.uniform(0, min(RETRY_CAP_S, RETRY_BASE_S * 2.0**attempt)))

    async def _send_once(
        self,
        verb: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> HttpResponse:
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        response = await self._http.request(
            verb, f"/xrpc/{target}", headers=sent, body=body, max_body_bytes=max_body_bytes
        )
        if response.status == 200:
            return response
        raise _refusal(target.partition("?")[0], response)

    async def _refresh_from(self, expired_token: str) -> None:
        async with self._refreshing:  # of several calls that hit the expiry together, one refreshes
            if self._me().access_jwt == expired_token:
                await self.refresh()

    def _become(self, answer: Mapping[str, Any]) -> Session:
        try:
            self.session = Session(
                did=answer["did"],
                handle=answer["handle"],
                access_jwt=answer["accessJwt"],
                refresh_jwt=answer["refreshJwt"],
            )
        except KeyError as error:
            raise XrpcError(
                200, "InvalidResponse", f"a session without {error}", "com.atproto.server"
            ) from None
        return self.session

    def _me(self) -> Session:
        if self.session is None:
            raise XrpcError(401, "AuthMissing", "log in or create an account first", "client")
        return self.session


def _json(method: str, response: HttpResponse) -> dict[str, Any]:
    if not response.body:
        return {}
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError):
        raise XrpcError(response.status, "InvalidResponse", "the answer is not JSON", method) from None
    if not isinstance(answer, dict):
        raise XrpcError(response.status, "InvalidResponse", "the answer is not a JSON object", method)
    return answer


def _refusal(method: str, response: HttpResponse) -> XrpcError:
    """The error that the server named; whatever else the body holds (a proxy's HTML) is not repeated."""
    try:
        answer = json.loads(response.body)
        name, message = str(answer["error"])[:100], str(answer.get("message", ""))[:500]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        name, message = f"Http{response.status}", "the server gave no reason"
    return XrpcError(response.status, name, message, method)


def _ref(method: str, answer: Mapping[str, Any]) -> RecordRef:
    try:
        return RecordRef(uri=answer["uri"], cid=answer["cid"])
    except KeyError as error:
        raise XrpcError(200, "InvalidResponse", f"the answer lacks {error}", method) from None
