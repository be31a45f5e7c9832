"""The host is killed while it puts a sandbox to sleep or wakes it: no file is lost, nothing leaks."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from sandboxes import Limits, SandboxState, connect_sandbox, sleep
from tests.killing import killed_at

STEPS = ("fsync", "replace", "rename", "rmdir", "unlink", "kill", "link", "symlink")
ORDER = SandboxOrder(
    name="sleeper",
    lease_id="did:plc:alice::catan-1",
    epoch=1,
    agent_did="did:plc:alice",
    environment_id="catan-1",
    environment_type="catan",
)


def host_over(root: Path) -> Host:
    config = HostConfig(node_id="here", root=root, images=shipped("images"), limits=Limits(), slots=4)
    return Host(config, make_tier("process", root / "sandboxes"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    asyncio.run(host_over(tmp_path).destroy(ORDER.name))
    tier = make_tier("process", tmp_path / "sandboxes")
    asyncio.run(tier.sweep())  # as every host does, now and then
    info = asyncio.run(tier.inspect(ORDER.name))
    assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
    assert os.listdir(tmp_path / "snapshots" / "store" / "heads") == []
    assert list((tmp_path / "snapshots").glob("parked/*")) == []
    assert os.listdir(tmp_path / "sandboxes" / ".trash") == []


async def write(root: Path, content: bytes) -> None:
    directory = await host_over(root).create(ORDER)
    async with connect_sandbox(directory, epoch=ORDER.epoch) as sandbox:
        await sandbox.write_file("memo", content)


async def read(root: Path) -> bytes:
    directory = await host_over(root).create(ORDER)
    async with connect_sandbox(directory, epoch=ORDER.epoch) as sandbox:
        return await sandbox.read_file("memo")


@pytest.fixture(params=["unpacked", "parked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How files come back: out of the snapshot, or on the disk that they were on."""
    if request.param == "parked":
        monkeypatch.setattr(sleep, "MIN_BYTES", 0)


@pytest.mark.timeout(300)
def test_asleep_or_awake_at_every_kill(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before every third of its steps, until one sleep comes to its end (parking has them all)."""
    monkeypatch.setattr(sleep, "MIN_BYTES", 0)
    asyncio.run(write(root, b"0"))
    step, codes = 1, []
    while 0 not in codes:
        content = b"before step %d" % step
        asyncio.run(write(root, content))
        codes.append(killed_at(step, [(os, STEPS)], lambda: host_over(root).suspend(ORDER.name, 0)))
        assert asyncio.run(read(root)) == content
        step += 3
        assert step < 200, "it never comes to its end"
    assert len(codes) > 5
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("way")
def test_woken_after_every_kill(root: Path) -> None:
    asyncio.run(write(root, b"kept"))
    step, codes = 1, []
    while 0 not in codes:
        deadline = time.monotonic() + 10
        while not asyncio.run(host_over(root).suspend(ORDER.name, 0)):
            assert time.monotonic() < deadline
        codes.append(killed_at(step, [(os, STEPS)], lambda: host_over(root).create(ORDER)))
        assert asyncio.run(read(root)) == b"kept"
        step += 3
        assert step < 200, "it never comes to its end"
    assert len(codes) > 3
