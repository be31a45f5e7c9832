"""Warm slots: for each image that was asked for lately, some sandboxes that are up and belong to nobody.

They are filled in the background, never while somebody waits for a sandbox of his own, or at once by order;
and only into room that is free. Each is used once. One that is old, or whose image has changed since, is
thrown away.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandboxes.errors import SandboxError, SlotGone, TierUnavailable
from sandboxes.pool.demotion import Demotion
from sandboxes.pool.entry import Entry
from sandboxes.pool.ground import Ground
from sandboxes.pool.room import Room
from sandboxes.pool.states import Cause, Kind
from sandboxes.sandbox import Sandbox
from sandboxes.slot import SlotSpec, fitting
from sandboxes.spec import ImageSpec, Limits, SandboxSpec, SandboxState

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
QUIET_S: Final = 1.0  # after the last creation: a slot must not make somebody wait who wants a sandbox now
AT_ONCE: Final = 2  # being made at a time; more are not faster on any tier
RETRY_S: Final = 30.0  # after one could not be made
GRACE_S: Final = 60.0  # a slot that we forgot about ends itself so long after its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What slots are made from, when (monotonic seconds) somebody last asked for one, and how many of them
    somebody has ordered.
    """

    image: ImageSpec
    limits: Limits
    reaches_out: bool
    asked_at: float
    ordered: int = 0

    @property
    def key(self) -> tuple[str, bool]:
        """What it is known by: of several images of one name the one last asked for is wanted."""
        return self.image.name, self.reaches_out

    @property
    def made_of(self) -> str:
        """What a slot must have been made from to be of use now."""
        bound = _stamp(self.image.root) if self.image.bind_root else ""
        return f"{fitting(self.image, self.limits)}:{'out' if self.reaches_out else 'in'}:{bound}"


