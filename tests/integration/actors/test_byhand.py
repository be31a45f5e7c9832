"""What is done by hand goes the way that it goes by itself; the whole line in one process, without Ray."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors.cli.leases import _event
from actors.errors import NotThere, Refused
from actors.faces import LeaseRequest, Placement
from leases import Cause, LeaseStatus, LedgerReader, SandboxState
from sandboxes import SandboxBusy, SandboxNotFound, UnknownImage, connect_sandbox, open_tier
from sandboxes import SandboxState as Pooled
from sandboxes.errors import DataInUse

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py
ALICE, BOB, CAROL, GM = (f"did:plc:{name}" for name in ("alice", "bob", "carol", "gm"))


async def leased(line: Any, agent: str = ALICE, environment: str = "catan-1") -> Placement:
    request = LeaseRequest(
        agent_did=agent,
        environment_id=environment,
        environment_type="catan",
        authority_did=GM,
        node_id="here",
    )
    placement: Placement = await line.supervisor.acquire(request)
    return placement


def name_of(placement: Placement) -> str:
    return placement.directory.name


def history(root: Path, lease_id: str) -> list[tuple[Cause, str | None]]:
    with LedgerReader(root / "ledger.db") as ledger:
        return [(event.cause, event.detail.get("why")) for event in ledger.history(lease_id)]


async def test_sleep_and_wake_are_in_the_ledger_and_not_billed(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        alice = await leased(line)
        name = name_of(alice)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            await sandbox.write_file("memo", b"kept")
        assert (await line.supervisor.pause(name))["state"] == Pooled.WAITING
        assert [seen.state for seen in await line.host.list()] == [Pooled.WAITING]
        for _ in range(2):  # one that sleeps is left asleep
            told = await line.supervisor.put_to_sleep(name)
            assert (told["status"], told["state"]) == (LeaseStatus.SLEEPING, SandboxState.COLD)
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            (slept,) = [event for event in ledger.history(alice.lease_id) if event.cause is Cause.SLEPT]
            assert ledger.awake_ms(ALICE) == slept.at - ledger.get(alice.lease_id).leased_at
            assert [placed.state for placed in ledger.sandboxes()] == [SandboxState.COLD]
        assert await line.host.list() == []
        with pytest.raises(Refused, match="asleep"):
            await line.supervisor.pause(name)
        assert (await line.supervisor.wake(name))["status"] == LeaseStatus.ACTIVE
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            assert await sandbox.read_file("memo") == b"kept"
        whys = [entry for entry in history(tmp_path, alice.lease_id) if entry[1]]
        assert whys == [(Cause.SLEPT, "operator"), (Cause.WOKEN, "operator")]


async def test_who_runs_is_left_alone(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        alice = await leased(line)
        name = name_of(alice)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            running = asyncio.create_task(sandbox.exec("touch begun; until [ -e end ]; do sleep 0.05; done"))
            async with asyncio.timeout(20):
                while (await sandbox.exec("test -e begun")).exit_code:
                    await asyncio.sleep(0.01)
            for verb in (
                line.supervisor.pause(name),
                line.supervisor.put_to_sleep(name),
                line.supervisor.fork(name, BOB, None),
            ):
                with pytest.raises(SandboxBusy, match="a request is running"):
                    await verb
            await sandbox.exec("touch end")
            assert (await running).exit_code == 0
        assert (Cause.SLEPT, "operator") not in history(tmp_path, alice.lease_id)
        await line.until_ended(f"{BOB}::catan-1")  # the fork that failed left nothing


async def test_all_are_put_to_sleep_but_who_runs(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        alice, bob = await leased(line), await leased(line, BOB)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            running = asyncio.create_task(sandbox.exec("touch begun; until [ -e end ]; do sleep 0.05; done"))
            async with asyncio.timeout(30):
                while (await sandbox.exec("test -e begun")).exit_code:
                    await asyncio.sleep(0.01)
            told = {row["lease"]: row for row in await line.supervisor.put_all_to_sleep()}
            assert told[bob.lease_id]["status"] == LeaseStatus.SLEEPING
            assert told[alice.lease_id]["status"] == LeaseStatus.ACTIVE
            assert "a request is running" in told[alice.lease_id]["why"]
            await sandbox.exec("touch end")
            assert (await running).exit_code == 0
        (told_now,) = await line.supervisor.put_all_to_sleep()
        assert (told_now["lease"], told_now["status"]) == (alice.lease_id, LeaseStatus.SLEEPING)
        assert (await line.host.list(), await line.supervisor.put_all_to_sleep()) == ([], [])


async def test_a_fork_has_the_files_and_a_lease_of_its_own(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        alice = await leased(line)
        name = name_of(alice)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            await sandbox.write_file("memo", b"before")
        bobs = await line.supervisor.fork(name, BOB, None)  # of one that is awake
        with pytest.raises(Refused, match="has a lease in catan-1"):
            await line.supervisor.fork(name, BOB, None)
        with pytest.raises(DataInUse):  # Alice's /data is not shared by two that live
            await line.supervisor.fork(name, ALICE, "catan-2")
        await line.supervisor.put_to_sleep(name)
        carols = await line.supervisor.fork(name, CAROL, "catan-3")  # of one that sleeps
        for fork in (bobs, carols):
            placement = await line.supervisor.recover(fork["lease"], 1)
            async with connect_sandbox(placement.directory, epoch=1) as sandbox:
                assert await sandbox.read_file("memo") == b"before"
                await sandbox.write_file("memo", b"after")
        await line.supervisor.wake(name)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            assert await sandbox.read_file("memo") == b"before"
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            source, forked = ledger.get(alice.lease_id), ledger.get(carols["lease"])
            assert (forked.environment_id, forked.agent_did) == ("catan-3", CAROL)
            assert (forked.authority_did, forked.expiry_conditions) == (GM, source.expiry_conditions)
        await line.supervisor.end(carols["lease"])
        await line.until_ended(carols["lease"])
        await line.until_ended(f"{ALICE}::catan-2")


async def test_a_guest_has_a_lease_of_its_own_in_the_same_sandbox(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        alice = await leased(line)
        told = await line.supervisor.share(name_of(alice), BOB, None)
        assert (told["lease"], told["sandbox"]) == (f"{BOB}::catan-1", name_of(alice))
        assert (told["shared_with"], told["status"]) == (alice.lease_id, LeaseStatus.ACTIVE)
        with pytest.raises(Refused, match="has a lease in catan-1"):
            await line.supervisor.share(name_of(alice), BOB, None)
        assert len(await line.host.list()) == 1
        await line.supervisor.end(alice.lease_id)
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            assert ledger.get(told["lease"]).tier == "process"  # it pays from now on
        await line.supervisor.end(told["lease"])
        await line.until_ended(told["lease"])
        await line.until_ended(alice.lease_id)


async def test_a_sandbox_that_is_killed_is_an_event_of_its_lease(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        alice = await leased(line)
        name = name_of(alice)
        async with connect_sandbox(alice.directory, epoch=1) as sandbox:
            await sandbox.write_file("memo", b"kept")
        await line.supervisor.put_to_sleep(name)
        await line.supervisor.wake(name)
        (info,) = await open_tier("process", tmp_path / "sandboxes").list({})
        assert info.pid is not None
        os.kill(info.pid, signal.SIGKILL)  # from outside
        async with asyncio.timeout(20):
            while (await line.host.find(name)).alive:
                await asyncio.sleep(0.01)
        placement = await line.supervisor.recover(alice.lease_id, 1)  # before any repair
        async with connect_sandbox(placement.directory, epoch=1) as sandbox:
            assert await sandbox.read_file("memo") == b"kept"
        causes = [cause for cause, why in history(tmp_path, alice.lease_id) if why]
        assert causes == [Cause.SLEPT, Cause.WOKEN, Cause.SANDBOX_LOST, Cause.WOKEN]
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            events = ledger.history(alice.lease_id)
        lost = next(event for event in events if event.cause is Cause.SANDBOX_LOST)
        assert (lost.sandbox_id, lost.node_id) == (name, "here")
        assert "found dead on here" in _event(lost, None)["told"]


async def test_a_tier_without_slots_says_so(
    running_line: RunningLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def can_warm(tier: object) -> str:
        return "its kernel mounts nothing"

    monkeypatch.setattr("sandboxes.tiers.process.ProcessTier.can_warm", can_warm)
    async with running_line(tmp_path) as line:
        with pytest.raises(
            Refused, match=r"node here: no warm slots: its kernel mounts nothing; every sandbox"
        ):
            await line.supervisor.prewarm("catan", 1)


async def test_what_nobody_knows(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        supervisor, bob = line.supervisor, await leased(line, BOB)
        await supervisor.end(bob.lease_id)
        for name, says in (("no-such", "no lease has"), (name_of(bob), "is over")):
            for verb in (
                supervisor.pause(name),
                supervisor.put_to_sleep(name),
                supervisor.wake(name),
                supervisor.fork(name, ALICE, None),
            ):
                with pytest.raises(NotThere, match=says):
                    await verb
        with pytest.raises(UnknownImage):
            await supervisor.prewarm("chess", 1)
        alice = await leased(line)
        await line.host.destroy(name_of(alice))  # nothing is left, and nobody told the ledger
        with pytest.raises(SandboxNotFound):
            await supervisor.put_to_sleep(name_of(alice))
