"""What a person does with sandboxes by hand, typed on a running system; one system serves all of it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leases import Cause, LedgerReader
from sandboxes import SandboxState, connect_sandbox

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

ALICE, BOB = "did:plc:alice", "did:plc:bob"
LEASE = f"""
import asyncio
from actors.cluster import attach
from actors.faces import LeaseRequest
from actors.remote import RemoteActor, RemoteSupervisor
from actors.settings import load_settings

async def main():
    async with attach(load_settings(), slots=1, actors=0):
        told = await RemoteActor("supervisor").call("describe")
        placed = await RemoteSupervisor().acquire(LeaseRequest(agent_did={ALICE!r}, environment_id="catan-1",
            environment_type="catan", authority_did="did:plc:gm", node_id=told["nodes"][0]))
        print(placed.directory)

asyncio.run(main())
"""


def leased(skylease: Any) -> Path:
    """A lease that no game ends, as an agent would ask for it; the directory of its sandbox."""
    ran = subprocess.run(
        [sys.executable, "-c", LEASE],
        env=skylease.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Path(ran.stdout.strip())


def by_hand(skylease: Any, *words: str) -> dict[str, Any]:
    ran = skylease.run("sandboxes", *words, "--json")
    assert ran.code == 0, ran.err
    (told,) = ran.objects
    return dict(told)


def refused(ran: Any, code: int, *says: str) -> None:
    assert (ran.code, ran.out) == (code, ""), ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("skylease: "), ran.err
    assert all(word in last for word in says), last


def states(skylease: Any) -> dict[str, str]:
    rows = skylease.run("sandboxes", "list", "--json").objects
    return {row["name"]: row["state"] for row in rows if row["kind"] == "sandbox"}


async def test_the_verbs_on_a_running_system(skylease_up: Any) -> None:
    directory = leased(skylease_up)
    name, ledger_path = directory.name, skylease_up.root / "ledger.db"
    if os.geteuid() == 0:  # else the process tier has no warm slots
        assert by_hand(skylease_up, "prewarm", "catan", "--count", "2")["ready"] == 2
    assert by_hand(skylease_up, "pause", name)["state"] == SandboxState.WAITING
    assert states(skylease_up)[name] == SandboxState.WAITING
    async with connect_sandbox(directory, epoch=1) as sandbox:
        await sandbox.write_file("memo", b"kept")
        running = asyncio.create_task(sandbox.exec("touch begun; until [ -e end ]; do sleep 0.05; done"))
        async with asyncio.timeout(30):
            while (await sandbox.exec("test -e begun")).exit_code:
                await asyncio.sleep(0.01)
        refused(await asyncio.to_thread(skylease_up.run, "sandboxes", "sleep", name), 4, name, "is running")
        await sandbox.exec("touch end")
        assert (await running).exit_code == 0
    told = by_hand(skylease_up, "sleep", name)
    assert (told["status"], told["state"]) == ("sleeping", SandboxState.COLD)
    assert states(skylease_up)[name] == SandboxState.COLD
    refused(skylease_up.run("sandboxes", "pause", name), 4, name, "asleep")
    with LedgerReader(ledger_path) as ledger:
        billed = ledger.awake_ms(ALICE)
    forked = by_hand(skylease_up, "fork", name, BOB, "--environment", "catan-2")
    assert (forked["lease"], forked["status"]) == (f"{BOB}::catan-2", "active")
    refused(skylease_up.run("sandboxes", "fork", name, BOB, "--environment", "catan-2"), 4, "has a lease")
    with LedgerReader(ledger_path) as ledger:
        assert ledger.awake_ms(ALICE) == billed
    assert by_hand(skylease_up, "wake", name)["status"] == "active"
    async with connect_sandbox(directory, epoch=1) as sandbox:
        assert await sandbox.read_file("memo") == b"kept"
    story = skylease_up.run("leases", "show", f"{ALICE}::catan-1", "--json").objects[0]["history"]
    whys = [(event["cause"], event["why"]) for event in story if event["why"]]
    assert whys == [(Cause.SLEPT, "operator"), (Cause.WOKEN, "operator")]
    assert {row["status"] for row in skylease_up.run("sandboxes", "sleep", "--all", "--json").objects} == {
        "sleeping"
    }
    refused(skylease_up.run("sandboxes", "sleep"), 2, "--all")
    refused(skylease_up.run("sandboxes", "wake", "no-such"), 3, "no-such", "sandboxes list")
    refused(skylease_up.run("sandboxes", "prewarm", "chess"), 3, "chess", "catan")
    ended = skylease_up.run("leases", "end", forked["lease"], "--json")
    assert (ended.code, ended.objects[0]["ended_by"]) == (0, "operator")