class WarmSlots:
    """See the module."""

    def __init__(self, ground: Ground, room: Room, demotion: Demotion) -> None:
        self._ground, self._room, self._demotion = ground, room, demotion
        self._recipes: dict[tuple[str, bool], Recipe] = {}
        self._not_before: dict[tuple[str, bool], float] = {}
        self._taken: set[str] = set()  # being claimed now
        self._filling = asyncio.Lock()  # so that two who fill do not make the same slot twice
        self.why_not: str | None = None  # why this tier cannot have any

    def _target(self, recipe: Recipe) -> int:
        """How many are kept of a recipe."""
        return max(self._ground.policy.warm_slots, recipe.ordered)

    @property
    def _is_off(self) -> bool:
        """Whether there are none and shall be none."""
        wanted = self._ground.policy.warm_slots or self._recipes or self._ground.book.entries(Kind.SLOT)
        return self.why_not is not None or not wanted

    async def start(self) -> None:
        """End the slots of a process before us: nobody knows what they were made from."""
        self.why_not = await self._ground.tier.can_warm()
        if self.why_not is not None:
            return
        for entry in self._ground.book.entries(Kind.SLOT):
            self._ground.book.move(entry.name, Cause.DIED, kind=Kind.SLOT)
        for slot in await self._ground.tier.slots():
            await self._destroy(slot.name)

    async def run(self) -> None:
        """Keep them filled until cancelled; then none is left."""
        if self.why_not is not None:
            if self._ground.policy.warm_slots:
                log.info("no warm slots", extra={"reason": self.why_not})
            return
        try:
            while True:
                try:
                    await self.tend()
                except (SandboxError, OSError) as error:
                    log.warning("slots not tended", extra={"reason": str(error)})
                await asyncio.sleep(TICK_S)
        finally:
            await asyncio.shield(asyncio.ensure_future(self.close()))

    async def close(self) -> None:
        """End all slots."""
        names = [entry.name for entry in self._ground.book.entries(Kind.SLOT)]
        await asyncio.gather(*(self._demotion.discard(name) for name in names))

    def take(self, spec: SandboxSpec) -> str | None:
        """Take a slot for a sandbox, and with it its room; None: none fits. It waits for nothing."""
        if self._is_off:
            return None
        recipe = Recipe(
            image=spec.image,
            limits=spec.limits,
            reaches_out=spec.egress is not None,
            asked_at=self._ground.monotonic(),
        )
        if (known := self._recipes.get(recipe.key)) is not None:
            recipe = replace(recipe, ordered=known.ordered)
        if not self._target(recipe):  # slots there are were ordered for other images
            return None
        self._recipes[recipe.key] = recipe
        wanted = recipe.made_of
        for entry in self._warm():
            if entry.made_of == wanted:
                self._room.take(spec.name, spec.epoch, entry.name)
                self._taken.add(entry.name)
                self._ground.tally.prewarm_hits += entry.is_prewarmed
                return entry.name
        self._ground.tally.slot_misses += 1
        return None

    async def claim(self, slot: str, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox of a slot that was taken for it; of nothing if the slot has died.

        Raises:
            SandboxError: as `Tier.create`.
        """
        try:
            sandbox = await self._ground.tier.claim(slot, spec)
        except SlotGone as gone:
            log.warning("slot lost", extra={"slot": slot, "reason": str(gone)})
            await self._destroy(slot)
            self._ground.tally.slot_misses += 1
            return await self._ground.tier.create(spec)
        finally:
            self._taken.discard(slot)
        self._ground.tally.slot_hits += 1
        return sandbox

    async def order(self, image: ImageSpec, limits: Limits, *, reaches_out: bool, count: int) -> int:
        """Have so many ready now, as far as there is free room; nobody gives way.

        So many are kept from now on, until nobody has asked for the image for `recipe_max_age_s`.

        Returns:
            how many are ready.

        Raises:
            TierUnavailable: there are no slots on this tier here.
            SandboxError: one cannot be made; those that could be are there.
        """
        if self.why_not is not None:
            remedy = "every sandbox is made when it is asked for"
            raise TierUnavailable(self._ground.tier.name, f"warm slots: {self.why_not}", remedy)
        now = self._ground.monotonic()
        recipe = Recipe(image=image, limits=limits, reaches_out=reaches_out, asked_at=now, ordered=count)
        self._recipes[recipe.key] = recipe
        made_of = recipe.made_of
        async with self._filling:
            while (missing := min(count - self._having(made_of), self._room.free())) > 0:
                making = [self._make(made_of, recipe, ordered=True) for _ in range(min(missing, AT_ONCE))]
                for ended in await asyncio.gather(*making, return_exceptions=True):
                    if isinstance(ended, BaseException):
                        raise ended
        return sum(entry.made_of == made_of for entry in self._warm())

    async def tend(self) -> None:
        """Throw away what is of no use, and make what is missing."""
        if self._is_off:
            return
        await self._drop_lost()
        now = self._ground.monotonic()
        keep_s = self._ground.policy.recipe_max_age_s
        self._recipes = {key: r for key, r in self._recipes.items() if now - r.asked_at < keep_s}
        wanted = {recipe.made_of: recipe for recipe in self._recipes.values()}
        for entry in self._warm():
            if entry.made_of not in wanted or self._is_old(entry):
                await self._demotion.discard(entry.name)
        if all(now - recipe.asked_at >= QUIET_S for recipe in self._recipes.values()):
            async with self._filling:
                await self._fill(wanted)

    async def _fill(self, wanted: dict[str, Recipe]) -> None:
        newest_first = sorted(wanted, key=lambda made_of: -wanted[made_of].asked_at)
        missing = [
            made_of
            for made_of in newest_first
            for _ in range(self._target(wanted[made_of]) - self._having(made_of))
        ]
        now = self._ground.monotonic()
        due = [made_of for made_of in missing if self._not_before.get(wanted[made_of].key, 0.0) <= now]
        await asyncio.gather(*(self._warm_up(made_of, wanted[made_of]) for made_of in due[:AT_ONCE]))

    def _having(self, made_of: str) -> int:
        """Return how many there are, or are being made, of these things."""
        return sum(entry.made_of == made_of for entry in self._ground.book.entries(Kind.SLOT))

    async def _warm_up(self, made_of: str, recipe: Recipe) -> None:
        try:
            await self._make(made_of, recipe)
        except SandboxError as error:
            self._not_before[recipe.key] = self._ground.monotonic() + RETRY_S
            log.warning("no warm slot", extra={"image": recipe.image.name, "reason": str(error)})

    async def _make(self, made_of: str, recipe: Recipe, *, ordered: bool = False) -> None:
        """Make a slot, if there is room."""
        if not self._room.free():  # nothing is awaited until it has its room
            return
        book, name = self._ground.book, f"slot-{secrets.token_hex(8)}"
        book.move(name, Cause.ORDERED, kind=Kind.SLOT, made_of=made_of)
        lives_s = self._ground.policy.slot_max_age_s + GRACE_S
        limits = replace(recipe.limits, wall_deadline_s=min(lives_s, recipe.limits.wall_deadline_s))
        try:
            await self._ground.tier.warm(
                SlotSpec(name=name, image=recipe.image, limits=limits, reaches_out=recipe.reaches_out)
            )
        except BaseException:
            book.move(name, Cause.BROKE, kind=Kind.SLOT)
            raise
        book.move(name, Cause.READY, kind=Kind.SLOT, is_prewarmed=ordered)
        self._ground.tally.slots_made += 1
        self._ground.tally.prewarmed += ordered

    async def _drop_lost(self) -> None:
        """Have the book and the tier agree about slots."""
        before = {entry.name for entry in self._ground.book.entries(Kind.SLOT)}
        there = {slot.name: slot for slot in await self._ground.tier.slots()}
        for entry in self._warm():
            if entry.name in before and (
                entry.name not in there or there[entry.name].state is SandboxState.FAILED
            ):
                self._ground.book.move(entry.name, Cause.DIED, kind=Kind.SLOT)
                await self._destroy(entry.name)
        for name in there.keys() - before:
            if self._ground.book.get(name) is None and name not in self._taken:
                await self._destroy(name)

    async def _destroy(self, slot: str) -> None:
        with contextlib.suppress(SandboxError):  # tried again with the next round
            await self._ground.tier.destroy(slot)

    def _warm(self) -> list[Entry]:
        """Return those that can be claimed, the oldest first."""
        entries = self._ground.book.entries(Kind.SLOT)
        return sorted(
            (
                entry
                for entry in entries
                if entry.state is SandboxState.WARM and entry.name not in self._demotion.leaving
            ),
            key=lambda entry: entry.since_ms,
        )

    def _is_old(self, entry: Entry) -> bool:
        return self._ground.clock() - entry.since_ms > self._ground.policy.slot_max_age_s * 1000


def _stamp(root: Path) -> str:
    """Return what changes when a file of the folder does; reading no file."""
    told = hashlib.sha256()
    for path, status in _files(root):
        told.update(f"{path}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return told.hexdigest()[:16]


def _files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                yield os.path.relpath(path, root), os.lstat(path)
