"""Leases that nobody uses sleep and wake under a game, the whole line in one process, without Ray."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from actors.faces import LeaseRequest
from leases import Cause, LeaseStatus, LedgerReader, SandboxState
from sandboxes import connect_sandbox

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py


async def test_a_game_goes_on_after_everybody_slept(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path, sleep_after_ms=1_500, nap_after_s=0.1) as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents([line.agent(player, master) for player in (alice, bob)])
        host = line.tasks.create_task(line.host.run(lambda: None))
        first = line.master(master, [alice, bob])
        running = line.tasks.create_task(first.run())
        async with asyncio.timeout(60):
            while (await first.status())["turn"] < 5:
                await asyncio.sleep(0.01)
        running.cancel()  # nobody is asked for anything until the next game master comes
        (placement, _) = [(await line.supervisor.live_leases(player.did))[0] for player in (alice, bob)]
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            await sandbox.write_file("memo", b"what I wrote before I slept")
        await line.until({LeaseStatus.SLEEPING}, 2)
        assert await line.host.list() == []
        assert os.listdir(tmp_path / "sandboxes" / ".trash") == []
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            awake = {player.did: ledger.awake_ms(player.did) for player in (alice, bob)}
            assert [placed.state for placed in ledger.sandboxes()] == [SandboxState.COLD] * 2
        second = line.master(master, [alice, bob])
        resumed = line.tasks.create_task(second.run())
        with LedgerReader(tmp_path / "ledger.db") as ledger:  # asleep until they are asked: nothing billed
            for lease in ledger.list():
                slept = next(event for event in ledger.history(lease.id) if event.cause is Cause.SLEPT)
                assert awake[lease.agent_did] == slept.at - lease.leased_at
        (held,) = await line.supervisor.live_leases(alice.did)  # wakes nobody
        placement = await line.supervisor.recover(held.lease_id, held.epoch)
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            assert await sandbox.read_file("memo") == b"what I wrote before I slept"
        async with asyncio.timeout(60):
            await resumed
        await line.until({LeaseStatus.DESTROYED}, 2)
        whole = line.master(master, [alice, bob], environment_id="catan-2")
        async with asyncio.timeout(60):
            await whole.run()
        assert (await second.status())["game_log_sha256"] == (await whole.status())["game_log_sha256"]
        report = await line.host.report()
        assert 2 <= report["woken"] <= report["slept"]  # one may be asleep when the game ends
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            for lease in ledger.list(environment_id=placement.environment_id):
                causes = [event.cause for event in ledger.history(lease.id)]
                assert causes.count(Cause.SLEPT) - causes.count(Cause.WOKEN) in (0, 1)
        for task in (*agents, host):
            task.cancel()
    assert os.listdir(tmp_path / "snapshots" / "store" / "heads") == []  # over: nobody names them


async def test_an_idle_sandbox_naps_and_wakes_with_its_memory(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path, nap_after_s=0.1) as line:
        master, alice = [await line.account(name) for name in ("gamemaster", "alice")]
        host = line.tasks.create_task(line.host.run(lambda: None))
        placement = await line.supervisor.acquire(
            LeaseRequest(
                agent_did=alice.did,
                environment_id="catan-1",
                environment_type="catan",
                authority_did=master.did,
                node_id="here",
            )
        )
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            counting = await sandbox.start_process(["python3", "-c", "while True: pass"])
            async with asyncio.timeout(20):
                while not (placement.directory / "frozen.json").exists():
                    await asyncio.sleep(0.01)
            assert [seen.alive for seen in await line.host.list()] == [True]
            assert (await sandbox.exec("echo awake")).stdout == b"awake\n"
            assert [process["running"] for process in await sandbox.list_processes()] == [True]
            await counting.kill()
        assert (await line.host.report())["naps"] >= 1
        host.cancel()
