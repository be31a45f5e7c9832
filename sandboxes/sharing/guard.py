"""The guard: one holder per key at a time, for as long as it shows that it is alive, with a fencing token.

A `Latch` is where holders meet: the memory of this process, a table, Redis. It gives a token that grows with
every holder. The `Guard` waits, renews and lets go. Being late is normal (a stopped process, a paused
machine), so a token is worth nothing by itself: whoever is written to compares it (states.py does so in the
transaction of the write), and refuses all but the newest.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol, Self

from sandboxes.errors import InvalidSpec
from sandboxes.sharing.errors import GuardBusy, GuardLost
from sandboxes.sharing.finish import to_the_end

log = logging.getLogger(__name__)

TTL_S: Final = 30.0  # a holder that is killed stands in the way for so long
RENEWALS_PER_TTL: Final = 3  # two may fail before the guard is lost
RETRY_S: Final = (0.005, 0.1)  # between attempts to enter: doubles
MAX_KEY_CHARS: Final = 8192


class Reach(StrEnum):
    """Who meets at a latch, or in a store."""

    PROCESS = "process"
    NODE = "node"
    CLUSTER = "cluster"


class Latch(Protocol):
    """Where holders meet. Synchronous and safe from several threads; every method is one atomic step.

    All may raise when it cannot be reached; then nothing happened, or what happened ends with its time.
    """

    @property
    def reach(self) -> str:
        """Who meets here: a word of `Reach`."""

    @property
    def where(self) -> str:
        """A name of it for people, without secrets."""

    def try_enter(self, key: str, holder: str, ttl_ms: int, floor: int) -> int | None:
        """Return a token that is larger than all before it, and at least `floor`; None: held by another."""

    def renew(self, key: str, holder: str, ttl_ms: int) -> bool:
        """Hold it for another `ttl_ms`. False: the time was over, or another holds it; nothing is changed."""

    def leave(self, key: str, holder: str) -> bool:
        """Let go. False: another holds it, or nobody; nothing is changed."""


class MemoryLatch:
    """A latch for the tasks and threads of one process; whoever gives the same `domain` meets.

    Holders that are gone without leaving (their event loop ended) lose it when their time is over.
    """

    reach: Final = Reach.PROCESS
    _mutex = threading.Lock()
    _held: Final[dict[tuple[str, str], tuple[str, float]]] = {}  # → (holder, until on the monotonic clock)
    _tokens: Final[dict[tuple[str, str], int]] = {}

    def __init__(self, domain: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._domain, self._clock = domain, clock
        self.where = "the memory of this process"

    def try_enter(self, key: str, holder: str, ttl_ms: int, floor: int) -> int | None:
        """See `Latch`."""
        place, now = (self._domain, key), self._clock()
        with self._mutex:
            if place in self._held and self._held[place][1] > now:
                return None
            token = max(self._tokens.get(place, 0) + 1, floor)
            self._tokens[place] = token
            self._held[place] = (holder, now + ttl_ms / 1000)
            return token

    def renew(self, key: str, holder: str, ttl_ms: int) -> bool:
        """See `Latch`."""
        place, now = (self._domain, key), self._clock()
        with self._mutex:
            holds = place in self._held and self._held[place][0] == holder and self._held[place][1] > now
            if holds:
                self._held[place] = (holder, now + ttl_ms / 1000)
            return holds

    def leave(self, key: str, holder: str) -> bool:
        """See `Latch`."""
        place = (self._domain, key)
        with self._mutex:
            holds = place in self._held and self._held[place][0] == holder
            if holds:
                del self._held[place]
            return holds


class Held:
    """A guard that is held. `check` before every step that others would see."""

    def __init__(self, key: str, holder: str, token: int, until: float, clock: Callable[[], float]) -> None:
        self.key, self.holder, self.token = key, holder, token
        self.until = until  # on the clock of the guard; renewals move it
        self.lost = ""  # why it is no longer ours
        self._clock = clock

    def check(self) -> None:
        """Pass if it is still ours, as far as can be told here.

        Raises:
            GuardLost: its time is over, or another has it.
        """
        if not self.lost and self._clock() >= self.until:
            self.lost = "this holder stalled past its time"
        if self.lost:
            raise GuardLost(self.key, self.token, self.lost)


def _boot_time() -> float:
    """Seconds since the machine started, those it was suspended for included: late is late."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guard:
    """See the module. Use it as a context manager: the task that renews lives as long as the block.

    Who waits is served in no particular order.

    Args:
        latch: where holders meet.
        ttl_s: a holder that does not renew for so long is over.
        clock: seconds that never go back.
    """

    def __init__(
        self, latch: Latch, *, ttl_s: float = TTL_S, clock: Callable[[], float] = _boot_time
    ) -> None:
        if not 0.05 <= ttl_s <= 86_400:
            raise InvalidSpec("guard.ttl_s", f"{ttl_s} is not between 0.05 s and a day")
        self.latch, self.ttl_s = latch, ttl_s
        self._clock = clock
        self._held: set[Held] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing(), name="guard")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in list(self._held):
            await self.leave(held)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None

    async def enter(self, key: str, *, wait_s: float | None = None, floor: int = 0) -> Held:
        """Hold the key, once nobody else does.

        Args:
            key: what is guarded.
            wait_s: give up after so long; 0: try once; None: wait for ever.
            floor: the token is at least this.

        Raises:
            GuardBusy: others held it all the time.
            GuardUnavailable, or what the latch raises: it cannot be reached.
        """
        if self._renewing is None:
            raise InvalidSpec("guard", "it is used outside its `async with`: nobody would renew")
        if not key or len(key) > MAX_KEY_CHARS:
            raise InvalidSpec("guard.key", f"must have 1-{MAX_KEY_CHARS} characters")
        if wait_s is not None and not wait_s >= 0:
            raise InvalidSpec("wait_s", f"{wait_s} is no number of seconds from 0")
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        started, pause = self._clock(), RETRY_S[0]
        while True:
            now = self._clock()
            token = await self._try_enter(key, holder, floor)
            if token is not None:
                held = Held(key, holder, token, now + self.ttl_s, self._clock)
                self._held.add(held)
                return held
            waited = self._clock() - started
            if wait_s is not None and waited >= wait_s:
                raise GuardBusy(key, wait_s)
            await asyncio.sleep(pause if wait_s is None else min(pause, max(0.001, wait_s - waited)))
            pause = min(pause * 2, RETRY_S[1])

    async def leave(self, held: Held) -> None:
        """Let go; may be repeated, and never fails: what cannot be told ends with its time."""
        if held not in self._held:
            return
        self._held.discard(held)
        held.lost = held.lost or "it was left"
        try:
            await to_the_end(asyncio.to_thread(self.latch.leave, held.key, held.holder))
        except Exception as error:  # noqa: BLE001  every latch has errors of its own; its time ends it anyway
            log.warning("the guard could not be left", extra={"key": held.key, "error": str(error)})

    @contextlib.asynccontextmanager
    async def hold(self, key: str, *, wait_s: float | None = None) -> AsyncIterator[Held]:
        """Hold the key during a block. Arguments and errors as `enter`."""
        held = await self.enter(key, wait_s=wait_s)
        try:
            yield held
        finally:
            await self.leave(held)

    async def _try_enter(self, key: str, holder: str, floor: int) -> int | None:
        work = asyncio.ensure_future(
            asyncio.to_thread(self.latch.try_enter, key, holder, int(self.ttl_s * 1000), floor)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:  # it may have entered all the same
            with contextlib.suppress(Exception):
                if await work is not None:
                    await asyncio.to_thread(self.latch.leave, key, holder)
            raise

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self.ttl_s / RENEWALS_PER_TTL)
            await asyncio.gather(*(self._renew(held) for held in list(self._held) if not held.lost))

    async def _renew(self, held: Held) -> None:
        now = self._clock()
        try:
            renewed = await asyncio.to_thread(self.latch.renew, held.key, held.holder, int(self.ttl_s * 1000))
        except Exception as error:  # noqa: BLE001  it may be reached again before the time is over
            log.warning("the guard could not be renewed", extra={"key": held.key, "error": str(error)})
            return
        if renewed:
            held.until = max(held.until, now + self.ttl_s)
        elif not held.lost:
            held.lost = "another took over, or its time was over"
            log.error("the guard was lost", extra={"key": held.key, "token": held.token})
