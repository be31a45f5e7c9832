"""A budget that is spent under a game: the agent sleeps and skips with the reason, and plays on with more."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors.faces import LeaseRequest
from leases import BudgetExceeded, Cause, LeaseStatus, LedgerReader
from sandboxes import connect_sandbox

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py
HOUR = 3_600_000


async def test_a_spent_agent_sleeps_skips_its_turns_and_plays_on_when_it_is_given_more(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents([line.agent(player, master) for player in (alice, bob)])
        game = line.master(master, [alice, bob], settings={"turn_cap": 60})
        running = line.tasks.create_task(game.run())
        async with asyncio.timeout(60):
            while (await game.status())["turn"] < 4:
                await asyncio.sleep(0.01)
            await line.supervisor.set_budget(alice.did, 0.001 / 3600)
            while not any(reason.startswith("budget: ") for reason in await line.reasons(master)):
                await asyncio.sleep(0.05)
            report = await line.supervisor.status()
            assert [told["agent"] for told in report["budgets"]] == [alice.did]
            assert report["counters"]["budget_warnings"] == 1
            assert [seen.lease_id for seen in await line.host.list()] == [f"{bob.did}::catan-1"]
            await line.supervisor.set_budget(alice.did, None)
            await running
        assert all("awake hours" in reason for reason in await line.reasons(master))
        await line.until({LeaseStatus.DESTROYED}, 2)
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            causes = [event.cause for event in ledger.history(f"{alice.did}::catan-1")]
            why = [event.detail for event in ledger.history(f"{alice.did}::catan-1") if "why" in event.detail]
            assert {"why": "budget"} in why
            assert causes.index(Cause.WARNED) < causes.index(Cause.SLEPT)
            assert Cause.SLEPT not in [event.cause for event in ledger.history(f"{bob.did}::catan-1")]
        for task in agents:
            task.cancel()


async def test_a_sleeping_lease_is_refused_its_wake_and_keeps_its_files(
    running_line: RunningLine, tmp_path: Path
) -> None:
    request = LeaseRequest(
        agent_did="did:plc:alice234567",
        environment_id="catan-1",
        environment_type="catan",
        authority_did="did:plc:master",
        node_id="here",
    )
    async with running_line(tmp_path) as line:
        placement = await line.supervisor.acquire(request)
        async with connect_sandbox(placement.directory, epoch=placement.epoch) as sandbox:
            await sandbox.write_file("memo", b"kept")
        await line.supervisor.set_budget(None, 1 / HOUR)
        await line.until({LeaseStatus.SLEEPING}, 1)
        with pytest.raises(BudgetExceeded, match="raise its budget"):
            await line.supervisor.recover(placement.lease_id, placement.epoch)
        with pytest.raises(BudgetExceeded, match="raise its budget"):
            await line.supervisor.acquire(request)
        (held,) = await line.supervisor.live_leases(request.agent_did)  # an agent that restarts may ask
        assert (held.directory, held.is_awake) == (placement.directory, False)
        assert await line.supervisor.renew(placement.lease_id, placement.epoch, 1, 1)
        assert await line.host.list() == []
        await line.supervisor.set_budget(None, 100)
        again = await line.supervisor.acquire(request)
        async with connect_sandbox(again.directory, epoch=again.epoch) as sandbox:
            assert await sandbox.read_file("memo") == b"kept"
