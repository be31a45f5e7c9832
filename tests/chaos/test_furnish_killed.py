"""The host is killed while it furnishes a sandbox or renews one that lives: nothing half done is used."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from sandboxes import Limits, Sandbox, SandboxGone, SandboxState, connect_sandbox
from tests.killing import killed_at

ORDER = SandboxOrder(
    name="furnished",
    lease_id="did:plc:alice::here-1",
    epoch=1,
    agent_did="did:plc:alice",
    environment_id="here-1",
    environment_type="here",
)
IMAGE = """\
turn_script = "take_turn.py"
[workspace."notes/a"]
type = "file"
content = "a"
[workspace."clock"]
type = "file"
content = "12:00"
ephemeral = true
[workspace."."]
type = "projection"
source = "agent"
"""
SHOW = "cat AGENTS.md skills/one skills/two"


def project(root: Path, version: str) -> None:
    """Have the host show another version of all that is projected."""
    agent = root / "images" / "here" / "agent"
    (agent / "skills").mkdir(parents=True, exist_ok=True)
    for name in ("AGENTS.md", "skills/one", "skills/two"):
        (agent / name).write_text(version)


def host_over(root: Path) -> Host:
    config = HostConfig(node_id="here", root=root, images=root / "images", limits=Limits(), slots=4)
    return Host(config, make_tier("process", root / "sandboxes"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    project(tmp_path, "v0")
    (tmp_path / "images" / "here" / "image.toml").write_text(IMAGE)
    (tmp_path / "images" / "here" / "take_turn.py").write_text("print({})")
    yield tmp_path
    asyncio.run(host_over(tmp_path).destroy(ORDER.name))
    info = asyncio.run(make_tier("process", tmp_path / "sandboxes").inspect(ORDER.name))
    assert (info.state, info.leftovers) == (SandboxState.DELETED, ())


async def show(directory: Path, command: str = SHOW) -> bytes:
    async with connect_sandbox(directory, epoch=1) as sandbox:
        return (await sandbox.exec(command)).stdout


@pytest.mark.timeout(300)
def test_a_new_sandbox_is_whole_after_every_kill(root: Path) -> None:
    async def check() -> None:
        host = host_over(root)
        directory = await host.create(ORDER)
        assert await show(directory, f"{SHOW} notes/a clock") == b"v0v0v0a12:00"
        await host.destroy(ORDER.name)

    request, codes = 1, []
    while 0 not in codes:
        codes.append(killed_at(request, [(Sandbox, ["_ask"])], lambda: host_over(root).create(ORDER)))
        asyncio.run(check())
        request += 2
    assert len(codes) > 4
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.timeout(300)
def test_what_was_half_renewed_is_not_used(root: Path) -> None:
    directory = asyncio.run(host_over(root).create(ORDER))
    asyncio.run(show(directory, "echo mine > notes/a"))
    request, codes, refused, before = 1, [], 0, b"v0"
    while 0 not in codes:
        version = f"v{request}"
        project(root, version)
        codes.append(killed_at(request, [(Sandbox, ["_ask"])], lambda: host_over(root).create(ORDER)))
        try:
            seen = asyncio.run(show(directory))
            assert seen in (before * 3, version.encode() * 3)
        except SandboxGone:
            refused += 1
        assert asyncio.run(host_over(root).create(ORDER)) == directory  # it lives, and goes on
        assert asyncio.run(show(directory, f"{SHOW} notes/a")) == version.encode() * 3 + b"mine\n"
        before, request = version.encode(), request + 1
    assert refused >= 3
    assert set(codes) == {0, -signal.SIGKILL}
