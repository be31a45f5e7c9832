"""A pool over a tier in memory: its sandboxes are directories, their processes words in a table."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sandboxes import (
    ImageSpec,
    Probe,
    Sandbox,
    SandboxExists,
    SandboxFailed,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    SandboxState,
    Tier,
    activity,
)
from sandboxes.activity import Activity, Frost
from sandboxes.errors import SandboxBusy, SlotGone
from sandboxes.pool.book import BOOK_NAME, Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.tally import Tally
from sandboxes.slot import SlotInfo, SlotSpec, fitting
from sandboxes.snapshots import LocalStore, Snapshots

START_MS = 1_764_547_200_000


class Time:
    """Wall clock and monotonic clock that move only when told to."""

    def __init__(self) -> None:
        self.ms = START_MS

    def wall(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def pass_(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


class MemoryTier(Tier):
    """See the module. `alive` is what has processes: names of sandboxes and slots."""

    name = "memory"

    def __init__(self, root: Path, clock: Callable[[], int]) -> None:
        self.root, self._clock = root, clock
        self.alive: set[str] = set()
        self.made: dict[str, SandboxSpec] = {}
        self.slot_specs: dict[str, tuple[SlotSpec, int]] = {}
        self.most = 0  # how many lived at a time
        self.broken = False  # nothing can be made
        self.is_slow = False

    async def probe(self) -> Probe:
        return Probe(tier=self.name, ok=True, features={}, lacks=())

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.name in self.alive:
            raise SandboxExists(spec.name)
        shutil.rmtree(self.root / spec.name, ignore_errors=True)
        await self._pause()
        if self.broken:
            raise SandboxFailed(spec.name, "as the test wants")
        (self.root / spec.name / "workspace").mkdir(parents=True)
        return self._up(spec)

    def _up(self, spec: SandboxSpec) -> Sandbox:
        self.made[spec.name] = spec
        self.alive.add(spec.name)
        self.most = max(self.most, len(self.alive))
        return Sandbox(self.root / spec.name, name=spec.name, epoch=spec.epoch)

    async def can_warm(self) -> str | None:
        return None

    async def warm(self, spec: SlotSpec) -> None:
        await self._pause()
        if self.broken:
            raise SandboxFailed(spec.name, "as the test wants")
        self.slot_specs[spec.name] = (spec, self._clock())
        self.alive.add(spec.name)
        self.most = max(self.most, len(self.alive))

    async def claim(self, slot: str, spec: SandboxSpec) -> Sandbox:
        made, _ = self.slot_specs.pop(slot, (None, 0))
        if made is None or slot not in self.alive:
            raise SlotGone(slot, "it is dead")
        assert fitting(made.image, made.limits) == fitting(spec.image, spec.limits)
        self.alive.discard(slot)
        shutil.rmtree(self.root / spec.name, ignore_errors=True)
        (self.root / spec.name / "workspace").mkdir(parents=True)
        return self._up(spec)

    async def slots(self) -> list[SlotInfo]:
        return [
            SlotInfo(
                name=name,
                tier=self.name,
                state=SandboxState.WARM if name in self.alive else SandboxState.FAILED,
                fits=fitting(spec.image, spec.limits),
                created_ms=created_ms,
                pid=None,
            )
            for name, (spec, created_ms) in sorted(self.slot_specs.items())
        ]

    async def connect(self, name: str, *, epoch: int | None = None) -> Sandbox:
        raise NotImplementedError

    async def freeze(self, name: str) -> None:
        directory = self._living(name)
        with activity.idle(directory, name) as is_idle:
            if not is_idle:
                raise SandboxBusy(name, "a request is running")
            activity.note_frost(directory, Frost(tier=self.name, files=((str(directory / "thawed"), "1"),)))

    async def thaw(self, name: str) -> None:
        activity.forget_frost(self._living(name))

    async def workspace(self, name: str) -> Path:
        return self._living(name) / "workspace"

    async def destroy(self, name: str) -> None:
        await self._pause()
        self.alive.discard(name)
        self.made.pop(name, None)
        self.slot_specs.pop(name, None)
        shutil.rmtree(self.root / name, ignore_errors=True)

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        return [await self.inspect(name) for name in sorted(self.made)]

    async def inspect(self, name: str) -> SandboxInfo:
        spec, directory = self.made.get(name), self.root / name
        state = SandboxState.DELETED
        if spec is not None:
            state = SandboxState.WARM if name in self.alive else SandboxState.FAILED
            if state is SandboxState.WARM and activity.is_frozen(directory):
                state = SandboxState.WAITING
        return SandboxInfo(
            name=name,
            tier=self.name,
            state=state,
            epoch=0 if spec is None else spec.epoch,
            labels={},
            created_ms=START_MS,
            pid=None if state is SandboxState.DELETED else 1,
            socket=directory / "run" / "runner.sock",
        )

    async def sweep(self) -> tuple[str, ...]:
        return ()

    def _living(self, name: str) -> Path:
        if name not in self.alive:
            raise SandboxNotFound(name)
        return self.root / name

    async def _pause(self) -> None:
        """Let others run, as a real tier does."""
        await asyncio.sleep(0.001 if self.is_slow else 0)


class Node:
    """A pool that can be killed and begun anew over what is there."""

    def __init__(self, root: Path, policy: PoolPolicy) -> None:
        self.root, self.policy, self.time = root, policy, Time()
        (root / "image").mkdir()
        (root / "image" / "take_turn.py").write_text("")
        self.image = ImageSpec(name="image", root=root / "image")
        self.tier = MemoryTier(root, self.time.wall)
        self.store: Any = LocalStore(root / "store")
        self.rest: dict[str, Any] = {}  # of the ground
        self.pool: Any = None
        self.begin()

    def begin(self) -> None:
        """Start a pool as a process after a kill would."""
        if self.pool is not None:
            self.book.close()
        self.book: Book = Book(self.root / BOOK_NAME, clock=self.time.wall, monotonic=self.time.monotonic)
        self.snapshots = Snapshots(self.store, self.root / "scratch", clock=self.time.wall)
        self.ground = Ground(
            tier=self.tier,
            snapshots=self.snapshots,
            book=self.book,
            policy=self.policy,
            tally=Tally(),
            clock=self.time.wall,
            monotonic=self.time.monotonic,
            **self.rest,
        )
        self.pool = Pool(self.ground)

    def set(self, **changes: Any) -> None:
        """Begin anew with another policy."""
        self.policy = replace(self.policy, **changes)
        self.begin()

    def spec(self, name: str, epoch: int = 1) -> SandboxSpec:
        return SandboxSpec(name=name, epoch=epoch, image=self.image)

    async def up(self, name: str, epoch: int = 1) -> Path:
        directory: Path = await self.pool.acquire(self.spec(name, epoch))
        assert directory == self.root / name
        return directory

    @asynccontextmanager
    async def using(self, name: str) -> Any:
        """A request that runs as long as the block; thawed first, as every request does."""
        async with Activity(self.root / name, name).request():
            yield
        os.utime(self.root / name / activity.LOCK_NAME, ns=(self.time.ms * 10**6,) * 2)

    async def touch(self, name: str) -> None:
        async with self.using(name):
            pass

    def state(self, name: str) -> SandboxState:
        entry = self.book.get(name)
        return SandboxState.DELETED if entry is None else entry.state

    def write(self, name: str, content: bytes) -> None:
        (self.root / name / "workspace" / "memo").write_bytes(content)

    def read(self, name: str) -> bytes | None:
        file = self.root / name / "workspace" / "memo"
        return file.read_bytes() if file.exists() else None

    def die(self, name: str) -> None:
        """End its processes behind the pool's back."""
        self.tier.alive.discard(name)


def in_memory() -> str | None:
    """A directory for what is written often, where one is in memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def make_node() -> Iterator[Callable[..., Node]]:
    """Make nodes with such policies; each is checked at the end."""
    with ExitStack() as stack:

        def make(**policy: Any) -> Node:
            directory = stack.enter_context(TemporaryDirectory(dir=in_memory()))
            node = Node(Path(directory), PoolPolicy(**policy))
            stack.callback(node.book.close)
            stack.callback(check, node)
            return node

        yield make


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """Capacity 3; who is idle gives way at once."""
    return make_node(capacity=3, evict_idle_s=0.0)


def check(node: Node) -> None:
    """Check what must always hold."""
    assert node.tier.most <= node.policy.capacity
    assert {entry.name for entry in node.book.entries() if entry.is_live} >= node.tier.alive
