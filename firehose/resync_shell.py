"""Reading whole repositories for the resync: from the relay, or else from the account's own PDS."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from firehose.document import pds_url, signing_key
from firehose.errors import DirectoryUnavailable, FirehoseError, HttpError, RepoInvalid
from firehose.healing import MAX_ARCHIVE_BYTES, Archive, open_archive
from firehose.http import HttpResponse, HttpSession
from firehose.identity import DidResolver, is_loopback, public_address
from firehose.resync import FetchRepo, Resync
from firehose.subscribe import retry_after_s
from firehose.syntax import Did

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 300.0  # for one repository from all sources; github.com/bluesky-social/jetstream's
CONNECT_TIMEOUT_S: Final = 10.0
MIN_BYTES_PER_S: Final = 1024  # ours: less is no transfer, and would hold one of few places for five minutes
MAX_REDIRECTS: Final = 3  # the relay of github.com/bluesky-social/indigo sends us on to the PDS
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_STATUS_BYTES: Final = 16_384
DEFAULT_RETRY_AFTER_MS: Final = 60_000  # when a host says 429 and not for how long


class FetchFailed(Exception):
    """No source gave an archive that proves itself."""

    def __init__(self, reason: str, retry_after_ms: int | None = None) -> None:
        super().__init__(reason, retry_after_ms)
        self.reason = reason
        self.retry_after_ms = retry_after_ms  # set if the last source asked us to wait

    def __str__(self) -> str:
        return self.reason


class RepoGone(FetchFailed):
    """The account is not active, by what its own PDS says."""

    def __init__(self, did: Did, status: str) -> None:
        super().__init__(f"{did} is {status}")
        self.status = status


class RepoFetcher:
    """Gets archives over HTTP and proves them."""

    def __init__(
        self, upstream_urls: Sequence[str], directory: DidResolver, *, timeout_s: float = FETCH_TIMEOUT_S
    ) -> None:
        """Take the relays' addresses (ws or http) and who resolves DIDs."""
        relays = [urlsplit(url) for url in upstream_urls]
        self._relay_urls = [
            f"{'https' if relay.scheme in ('wss', 'https') else 'http'}://{relay.netloc}" for relay in relays
        ]
        self._directory = directory
        self._timeout_s = timeout_s
        # Where the relays are on this machine, so may be the PDSs; elsewhere that would be an attack.
        self._is_local = all(is_loopback(relay.hostname or "") for relay in relays)

    async def fetch(self, did: Did) -> Archive:
        """The whole repository.

        Raises:
            FetchFailed: no source has it, or what they have proves nothing.
            RepoGone: no source has it, and its PDS says that the account is not active.
        """
        failure = FetchFailed("no source")
        try:
            async with asyncio.timeout(self._timeout_s):
                document = await self._directory.resolve(did) or {}
                home = pds_url(document, did)
                for url in dict.fromkeys((*self._relay_urls, home)):
                    try:
                        return await self._prove(did, await self._get(url, did))
                    except FetchFailed as error:
                        log.info("no archive", extra={"did": did, "source": url, "reason": str(error)})
                        failure = error
                await self._check_status(home, did)
        except (FirehoseError, TimeoutError) as error:
            raise FetchFailed(str(error) or "no archive in time") from error
        raise failure

    async def _get(self, url: str, did: Did) -> bytes:
        target = f"/xrpc/com.atproto.sync.getRepo?did={quote(did, safe='')}"
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(url, target, MAX_ARCHIVE_BYTES)
            if answer.status not in REDIRECTS:
                break
            parts = urlsplit(urljoin(f"{url}{target}", answer.headers.get("location", "")))
            if parts.scheme != "https" and not self._is_local:
                raise FetchFailed("sent on to an address without encryption")
            url, target = (
                f"{parts.scheme}://{parts.netloc}",
                urlunsplit(("", "", parts.path, parts.query, "")),
            )
        if answer.status == 429:
            raise FetchFailed("the host asks us to wait", _pause_ms(answer))
        if answer.status != 200:
            raise FetchFailed(f"the host answered {answer.status}")
        return answer.body

    async def _ask(self, url: str, target: str, max_bytes: int) -> HttpResponse:
        """One request, to an address that a stranger may name; what it redirects to is another one."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            address = await public_address(
                parts.hostname or "", port, allow_loopback=self._is_local, timeout_s=CONNECT_TIMEOUT_S
            )
            async with HttpSession(url, timeout_s=self._timeout_s, connect_to=address) as session:
                return await session.request(
                    "GET", target, max_body_bytes=max_bytes, min_bytes_per_s=MIN_BYTES_PER_S
                )
        except (HttpError, OSError, ValueError) as error:
            raise FetchFailed(str(error)) from error

    async def _check_status(self, home: str, did: Did) -> None:
        """Raises: RepoGone: the account's own PDS says so; whatever else it says changes nothing."""
        target = f"/xrpc/com.atproto.sync.getRepoStatus?did={quote(did, safe='')}"
        try:
            answer = await self._ask(home, target, MAX_STATUS_BYTES)
            told = json.loads(answer.body)
        except (FetchFailed, ValueError, RecursionError):
            return
        if answer.status == 200 and isinstance(told, dict) and told.get("active") is False:
            raise RepoGone(did, str(told.get("status") or "inactive")[:64])

    async def _prove(self, did: Did, data: bytes) -> Archive:
        """The archive, proved; one that the key does not fit is tried once more with a newer document."""
        for is_second in (False, True):
            if is_second:
                self._directory.refresh(did)
            document = await self._directory.resolve(did)
            if document is None:
                raise FetchFailed("there is no such DID")
            try:  # in a thread: a large repository takes seconds
                return await asyncio.to_thread(open_archive, data, did, signing_key(document, did))
            except DirectoryUnavailable:
                raise
            except FirehoseError as error:
                is_unsigned = isinstance(error, RepoInvalid) and error.reason == "signature"
                if is_second or not is_unsigned:
                    raise FetchFailed(f"the archive proves nothing: {error}") from error
        raise AssertionError("unreachable")


