"""The docker tier: one hardened container per sandbox; its turns go to its runner, not through Docker.

DIRECTORY/boot/           appears inside as /run/skylease/boot, read-only: the runner, passwd, group, hosts
DIRECTORY/boot/boot.sock  exists only while the runner starts (see `docker_launch`)
DIRECTORY/boot.json       what the runner was told, so that a stopped container can be started again
DIRECTORY/engine          which engine has the container, for whoever comes later

The container is named after the sandbox and the state root, and carries labels that say the same: whatever a
crash leaves is found from either side. What is asked of a sandbox's life is answered by /proc, not by the
engine, so a container that somebody killed is known to be dead at once, and a dead engine blocks only what
needs it.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sandboxes.errors import ImageNotBuilt, InvalidSpec, SandboxFailed, TierUnavailable
from sandboxes.images.build import find_built
from sandboxes.images.folder import digest_of
from sandboxes.sandbox import Sandbox
from sandboxes.slot import is_slot_name
from sandboxes.spec import ImageSpec, Probe, SandboxSpec
from sandboxes.tiers import docker_container as shape
from sandboxes.tiers.docker_container import Plan, container_config
from sandboxes.tiers.docker_disk import WorkspaceDisks
from sandboxes.tiers.docker_engine import EngineDown, NameTaken, NoSuchThing
from sandboxes.tiers.docker_inside import BOOT_INSIDE, RUNNER_FILE, binds, boot_config
from sandboxes.tiers.docker_launch import BOOT_SOCKET, LOADER
from sandboxes.tiers.docker_life import ELSEWHERE, Containers, translated
from sandboxes.tiers.docker_probe import Reach, probe_engine
from sandboxes.tiers.launch import Launch
from sandboxes.tiers.record import Record
from sandboxes.tiers.uids import NoFreeUid

PYTHON: Final = ("python3", "-s", "-B")  # whichever the image has, from 3.9 on


class DockerTier(Containers):
    """Sandboxes made by a Docker Engine, 20.10 or later.

    Args:
        root: state directory; the engine's host must see it under the same path, if it is to share it.
        host: the engine, as in DOCKER_HOST, which is the default.
        runtime: OCI runtime, such as "runsc"; default: the engine's own.
        reach: what containers share with this node; default: as much as the engine allows.
        allow_mounts: host directories of which a spec's mounts may show parts.
        clock: wall clock, epoch milliseconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str | None = None,
        runtime: str | None = None,
        reach: Reach | None = None,
        allow_mounts: tuple[Path, ...] = (),
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(root, host=host, allow_mounts=allow_mounts, clock=clock)
        self._runtime, self._wanted_reach = runtime, reach

    # probing

    def _probe(self) -> Probe:
        self._found = probe_engine(
            self._engine,
            runtime=self._runtime,
            reach=self._wanted_reach,
            is_root=self._is_root,
            why_no_disk=WorkspaceDisks.why_none,
        )
        return self._found.probe

    async def has_image(self, image: ImageSpec) -> bool:
        """Say whether the OCI image is on the engine's host."""
        return image.reference is not None and await asyncio.to_thread(self._has, image.reference)

    async def locate(self, image: ImageSpec) -> ImageSpec:
        """Return the image with the digest of the built one; where that holds what the folder holds now, the
        folder is not bound over it.
        """
        return await asyncio.to_thread(self._locate, image)

    def _locate(self, image: ImageSpec) -> ImageSpec:
        with translated(self.name, image.name):
            built = None if image.reference is None else find_built(self._engine, image.reference)
        if built is None:
            raise ImageNotBuilt(image.name, f"run `skylease images build {image.name}`")
        has_changed = built.sources != digest_of(image.root)
        return replace(image, reference=built.digest, digest=built.digest, bind_root=has_changed)

    def _has(self, reference: str) -> bool:
        with translated(self.name, reference):
            return self._engine.image(reference) is not None

    # creation

    def _create(self, spec: SandboxSpec, fits: str = "") -> Sandbox:
        try:
            with translated(self.name, spec.name):
                self._engine.version()  # what is begun while it is down could not be cleared away
                return super()._create(spec, fits)
        except SandboxFailed as failed:
            if isinstance(failed.__cause__, EngineDown):
                down = failed.__cause__
                raise TierUnavailable(self.name, down.reason, down.remedy) from None
            raise

    def _check(self, spec: SandboxSpec) -> None:
        super()._check(spec)
        if spec.image.reference is None:
            raise InvalidSpec("image.reference", f"{spec.image.name} names no OCI image, which docker needs")
        if self._found.reach is not Reach.NOTHING:
            return
        if spec.data_dir is not None:
            raise InvalidSpec("data_dir", ELSEWHERE)
        if spec.mounts:
            raise InvalidSpec("mounts", ELSEWHERE)
        if spec.image.bind_root:
            raise InvalidSpec(
                "image.bind_root", f"{ELSEWHERE}: build the folder into the image, and turn it off"
            )

    def _why_no_egress(self) -> str:
        if self._found.reach is Reach.FILES:
            return "gVisor's kernel connects to no socket of the host"
        return ELSEWHERE if self._found.reach is Reach.NOTHING else ""

    def _claim_uid(self, directory: Path) -> int | None:
        if not self._is_root:
            return None
        try:
            return self._uids.claim(directory)
        except NoFreeUid as none:
            raise SandboxFailed(directory.name, str(none)) from none

    def _start(self, spec: SandboxSpec, record: Record, launch: Launch) -> Record:
        container = self._container(spec.name)
        if self._found.has_disks:
            directory = self._records.directory(spec.name)
            self._disks.make(directory, spec.limits)
            self._disks.show(directory, self._user(record))
        config = container_config(self._plan(spec, record))
        try:
            self._engine.create(container, config)
        except NameTaken:  # a creator that died has left it, or its request is only now being carried out
            self._engine.remove(container)
            self._engine.create(container, config)
        except NoSuchThing:
            raise ImageNotBuilt(
                str(spec.image.reference), f"run `skylease images build {spec.image.name}`"
            ) from None
        return self._run(record, launch)

    def _plan(self, spec: SandboxSpec, record: Record) -> Plan:
        directory = self._records.directory(spec.name)
        if is_slot_name(spec.name):  # a path that leads there also when it has another name
            self._records.turn_handle(spec.name, spec.name)
            directory = self._records.handle(spec.name)
        labels = {**spec.labels, shape.LABEL_NAME: spec.name, shape.LABEL_ROOT: str(self._records.root)}
        labels |= {shape.LABEL_EPOCH: str(spec.epoch), shape.LABEL_TIER: self.name}
        reach, tag = self._found.reach, self._records.tag(spec.name)
        command = (*PYTHON, "-c", LOADER, tag)
        if reach is Reach.SOCKET:
            command = (*PYTHON, f"{BOOT_INSIDE}/{RUNNER_FILE}", f"{BOOT_INSIDE}/{BOOT_SOCKET}", tag)
        user = self._user(record)
        return Plan(
            image=str(spec.image.reference),
            command=command,
            user=f"{user}:{user if record.uid is not None else os.getegid()}",
            limits=spec.limits,
            labels=labels,
            binds=() if reach is Reach.NOTHING else binds(spec, directory),
            workspace_in_memory=reach is Reach.NOTHING,
            runtime=self._runtime,
            interactive=reach is not Reach.SOCKET,
        )

    def _boot_config(self, spec: SandboxSpec, directory: Path) -> dict[str, Any]:
        return boot_config(spec, directory, self._found.machine)
