"""Acquiring a sandbox by four priorities, and giving it back by who owns it.

1. A sandbox that is handed in is used as it is; giving it back keeps its files and leaves it alive.
2. A state that is handed in is brought back to life; giving it back returns the state that follows.
3. A state that is stored under the scope's key is brought back to life; giving it back stores the next.
4. Else a sandbox is made.

In 3 and 4 the guard is held from before anything is looked at until after everything is stored. Its token is
the sandbox's epoch, fences the stored state and the snapshots, and so keeps out a holder that was late.

Write, then act, then write: the stored state says where a sandbox is about to be made before it is; and names
a snapshot that is whole before the sandbox goes. So after a kill between any two steps the next acquire finds
either the living sandbox or all of its files, and `sweep` finds what nobody asks for any more.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sandboxes.activity import last_used_ms
from sandboxes.errors import InvalidSpec, SandboxError, SandboxNotFound
from sandboxes.sandbox import Sandbox
from sandboxes.sharing import lodging
from sandboxes.sharing.errors import GuardLost, StateLost, StateUnreadable
from sandboxes.sharing.guard import Guard, Held, MemoryLatch
from sandboxes.sharing.scope import ScopeKey, key_of, sandbox_name
from sandboxes.sharing.state import State, parse_state
from sandboxes.sharing.states import StateStore
from sandboxes.sharing.wanted import AfterUse, Lent, OnUnreadable, Source, Wanted
from sandboxes.sleep import ALIVE, directory_of, is_hydrated
from sandboxes.snapshots import Snapshots, Taken
from sandboxes.snapshots.errors import SnapshotCorrupt, SnapshotMissing, SnapshotRefused, SnapshotVersion
from sandboxes.spec import SandboxInfo
from sandboxes.tier import Tier
from sandboxes.tiers.registry import known_tiers, open_tier

log = logging.getLogger(__name__)

KEY_LABEL: Final = "skylease.sharing"
GUESTS_WAIT_S: Final = 10.0
_DAMAGED: Final = (SnapshotCorrupt, SnapshotMissing, SnapshotRefused, SnapshotVersion)
Furnish = Callable[[Sandbox, bool], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """What a sandbox is to be for: `state` is what is known of it, `intend` writes what is about to be."""

    wanted: Wanted
    tier: Tier
    key: str
    name: str
    token: int
    state: State | None
    labels: dict[str, str]
    intend: Callable[[State], None]


class Sharing:
    """See the module. Free of Ray; use it as a context manager.

    Args:
        tiers: opens a tier by its name (`tiers_over`).
        states: where states are stored.
        snapshots: where files are kept.
        node: tells this node, and this state directory on it, from others.
        guard: None: one for this process only.
        furnish: called with a new sandbox, and whether files were restored, before it is handed out.
        guests_wait_s: how long `release` waits for guests to leave.
    """

    def __init__(
        self,
        tiers: Callable[[str], Tier],
        states: StateStore,
        snapshots: Snapshots,
        *,
        node: str,
        guard: Guard | None = None,
        furnish: Furnish | None = None,
        guests_wait_s: float = GUESTS_WAIT_S,
    ) -> None:
        self._tiers, self._states, self._snapshots = tiers, states, snapshots
        self._node, self._furnish, self._guests_wait_s = node, furnish, guests_wait_s
        self._guard = guard or Guard(MemoryLatch(states.where))

    async def __aenter__(self) -> Self:
        await self._guard.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._guard.__aexit__(kind, error, trace)

    @contextlib.asynccontextmanager
    async def lend(self, wanted: Wanted) -> AsyncIterator[Lent]:
        """Have a sandbox during a block. Arguments and errors as `acquire` and `release`.

        When its files could not be kept at the end, it stays as it is, and the next acquire finds it.
        """
        lent = await self.acquire(wanted)
        try:
            yield lent
        finally:
            try:
                await self.release(lent)
            finally:
                await self.abandon(lent)

    async def acquire(self, wanted: Wanted) -> Lent:
        """Return a living sandbox by the first of the four priorities that applies.

        Raises:
            ScopeKeyMissing: the scope needs to know who asks.
            GuardBusy: others had it for longer than `wait_s`.
            StateUnreadable: what is stored cannot be used, and the policy is FAIL; it is kept.
            GuardLost: a newer holder exists.
            StatesUnavailable, GuardUnavailable, SandboxError: it cannot be had now; nothing was lost.
        """
        if wanted.sandbox is not None:
            return await self._handed_in(wanted, wanted.sandbox)
        if wanted.state is not None:
            return await self._brought(wanted, wanted.state)
        key = key_of(wanted.scope, wanted.caller)
        if key is None:
            return await self._for_once(wanted)
        floor = await self._floor(key, self._tiers(wanted.tier))
        held = await self._guard.enter(key, wait_s=wanted.wait_s, floor=floor)
        try:
            return await self._stored(wanted, key, held)
        except BaseException:
            await self._guard.leave(held)
            raise

    async def release(self, lent: Lent) -> bytes | None:
        """Give a sandbox back; may be repeated. Who did not make it never destroys it.

        When files could not be kept, the sandbox stays as it is and is still lent: call again, or `abandon`.

        Returns:
            the state from which `Wanted.state` brings it back; None: it has none.

        Raises:
            GuardLost: this holder was late, and another may have the sandbox: nothing was written.
            SandboxBusy: guests have not left, or a request runs.
            SandboxError: its files could not be kept: the store is down or full, …
        """
        if not lent.is_given_back:
            try:
                await self._put_away(lent)
            except (GuardLost, SandboxNotFound):  # there is nothing more to do about it
                await self.abandon(lent)
                raise
            await self.abandon(lent)
        return None if lent.state is None else lent.state.to_bytes()

    async def abandon(self, lent: Lent) -> None:
        """Let go without keeping anything: the sandbox stays, for the next acquire or for `sweep`."""
        lent.is_given_back = True
        await lent.sandbox.close()
        if lent.held is not None:
            await self._guard.leave(lent.held)

    async def sweep(self, tier_name: str, *, idle_s: float) -> tuple[str, ...]:
        """Put away what nobody holds and nobody has used for `idle_s`; destroy what another node has now.

        Returns:
            the names of the sandboxes that are gone.

        Raises:
            SandboxError: the tier cannot be asked. One sandbox that fails does not stop the others.
        """
        tier, gone = self._tiers(tier_name), []
        for info in await tier.list({}):
            key = info.labels.get(KEY_LABEL)
            if key is None or not _is_idle(info, idle_s):
                continue
            try:
                await self._sweep_one(tier, info.name, ScopeKey(key))
                gone.append(info.name)
            except SandboxError as error:  # held, busy, or its files cannot be kept: it stays
                log.info("not swept", extra={"sandbox": info.name, "reason": str(error)})
        return tuple(gone)

    # priorities 1 and 2, and what is for one use

    async def _handed_in(self, wanted: Wanted, sandbox: Sandbox) -> Lent:
        tier = self._tiers(wanted.tier)
        info = await tier.inspect(sandbox.name)
        if info.state not in ALIVE:
            raise SandboxNotFound(sandbox.name, "the one that was handed in does not live")
        if directory_of(info) != sandbox.directory:
            raise InvalidSpec("sandbox", f"{sandbox.directory} is none of this tier and state directory")
        await lodging.take_over(info, sandbox.epoch)
        return Lent(sandbox=sandbox, source=Source.EXTERNAL_SANDBOX, wanted=wanted, tier=tier)

    async def _brought(self, wanted: Wanted, raw: bytes) -> Lent:
        state = parse_state("the caller", raw, known_tiers())
        tier = self._tiers(state.type)
        kept = await asyncio.to_thread(self._snapshots.epoch, state.name)
        claim = _Claim(
            wanted=wanted,
            tier=tier,
            key="the caller",
            name=state.name,
            token=max(state.epoch, kept or 0, lodging.holder_of(await tier.inspect(state.name))) + 1,
            state=state,
            labels={},
            intend=lambda state: None,
        )
        now, sandbox, _ = await self._alive(claim)
        return Lent(sandbox=sandbox, source=Source.EXTERNAL_STATE, wanted=wanted, tier=tier, state=now)

    async def _for_once(self, wanted: Wanted) -> Lent:
        tier = self._tiers(wanted.tier)
        spec = replace(wanted.spec, name=f"once-{secrets.token_hex(8)}", epoch=1)
        sandbox, _ = await lodging.make(tier, spec, None, self._furnish)
        return Lent(sandbox=sandbox, source=Source.CREATED, wanted=wanted, tier=tier)

    # priorities 3 and 4

    async def _stored(self, wanted: Wanted, key: ScopeKey, held: Held) -> Lent:
        raw = await asyncio.to_thread(self._states.claim, key, held.token)
        state = await self._readable(wanted, key, held, raw)
        tier = self._tiers(wanted.tier if state is None else state.type)

        def intend(intended: State) -> None:
            held.check()
            self._states.save(key, held.token, intended.to_bytes())

        claim = _Claim(
            wanted=wanted,
            tier=tier,
            key=key,
            name=sandbox_name(key),
            token=held.token,
            state=state,
            labels={KEY_LABEL: key},
            intend=intend,
        )
        now, sandbox, is_new = await self._alive(claim)
        try:
            await asyncio.to_thread(intend, now)
        except GuardLost:  # what was made meanwhile is nobody's; a newer holder's is left alone
            with contextlib.suppress(SandboxError):
                await lodging.discard(tier, claim.name, claim.token)
            raise
        return Lent(
            sandbox=sandbox,
            source=Source.CREATED if is_new else Source.STORED_STATE,
            wanted=wanted,
            tier=tier,
            key=key,
            held=held,
            state=now,
        )

    async def _readable(self, wanted: Wanted, key: ScopeKey, held: Held, raw: bytes | None) -> State | None:
        if raw is None:
            return None
        try:
            return parse_state(key, raw, known_tiers())
        except StateUnreadable as error:
            if wanted.on_unreadable is OnUnreadable.FAIL:
                raise
            log.error("a stored state was set aside", extra={"key": key, "reason": str(error)})
            await asyncio.to_thread(self._states.set_aside, key, held.token)
            return None

    async def _alive(self, claim: _Claim) -> tuple[State, Sandbox, bool]:
        """The sandbox of a claim, its state now, and whether it is new: the living one, else one with its
        files, else an empty one.
        """
        tier, name, state = claim.tier, claim.name, claim.state
        image = claim.wanted.spec.image.name
        now = State(type=tier.name, name=name, epoch=claim.token, node=self._node, image=image)
        if state is not None:
            now = replace(state, epoch=claim.token, node=self._node, image=image)
        info = await tier.inspect(name)
        if self._is_newest(info, state):
            await lodging.take_over(info, claim.token)
            return now, await tier.connect(name, epoch=claim.token), False
        if info.leftovers or info.state in ALIVE:
            await lodging.clear(tier, info)
        has_files = await asyncio.to_thread(self._snapshots.fence, name, claim.token)
        if state is not None and state.snapshot is not None and not has_files:
            _pass_over(claim, StateLost(claim.key, state.snapshot))
        await asyncio.to_thread(claim.intend, now)
        return now, *(await self._made(claim))

    async def _made(self, claim: _Claim) -> tuple[Sandbox, bool]:
        given = claim.wanted.spec
        labels = {**given.labels, **claim.labels}
        spec = replace(given, name=claim.name, epoch=claim.token, labels=labels)
        try:
            sandbox, restored = await lodging.make(claim.tier, spec, self._snapshots, self._furnish)
            for digest, reason in () if restored is None else restored.refused:
                said = {"sandbox": claim.name, "snapshot": digest, "reason": reason}
                log.error("a damaged snapshot was passed over for the one before it", extra=said)
            return sandbox, restored is None
        except _DAMAGED as damaged:
            _pass_over(claim, damaged)
        return (await lodging.make(claim.tier, spec, None, self._furnish))[0], True

    def _is_newest(self, info: SandboxInfo, state: State | None) -> bool:
        """Whether a sandbox lives here and no other place went on with its files since it was handed out."""
        if info.state not in ALIVE or not is_hydrated(directory_of(info)):
            return False
        return state is None or (state.node == self._node and lodging.holder_of(info) >= state.epoch)

    async def _floor(self, key: ScopeKey, tier: Tier) -> int:
        """Above every token that anything still knows, also if the guard or the states have forgotten."""
        name = sandbox_name(key)
        fence = await asyncio.to_thread(self._states.fence, key)
        kept = await asyncio.to_thread(self._snapshots.epoch, name)
        return max(fence, kept or 0, lodging.holder_of(await tier.inspect(name))) + 1

    # giving back

    async def _put_away(self, lent: Lent) -> None:
        wanted = lent.wanted
        if lent.held is not None:
            lent.held.check()
        await lent.sandbox.close()
        if lent.source is Source.CREATED and lent.state is None:  # for one use: nothing of it is kept
            await lent.tier.destroy(lent.name)
            return
        destroy = lent.source is not Source.EXTERNAL_SANDBOX and wanted.after_use is AfterUse.SLEEP

        def name_it(taken: Taken) -> None:
            if lent.state is None:
                return
            node = None if destroy else self._node
            state = replace(lent.state, snapshot=taken.manifest.digest, node=node)
            if lent.held is not None:
                lent.held.check()
                self._states.save(lent.held.key, lent.held.token, state.to_bytes())
            lent.state = state

        await lodging.put_away(
            lent.tier,
            lent.name,
            self._snapshots,
            token=lent.token,
            guests_wait_s=self._guests_wait_s,
            image_digest=wanted.spec.image.digest,
            excludes=wanted.excludes,
            named=name_it,
            destroy=destroy,
        )

    async def _sweep_one(self, tier: Tier, name: str, key: ScopeKey) -> None:
        held = await self._guard.enter(key, wait_s=0, floor=await self._floor(key, tier))
        try:
            raw = await asyncio.to_thread(self._states.claim, key, held.token)
            state = None if raw is None else parse_state(key, raw, known_tiers())
            info = await tier.inspect(name)
            if not self._is_newest(info, state):
                await lodging.clear(tier, info)
                return
            await lodging.take_over(info, held.token)

            def name_it(taken: Taken) -> None:
                held.check()
                kept = state or State(type=tier.name, name=name, epoch=0, node=None, image="")
                kept = replace(kept, epoch=held.token, node=None, snapshot=taken.manifest.digest)
                self._states.save(key, held.token, kept.to_bytes())

            await lodging.put_away(
                tier, name, self._snapshots, token=held.token, guests_wait_s=0, named=name_it
            )
        finally:
            await self._guard.leave(held)


def tiers_over(root: Path, **options: Any) -> Callable[[str], Tier]:
    """Return what opens tiers by their names over one state directory, each once.

    Args:
        root: the state directory.
        options: keywords of the tiers' constructors.
    """
    opened: dict[str, Tier] = {}

    def tier(name: str) -> Tier:
        if name not in opened:
            opened[name] = open_tier(name, root, **options)
        return opened[name]

    return tier


def _pass_over(claim: _Claim, error: SandboxError) -> None:
    """Go on without the files, if that is the policy."""
    if claim.wanted.on_unreadable is OnUnreadable.FAIL:
        raise error
    said = {"key": claim.key, "sandbox": claim.name, "reason": str(error)}
    log.error("files could not be restored: the sandbox starts empty", extra=said)


def _is_idle(info: SandboxInfo, idle_s: float) -> bool:
    used_ms = last_used_ms(directory_of(info))
    return used_ms is None or time.time_ns() // 1_000_000 - used_ms >= idle_s * 1000