def _pause_ms(answer: HttpResponse) -> int:
    pause_s = retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))
    return int(pause_s * 1000) or DEFAULT_RETRY_AFTER_MS


class ResyncShell:
    """Carries out the wishes of a `Resync`; a context manager that ends every fetch at its end."""

    def __init__(
        self,
        resync: Resync,
        fetcher: RepoFetcher,
        *,
        clock: Callable[[], int],
        on_archive: Callable[[Did, Archive], None],
        on_gone: Callable[[Did, str], None] = lambda did, status: None,
    ) -> None:
        """Prepare.

        Args:
            resync: the machine.
            fetcher: gets archives.
            clock: epoch milliseconds.
            on_archive: takes an archive up, or raises RepoInvalid.
            on_gone: hears that an account is not active, and its status.
        """
        self._resync = resync
        self._fetcher = fetcher
        self._clock = clock
        self._on_archive = on_archive
        self._on_gone = on_gone
        self._tasks: dict[Did, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def pump(self) -> None:
        """Begin what may begin now, and come back when there is more."""
        now_ms = self._clock()
        for wish in self._resync.start(now_ms):
            self._tasks[wish.did] = asyncio.get_running_loop().create_task(self._carry_out(wish))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._resync.due_ms(now_ms)
        if due_ms is not None and due_ms > now_ms:  # what is due and was not begun waits for a fetch to end
            self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self.pump)

    async def settled(self, did: Did, timeout_s: float) -> bool:
        """Wait until no fetch of this account is under way. Returns: False if that took longer."""
        task = self._tasks.get(did)
        if task is None:
            return True
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        return bool(done)

    async def _carry_out(self, wish: FetchRepo) -> None:
        retry_after_ms: int | None = None
        is_adopted = False
        try:
            archive = await self._fetcher.fetch(wish.did)
            if self._resync.is_wanted(wish.did):
                self._on_archive(wish.did, archive)
            is_adopted = True
        except RepoGone as error:
            log.info("account gone", extra={"did": wish.did, "status": error.status})
            self._resync.gone(wish.did)
            self._on_gone(wish.did, error.status)
        except FetchFailed as error:
            retry_after_ms = error.retry_after_ms
            log.warning("resync failed", extra={"did": wish.did, "reason": str(error)})
        except FirehoseError as error:
            log.warning("archive refused", extra={"did": wish.did, "reason": str(error)})
        finally:
            self._tasks.pop(wish.did, None)
            if not is_adopted and self._resync.is_wanted(wish.did):
                self._resync.failed(wish.did, self._clock(), retry_after_ms=retry_after_ms)
        self.pump()
