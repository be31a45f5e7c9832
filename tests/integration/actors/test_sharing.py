"""A sub-agent leases into its parent's sandbox: one sandbox, two leases, gone with the last."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors.faces import LeaseRequest, Placement
from leases import LeaseEnded, LeaseStatus, LedgerReader, StaleEpoch
from sandboxes import connect_sandbox

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py


def request(agent: str, environment_id: str, **changes: Any) -> LeaseRequest:
    return LeaseRequest(
        agent_did=f"did:plc:{agent}",
        environment_id=environment_id,
        environment_type="catan",
        authority_did="did:plc:gm",
        node_id="here",
        **changes,
    )


async def said(placement: Placement, line: str) -> str:
    async with connect_sandbox(placement.directory, epoch=placement.sandbox_epoch) as sandbox:
        return (await sandbox.exec(line)).stdout_text


async def test_a_sub_agent_works_in_its_parents_sandbox(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        supervisor, host = line.supervisor, line.host
        host_task = line.tasks.create_task(host.run(lambda: None))
        parent = await supervisor.acquire(request("alice", "catan-1"))
        await supervisor.end(parent.lease_id)  # so that its epoch is not the guests' by accident
        await line.until({LeaseStatus.DESTROYED}, 1)
        parent = await supervisor.acquire(request("alice", "catan-1"))
        ask = request("bob", "side-1", share_with=(parent.lease_id, parent.epoch))
        guests = await asyncio.gather(*(supervisor.acquire(ask) for _ in range(3)))
        guest = guests[0]
        assert sorted(one.is_new for one in guests) == [False, False, True]
        assert {(one.directory, one.sandbox_epoch, one.epoch) for one in guests} == {(parent.directory, 2, 1)}
        assert await said(parent, "echo from the parent > memo; ls") != ""
        assert await said(guest, "cat memo; echo from the guest > memo") == "from the parent\n"
        assert len(await host.list()) == 1
        assert [one.lease_id for one in await supervisor.live_leases("did:plc:bob")] == [guest.lease_id]

        assert await host.suspend(
            parent.directory.name, 0
        )  # the whole of it sleeps, and whoever comes wakes it
        again = await supervisor.recover(guest.lease_id, guest.epoch)
        assert await said(again, "cat memo") == "from the guest\n"
        assert await said(parent, "cat memo") == "from the guest\n"

        await supervisor.end(parent.lease_id)
        await line.until({LeaseStatus.EXPIRED, LeaseStatus.ACTIVE}, 2)
        assert await supervisor.repair() == []
        assert await said(again, "cat memo") == "from the guest\n"
        with pytest.raises(LeaseEnded):
            await supervisor.acquire(request("carol", "x", share_with=(parent.lease_id, parent.epoch)))
        with pytest.raises(StaleEpoch):
            await supervisor.acquire(request("carol", "x", share_with=(parent.lease_id, 1)))
        await supervisor.end(guest.lease_id)
        await line.until({LeaseStatus.DESTROYED}, 2)
        assert await host.list() == []
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            ledger.check_invariants()
            paid = {cost.agent_did: cost.tier for cost in ledger.costs() if cost.cost_usd > 0}
            assert paid == {"did:plc:alice": "process", "did:plc:bob": "process"}
        host_task.cancel()
    assert os.listdir(tmp_path / "snapshots" / "store" / "heads") == []
