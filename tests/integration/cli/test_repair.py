"""`skylease leases repair`: what a crash left of a system that does not run any more."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from actors.host import LEASE_LABEL, load_image, make_tier
from actors.resources import shipped
from leases import LeaseStatus, Ledger, SandboxState
from sandboxes import Limits, SandboxSpec
from sandboxes.durable import data_folder
from sandboxes.sharing.sharing import KEY_LABEL
from sandboxes.sleep import directory_of, suspend
from sandboxes.snapshot_policy import SnapshotPolicy
from sandboxes.snapshots import open_snapshots

ALICE, BOB, CAROL, GM = (f"did:plc:{name}" for name in ("alice", "bob", "carol", "gm"))
COMMAND = "from actors.cli import main; main()"


def repair(root: Path, *words: str) -> list[dict[str, Any]]:
    argv = [sys.executable, "-c", COMMAND, "--data-dir", str(root), "leases", "repair", "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def make(root: Path, name: str, lease_id: str, labels: dict[str, str] | None = None) -> None:
    spec = SandboxSpec(
        name=name,
        epoch=1,
        labels={LEASE_LABEL: lease_id} if labels is None else labels,
        image=load_image(shipped("images"), "catan"),
        limits=Limits(),
    )
    sandbox = await make_tier("process", root / "sandboxes").create(spec)
    (sandbox.directory / "hydrated").touch()
    await sandbox.write_file("memo", b"kept")
    await sandbox.close()


async def put_away(root: Path, name: str) -> None:
    snapshots = open_snapshots(SnapshotPolicy(), root / "snapshots")
    await suspend(make_tier("process", root / "sandboxes"), name, snapshots)


def test_what_a_crash_left_is_said_first_and_repaired_then(tmp_path: Path) -> None:
    root = tmp_path / "nodes" / "127.0.0.1"
    with Ledger(tmp_path / "ledger.db") as ledger:
        leases = {}
        for agent in (ALICE, BOB, CAROL):
            lease = ledger.acquire(agent, "g", "catan", authority_did=GM).lease
            ledger.place(lease.id, 1, sandbox_id=f"box-{agent[8:]}", node_id="node")
            ledger.sandbox_state(f"box-{agent[8:]}", SandboxState.RUNNING)
            asyncio.run(make(root, f"box-{agent[8:]}", lease.id))
            leases[agent] = lease.id
        asyncio.run(put_away(root, "box-alice"))  # and killed before the ledger was told
        asyncio.run(put_away(root, "box-carol"))
        for cause_is_told in (ledger.expire(leases[CAROL], "ttl"), ledger.destroyed(leases[CAROL])):
            assert cause_is_told
        ledger.sleep(leases[BOB], 1)  # woken, and killed before the ledger was told
    asyncio.run(make(root, "orphan", "did:plc:gone::g"))
    shared = tmp_path / "shared"
    asyncio.run(make(shared, "by-scope", "", {KEY_LABEL: "GLOBAL"}))
    os.kill(asyncio.run(make_tier("process", shared / "sandboxes").inspect("by-scope")).pid or 0, 9)
    for agent in (ALICE, "did:plc:nobody"):
        (root / "data" / data_folder(agent)).mkdir(parents=True)
    found = {
        ("box-alice", "put to sleep"),
        ("box-bob", "adopted"),
        ("orphan", "destroyed"),
        ("box-carol", "forgotten"),
        (str(root / "data" / data_folder("did:plc:nobody")), "removed"),
    }
    told = repair(tmp_path, "--data", "--dry-run")
    assert {(row["name"], row["done"].removeprefix("would be ")) for row in told} == found
    assert all(row["done"].startswith("would be ") for row in told)
    done = {(row["name"], row["done"]) for row in repair(tmp_path, "--data")}
    assert done == found - {("box-alice", "put to sleep")}  # its node made room: no repair
    assert repair(tmp_path, "--data") == []
    with Ledger(tmp_path / "ledger.db") as ledger:
        statuses = {agent: ledger.get(lease).status for agent, lease in leases.items()}
        assert statuses == {
            ALICE: LeaseStatus.SLEEPING,
            BOB: LeaseStatus.ACTIVE,
            CAROL: LeaseStatus.DESTROYED,
        }
        ledger.check_invariants()
    assert os.listdir(root / "data") == [data_folder(ALICE)]
    assert (shared / "sandboxes" / "by-scope" / "sandbox.json").exists()  # it has a repair of its own
    asyncio.run(make_tier("process", shared / "sandboxes").destroy("by-scope"))
    tier = make_tier("process", root / "sandboxes")
    infos = asyncio.run(tier.list({}))
    assert [info.name for info in infos] == ["box-bob"]
    asyncio.run(tier.destroy("box-bob"))
    assert not directory_of(infos[0]).exists()
