"""Warm slots of this machine's tiers: made like a sandbox, claimed by a rename.

A slot lives in ROOT/.slots/SLOT. Its claim makes ROOT/NAME of that directory, shows inside what comes with
the claim, and tells the runner whose it is from now on. What cannot be renamed (control groups, a container,
the mark of its processes) keeps the slot's name, which the record holds as `handle`.

Steps of a claim, so that a kill between any two leaves a slot, a sandbox, or what `sweep` removes: its
handle → rename → mounts → runner → record. A directory whose record is still the slot's is no sandbox yet.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sandboxes.egress import prepare, seen_inside
from sandboxes.errors import (
    InvalidSpec,
    SandboxBusy,
    SandboxFailed,
    SandboxGone,
    SlotGone,
    StaleEpoch,
    TierUnavailable,
)
from sandboxes.sandbox import Sandbox
from sandboxes.slot import SlotInfo, SlotSpec, check_free_name, check_slot_name, fitting
from sandboxes.spec import SandboxSpec, SandboxState
from sandboxes.tiers.ask import ask
from sandboxes.tiers.inlay import Inlay
from sandboxes.tiers.local import LocalTier
from sandboxes.tiers.record import Record
from sandboxes.tiers.uids import give_tree

CLAIM_WAIT_S: Final = 1.0  # for a sweep that looks at it, or another claim, which takes some milliseconds
_SHOWN: Final = {
    SandboxState.WARM: SandboxState.WARM,
    SandboxState.WARMING: SandboxState.WARMING,
}


class WarmTier(LocalTier):
    """A tier that keeps warm slots, where the host lets it."""

    async def can_warm(self) -> str | None:
        """Return why no slot can be kept warm on this host; None: `warm` works."""
        return await asyncio.to_thread(self._why_cold) or None

    async def warm(self, spec: SlotSpec) -> None:
        """Make a warm slot."""
        await self._undone_if_cancelled(lambda: self._warm(spec), spec.name)

    async def claim(self, slot: str, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox that is made of a warm slot."""
        check_free_name(spec.name)
        return await self._undone_if_cancelled(lambda: self._claim(slot, spec), spec.name)

    async def slots(self) -> tuple[SlotInfo, ...]:
        """Return the slots that wait."""
        return await asyncio.to_thread(self._slots)

    # what a tier adds

    def _why_not_warm(self) -> str:
        """Return why this tier has no slots on this host, where it works; empty: it has."""
        return "nothing can be shown in it later"

    def _moved(self, record: Record, before: Path, after: Path) -> None:
        """Note elsewhere that the directory of a slot has become that of a sandbox."""

    def _enter(self, spec: SandboxSpec, record: Record, config: Mapping[str, Any]) -> None:
        """Show in a sandbox that was a slot what comes with the claim.

        Raises:
            OSError: it cannot be shown.
        """

    # the rest

    def _why_cold(self) -> str:
        probe = self._probe_once()
        return self._why_not_warm() if probe.ok else f"{probe.lacks[0].what}: {probe.lacks[0].why}"

    def _warm(self, slot: SlotSpec) -> None:
        why_not = self._why_cold()
        if why_not:
            raise TierUnavailable(self.name, why_not, "create sandboxes without slots")
        self._records.prepare()
        self._records.slots.mkdir(mode=0o700, exist_ok=True)
        limits = replace(slot.limits, idle_deadline_s=slot.limits.wall_deadline_s)
        spec = SandboxSpec(name=slot.name, epoch=0, image=slot.image, limits=limits)
        self._create(spec, fitting(slot.image, slot.limits))

    def _claim(self, slot: str, spec: SandboxSpec) -> Sandbox:
        check_slot_name(slot)
        with self._creating(spec), self._records.lock(slot, wait_s=CLAIM_WAIT_S) as got:
            if not got:
                raise SlotGone(slot, "somebody else is claiming or destroying it")
            record = self._fitting_slot(slot, spec)
            try:
                return self._hand_over(record, spec)
            except (OSError, SandboxGone, SandboxBusy, StaleEpoch, SandboxFailed) as error:
                raise SlotGone(slot, str(error)) from error

    def _fitting_slot(self, slot: str, spec: SandboxSpec) -> Record:
        record = self._records.load(slot)
        if record is None or record.tier != self.name:
            raise SlotGone(slot, "there is none of this name")
        if not record.is_alive() or not record.ready:
            raise SlotGone(slot, "it is dead")
        if spec.parked is not None:
            raise SlotGone(slot, "it has a disk already, and there is one that was parked")
        if record.fits != fitting(spec.image, spec.limits):
            raise SlotGone(slot, "it was made for another image or other limits")
        return record

    def _hand_over(self, slot: Record, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox of a slot; both locks are held."""
        before, after = self._records.directory(slot.name), self._records.directory(spec.name)
        record = replace(
            slot,
            name=spec.name,
            epoch=spec.epoch,
            labels=dict(spec.labels),
            created_ms=self._clock(),
            data_dir=None if spec.data_dir is None else str(spec.data_dir.absolute()),
            fits="",
            handle=slot.name,
        )
        self._records.turn_handle(slot.name, spec.name)
        os.rename(before, after)
        self._moved(record, before, after)
        prepare(after, spec.egress)
        if record.uid is not None and spec.data_dir is not None:
            give_tree(spec.data_dir, record.uid)
        config = self._told(spec, after)
        self._enter(spec, record, config)
        ask(self._socket(spec.name), spec.name, spec.epoch, "claim", body=json.dumps(config).encode())
        # not durable: it would take as long as all the rest, and after a power cut nothing of it runs
        self._records.save(record, durable=False)
        return self._sandbox(spec.name, spec.epoch)

    def _slots(self) -> tuple[SlotInfo, ...]:
        found = []
        for name in self._records.slot_names():
            record = None
            with contextlib.suppress(InvalidSpec):
                record = self._records.load(name)
            if record is None or record.tier != self.name:
                continue
            state = self._info(record).state
            found.append(
                SlotInfo(
                    name=name,
                    tier=self.name,
                    state=_SHOWN.get(state, SandboxState.FAILED),
                    fits=record.fits,
                    created_ms=record.created_ms,
                    pid=record.pid if record.is_alive() else None,
                    uid=record.uid,
                )
            )
        return tuple(found)


def inlays(spec: SandboxSpec, directory: Path) -> list[Inlay]:
    """Return what is shown in a slot when it becomes the sandbox of this spec."""
    found = []
    if spec.data_dir is not None:
        found.append(Inlay(source=str(spec.data_dir.absolute()), target="/data", read_only=False))
    way_out = seen_inside(directory, spec.egress)
    if way_out is not None:
        found.append(Inlay(source=str(way_out.source), target=way_out.target, read_only=True))
    for mount in spec.mounts:
        source = os.path.realpath(mount.source)
        found.append(Inlay(source=source, target=mount.target, read_only=mount.read_only))
    return found
