"""Players whose decisions a model makes: asked from inside the sandbox, with a key that never gets there."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors.egress import WayOut, way_out
from actors.environment import RULES
from actors.faces import SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from actors.settings import Settings, load_settings
from games.catan import Catan
from leases import LeaseStatus
from sandboxes import Limits, SandboxState, connect_sandbox

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py
KEY = "sk-what-nobody-inside-may-see"
LOOK = """\
import glob, os
places = glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline')
for top in ('/workspace', '/data', '/run', '/tmp', '/image', '/etc'):
    places += [os.path.join(d, f) for d, _, fs in os.walk(top) for f in fs]
for place in places:
    try: print(open(place, errors='replace').read(200_000))
    except OSError: pass
"""


@pytest.fixture
def settings(world: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("KEY_OF_THE_MODEL", KEY)
    return load_settings(
        None,
        {
            "model.url": f"https://api.example.com:{world.upstream.port}/v1/chat/completions",
            "model.name": "stub-1",
            "egress.secrets": {"stub": "env:KEY_OF_THE_MODEL"},
            "egress.headers": {"api.example.com": "Authorization: Bearer {stub}"},
        },
    )


def decide(heard: dict[str, Any]) -> bytes:
    """Answer as a model that takes the last legal action which is no form to fill in."""
    told = json.loads(json.loads(heard["body"])["messages"][1]["content"])
    legal = told.get("state", told).get("legal") or told["legal"]
    action = [entry for entry in legal if not entry.get("open")][-1]
    reply = {"choices": [{"message": {"role": "assistant", "content": json.dumps(action)}}]}
    return json.dumps(reply).encode()


def make_host(root: Path, world: Any, reached: WayOut) -> Host:
    config = HostConfig(
        node_id="here", root=root, images=shipped("images"), limits=Limits(), slots=2, way_out=reached
    )
    return Host(config, make_tier("process", root / "sandboxes"), dialer=world.open_dialer)


def order(environment_type: str, epoch: int = 1) -> SandboxOrder:
    return SandboxOrder(
        name=f"{environment_type}-1",
        lease_id="did:plc:alice::game",
        epoch=epoch,
        agent_did="did:plc:alice",
        environment_id="game",
        environment_type=environment_type,
    )


@pytest.mark.parametrize("environment_type", ["catan", "rpg"])
async def test_a_decision_is_taken_by_a_model_and_the_key_stays_on_the_node(
    world: Any, settings: Settings, tmp_path: Path, environment_type: str
) -> None:
    world.upstream.answer = decide
    host = make_host(tmp_path, world, way_out(settings))
    request = RULES[environment_type].new(4, 7, {}).request()
    assert request is not None
    assert request.legal is not None
    sandbox = connect_sandbox(await host.create(order(environment_type)), epoch=1)
    result = await sandbox.turn(request.state, turn=1)
    assert result.skip is None
    assert result.action == request.legal[-1]
    (heard,) = world.upstream.heard
    assert ["authorization", f"Bearer {KEY}"] in heard["headers"]
    assert json.loads(heard["body"])["model"] == "stub-1"
    seen = (await sandbox.exec(["python3", "-c", LOOK], timeout=30)).text
    assert "MODEL_URL=http://model.skylease.internal/v1/chat/completions" in seen
    assert KEY not in seen
    assert "api.example.com" not in seen
    await sandbox.close()
    await host.destroy(f"{environment_type}-1")
    assert (await host.report())["egress"] == {"allowed": 1}


async def test_a_model_plays_catan(
    world: Any, settings: Settings, tmp_path: Path, running_line: RunningLine
) -> None:
    world.upstream.answer = decide
    async with running_line(tmp_path, way_out=way_out(settings), dialer=world.open_dialer) as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents([line.agent(player, master) for player in (alice, bob)])
        game = line.master(master, [alice, bob])
        async with asyncio.timeout(60):
            await game.run()
        status = await game.status()
        assert (status["outcome"]["turns"], status["skipped"]) == (12, 0), await line.reasons(master)
        assert len(world.upstream.heard) == 12
        await line.until({LeaseStatus.DESTROYED}, 2)
        for task in agents:
            task.cancel()


async def test_a_host_that_starts_again_serves_what_lives(
    world: Any, settings: Settings, tmp_path: Path
) -> None:
    world.upstream.answer = decide
    reached = way_out(settings)
    first = make_host(tmp_path, world, reached)
    sandbox = connect_sandbox(await first.create(order("catan")), epoch=1)
    await first._gateway.close_all()  # as if its process had been killed
    state = Catan.new(4, 7, {}).request()
    assert state is not None
    skipped = await sandbox.turn(state.state, turn=1)
    assert skipped.action is None
    second = make_host(tmp_path, world, reached)
    ready = asyncio.Event()
    running = asyncio.ensure_future(second.run(ready.set))
    await ready.wait()
    assert (await sandbox.turn(state.state, turn=1)).action is not None
    await sandbox.close()
    (info,) = await second._tier.list({})
    assert info.pid is not None
    os.kill(info.pid, signal.SIGKILL)  # its directory is made anew, and its way out with it
    async with asyncio.timeout(10):
        while (await second._tier.inspect("catan-1")).state is not SandboxState.FAILED:
            await asyncio.sleep(0.01)  # it dies as soon as the kernel comes to it
    again = connect_sandbox(await second.create(order("catan")), epoch=1)
    assert (await again.turn(state.state, turn=2)).action is not None
    await again.close()
    await second.create(order("catan", epoch=2))  # a new holder: the old sandbox and its way out are gone
    assert second._gateway.names() == ["catan-1"]
    await second.destroy("catan-1")
    assert second._gateway.names() == []
    running.cancel()
