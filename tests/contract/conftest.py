"""One suite that every tier passes: the fixture `tier` is each tier that this machine offers, or a skip with
its reason.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sandboxes import ImageSpec, Limits, Probe, Sandbox, SandboxSpec, SandboxState, Tier, open_tier
from sandboxes.tiers.registry import NEVER_CHOSEN, TIERS
from tests.attacks import ALIVE, LIMITS

REFERENCE = "skylease/base:dev"  # for the tiers that start from an OCI image; the folder is bound over it
TURN_SCRIPT = """\
import json, os, sys
state = json.load(sys.stdin)
exec(state["code"])
"""


SLOTLESS = {"gvisor"}  # tiers that say on every host why they keep no warm slots


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A tier of few promises may lack things in CI too; what needs slots is not for a tier without."""
    for item in items:
        if _tier_of(item) in NEVER_CHOSEN:
            item.add_marker(pytest.mark.optional)
    idle = [item for item in items if _tier_of(item) in SLOTLESS and "warm" in item.fixturenames]  # type: ignore[attr-defined]
    config.hook.pytest_deselected(items=idle)
    items[:] = [item for item in items if item not in idle]


def _tier_of(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("bench") if callspec is not None else None


class Bench:
    """A tier with what tests need around it."""

    def __init__(self, tier: Tier, root: Path, image: ImageSpec, probe: Probe, shown: Path) -> None:
        self.tier, self.root, self.image, self.probe = tier, root, image, probe
        self.shown = shown  # a directory of the host that mounts may show

    def lacks(self, what: str) -> str:
        """Return why the tier does not have this on this host; empty: it has it."""
        return next((lack.why for lack in self.probe.lacks if lack.what == what), "")

    def need(self, *features: str) -> None:
        """Skip the test if the tier says of itself that it lacks one of these."""
        for what in features:
            if self.lacks(what):
                pytest.skip(f"{self.tier.name} lacks {what}: {self.lacks(what)}")

    def spec(self, name: str, *, epoch: int = 1, limits: Limits | None = None, **rest: object) -> SandboxSpec:
        return SandboxSpec(name=name, epoch=epoch, image=self.image, limits=limits or Limits(), **rest)  # type: ignore[arg-type]

    def again(self) -> Tier:
        """Return another tier over the same state, as another process would make it."""
        return self.tier_over(self.root)

    def tier_over(self, root: Path) -> Tier:
        """Return a tier of this kind over another state directory."""
        return open_tier(self.tier.name, root, allow_mounts=(self.shown,))

    async def check_gone(self, name: str) -> None:
        """Check that nothing of a sandbox is left, seen from outside."""
        info = await self.tier.inspect(name)
        assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
        assert not (self.root / name).exists()
        mounts = Path("/proc/self/mounts").read_text()
        assert str(self.root) not in mounts
        tag = f"skylease:{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]}:{name}"
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            assert tag not in words, (pid, words)


@pytest.fixture
async def name(bench: Bench) -> AsyncIterator[str]:
    """A name for one sandbox; at the end of the test nothing of it may be left."""
    unique = f"life-{os.getpid()}"  # the same test may be run elsewhere on this machine
    yield unique
    await bench.tier.destroy(unique)
    await bench.check_gone(unique)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")
    (root / "take_turn.py").write_text(TURN_SCRIPT)
    root.chmod(0o755)
    return ImageSpec(name="test", root=root, preload=("json", "random"), reference=REFERENCE)


@pytest.fixture(scope="module", params=list(TIERS))
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, image: ImageSpec
) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("state")
    shown = tmp_path_factory.mktemp("shown")
    shown.chmod(0o755)
    tier = open_tier(request.param, root, allow_mounts=(shown,))
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"{request.param}: {probe.lacks[0].why}")
    if not asyncio.run(tier.has_image(image)):
        pytest.skip(f"{request.param}: the image {image.reference} is not built (make images)")
    yield Bench(tier, root, image, probe, shown)

    async def destroy_all() -> None:
        for info in await tier.list():
            await tier.destroy(info.name)

    asyncio.run(destroy_all())
    assert [name for name in os.listdir(root) if not name.startswith(".")] == []  # every test cleans up
    assert not os.path.exists(root / ".trash") or os.listdir(root / ".trash") == []


@pytest.fixture(scope="module")
def tier(bench: Bench) -> Tier:
    return bench.tier


@pytest.fixture(scope="module")
def sandbox(bench: Bench) -> Sandbox:
    """A sandbox that the tests of a module share; it reconnects in the event loop of each."""
    return asyncio.run(bench.tier.create(bench.spec("shared", env={"GIVEN": "yes"})))


@pytest.fixture
def unused_port() -> int:
    """A port of the loopback that nobody uses (the tier unsafe shares ours)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def count_marked(sandbox: Sandbox) -> Callable[[str], Awaitable[int]]:
    """A function that counts the processes, as seen inside, that have a word in their command line."""
    script = (
        "import os, sys\nfound = 0\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: words = open(f'/proc/{pid}/cmdline').read().split('\\0')\n"
        "    except OSError: continue\n"
        "    found += sys.argv[1] in words and int(pid) != os.getpid()\nprint(found)"
    )

    async def count(word: str) -> int:
        return int((await sandbox.exec(["python3", "-c", script, word])).stdout)

    return count


@pytest.fixture
async def attacker(bench: Bench) -> AsyncIterator[Sandbox]:
    """The one that attacks; the same for all tests of a module, unless one of them was its end."""
    bench.need("isolation")
    if (await bench.tier.inspect("attacker")).state is not SandboxState.WARM:
        await bench.tier.create(bench.spec("attacker", limits=LIMITS, env={"GIVEN": "1"}))
    async with await bench.tier.connect("attacker") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def neighbour(bench: Bench) -> Sandbox:
    """The one that must not notice."""
    bench.need("isolation")

    async def furnish() -> Sandbox:
        made = await bench.tier.create(bench.spec("victim", limits=LIMITS))
        await made.write_file("secret.txt", b"hidden")
        process = await made.start_process("echo up; exec sleep 98760000")
        await process.wait_for_log("up", timeout=20)
        await made.close()
        return made

    return asyncio.run(furnish())


@pytest.fixture
async def unharmed(attacker: Sandbox, neighbour: Sandbox) -> AsyncIterator[None]:
    """Look at both afterwards."""
    yield
    assert (await attacker.turn(ALIVE, turn=1)).action == {"alive": 45}
    assert (await attacker.exec("echo alive > alive && cat alive; rm alive")).text == "alive\n"
    assert (await neighbour.turn(ALIVE, turn=1)).action == {"alive": 45}
    assert await neighbour.read_file("secret.txt") == b"hidden"
    assert [process["running"] for process in await neighbour.list_processes()] == [True]
