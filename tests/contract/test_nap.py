"""Freezing: everything in a sandbox stops and stays, and its next request finds it as it was."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import Limits, SandboxBusy, SandboxNotFound, SandboxState


async def test_a_frozen_sandbox_wakes_with_its_next_command(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    process = await sandbox.start_process("while true; do echo tick; sleep 0.02; done")
    await process.wait_for_log("tick", timeout=10)
    await bench.tier.freeze(name)
    await bench.tier.freeze(name)  # again: nothing changes
    assert (await bench.tier.inspect(name)).state is SandboxState.WAITING
    assert await bench.tier.look(name) == replace(await bench.tier.inspect(name), leftovers=())
    assert [info.state for info in await bench.tier.list()] == [SandboxState.WAITING]
    assert await bench.tier.sweep() == ()
    before = _cpu_ticks(await bench.tier.inspect(name))
    await asyncio.sleep(0.3)
    assert _cpu_ticks(await bench.tier.inspect(name)) == before
    assert (await sandbox.exec("echo awake")).text == "awake\n"
    assert (await bench.tier.inspect(name)).state is SandboxState.WARM
    assert [entry["running"] for entry in await sandbox.list_processes()] == [True]
    await bench.tier.freeze(name)
    assert (await (await bench.again().connect(name)).turn({"code": "print('{}')"}, turn=1)).action == {}
    await bench.tier.freeze(name)
    await bench.again().thaw(name)
    await bench.again().thaw(name)
    assert (await bench.tier.inspect(name)).state is SandboxState.WARM


def _cpu_ticks(info: Any) -> list[str]:
    """Return what the processes of a sandbox have used of the cpu so far."""
    used = []
    for word in info.leftovers:
        if word.startswith("process "):
            fields = Path(f"/proc/{word.split()[1]}/stat").read_text().rpartition(") ")[2].split()
            used.append(f"{word}: {fields[11]} {fields[12]}")
    return sorted(used)


async def test_a_running_command_is_never_frozen(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    line = "echo begun > mark; until [ -e go ]; do sleep 0.02; done; echo done"
    running = asyncio.ensure_future(sandbox.exec(line))
    async with asyncio.timeout(30):
        while not await bench.again().connect(name) or not await sandbox.exists("mark"):
            await asyncio.sleep(0.01)
    with pytest.raises(SandboxBusy):
        await bench.again().freeze(name)
    await sandbox.write_file("go", b"")
    assert (await running).text == "done\n"
    await bench.tier.freeze(name)


async def test_a_frozen_sandbox_can_be_destroyed(bench: Any, name: str) -> None:
    await bench.tier.create(bench.spec(name))
    await bench.tier.freeze(name)
    await bench.again().destroy(name)
    assert await bench.tier.look(name) == await bench.tier.inspect(name)  # nothing is left, searched for
    await bench.check_gone(name)
    for verb in (bench.tier.freeze, bench.tier.thaw):
        with pytest.raises(SandboxNotFound):
            await verb(name)


async def test_time_that_it_was_frozen_is_not_idleness(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name, limits=Limits(idle_deadline_s=2.0)))
    await bench.tier.freeze(name)
    await asyncio.sleep(2.5)
    assert (await sandbox.exec("echo alive")).text == "alive\n"
