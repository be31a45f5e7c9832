"""One suite that every tier passes: the fixture `tier` is each tier that this machine offers, or a skip with
its reason.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sandboxes import ImageSpec, Limits, ProcessTier, Sandbox, SandboxSpec, Tier, UnsafeTier

TURN_SCRIPT = """\
import json, os, sys
state = json.load(sys.stdin)
exec(state["code"])
"""


class Bench:
    """A tier with what tests need around it."""

    def __init__(self, tier: Tier, root: Path, image: ImageSpec) -> None:
        self.tier, self.root, self.image = tier, root, image

    def spec(self, name: str, *, epoch: int = 1, limits: Limits | None = None, **rest: object) -> SandboxSpec:
        return SandboxSpec(name=name, epoch=epoch, image=self.image, limits=limits or Limits(), **rest)  # type: ignore[arg-type]

    def again(self) -> Tier:
        """Return another tier over the same state, as another process would make it."""
        return type(self.tier)(self.root)  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")
    (root / "take_turn.py").write_text(TURN_SCRIPT)
    return ImageSpec(name="test", root=root, preload=("json", "random"))


TIERS: dict[str, Callable[[Path], Tier]] = {"process": ProcessTier, "unsafe": UnsafeTier}


@pytest.fixture(scope="module", params=sorted(TIERS))
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, image: ImageSpec
) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("state")
    tier = TIERS[request.param](root)
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"{request.param}: {probe.lacks[0].why}")
    yield Bench(tier, root, image)

    async def destroy_all() -> None:
        for info in await tier.list():
            await tier.destroy(info.name)

    asyncio.run(destroy_all())
    assert set(os.listdir(root)) <= {".lock", ".trash"}  # every test leaves the state directory empty
    assert not os.path.exists(root / ".trash") or os.listdir(root / ".trash") == []


@pytest.fixture(scope="module")
def tier(bench: Bench) -> Tier:
    return bench.tier


@pytest.fixture(scope="module")
def sandbox(bench: Bench) -> Sandbox:
    """A sandbox that the tests of a module share; it reconnects in the event loop of each."""
    return asyncio.run(bench.tier.create(bench.spec("shared", env={"GIVEN": "yes"})))


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
