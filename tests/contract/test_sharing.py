"""A shared sandbox on every tier: four priorities, states that another process brings back, guests."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import InvalidSpec, SandboxBusy, SandboxGone, SandboxNotFound, SandboxState, StaleEpoch
from sandboxes.sharing import (
    AfterUse,
    Caller,
    GuardLost,
    Lent,
    OnUnreadable,
    Scope,
    Sharing,
    Source,
    SqliteStates,
    StateLost,
    StateUnreadable,
    Wanted,
    key_of,
    sandbox_name,
    visit,
)
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.snapshots.errors import StoreUnavailable

Bench = Any
OTHER_PROCESS = """\
import asyncio, json, sys
from pathlib import Path
from sandboxes import ImageSpec, SandboxSpec
from sandboxes.sharing import Invitation, Sharing, SqliteStates, Wanted, tiers_over, visit
from sandboxes.snapshots import LocalStore, Snapshots
told = json.loads(sys.stdin.read())
place = Path(told["place"])

async def bring_back():
    image = ImageSpec(name="test", root=Path(told["image"]), reference=told["reference"])
    wanted = Wanted(spec=SandboxSpec(name="x", epoch=0, image=image), state=told["state"].encode())
    snapshots = Snapshots(LocalStore(place / "store"), place / "scratch2")
    states = SqliteStates(place / "states.db")
    async with Sharing(tiers_over(Path(told["root"])), states, snapshots, node="other") as sharing:
        lent = await sharing.acquire(wanted)
        seen = (await lent.sandbox.exec(told["line"])).stdout.decode()
        state = await sharing.release(lent)
        return {"source": lent.source, "seen": seen, "state": state.decode()}

async def be_guest():
    directory, name, epoch = told["invitation"]
    invitation = Invitation(directory=Path(directory), name=name, epoch=epoch)
    async with visit(invitation, env={"WHO": "guest"}) as guest:
        done = await guest.sandbox.exec(told["line"], session=guest.session)
        return {"seen": done.stdout.decode()}

print(json.dumps(asyncio.run(be_guest() if "invitation" in told else bring_back())))
"""


async def elsewhere(**told: Any) -> Any:
    """What another process makes of it."""
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", OTHER_PROCESS],
        input=json.dumps(told).encode(),
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


class Party:
    """What the tests share sandboxes with."""

    def __init__(self, bench: Bench, place: Path) -> None:
        self.bench, self.place = bench, place
        self.states = SqliteStates(place / "states.db")
        self.snapshots = Snapshots(LocalStore(place / "store"), place / "scratch")
        self.caller = Caller(agent_id=f"agent-{os.getpid()}-{place.name}")
        spec = bench.spec("x", epoch=0)
        self.wanted = Wanted(
            spec=spec, tier=bench.tier.name, scope=Scope.AGENT, caller=self.caller, wait_s=0.2
        )
        key = key_of(Scope.AGENT, self.caller)
        assert key is not None
        self.key, self.name = key, sandbox_name(key)

    def sharing(self, node: str = "here") -> Sharing:
        return Sharing(
            lambda name: self.bench.tier, self.states, self.snapshots, node=node, guests_wait_s=0.05
        )

    async def use(self, line: str, **changes: Any) -> tuple[str, str]:
        async with self.sharing() as sharing, sharing.lend(replace(self.wanted, **changes)) as lent:
            return lent.source, (await lent.sandbox.exec(line)).stdout_text


@pytest.fixture
async def party(bench: Bench, tmp_path: Path) -> AsyncIterator[Party]:
    party = Party(bench, tmp_path)
    yield party
    async with party.sharing() as sharing:
        await sharing.sweep(bench.tier.name, idle_s=0)
    party.states.close()
    await bench.tier.destroy(party.name)
    await bench.check_gone(party.name)


async def test_a_state_is_brought_back_by_another_process(party: Party) -> None:
    party.bench.need("sleep")
    async with party.sharing() as sharing:
        lent = await sharing.acquire(party.wanted)
        await lent.sandbox.exec("echo one > memo")
        state = await sharing.release(lent)
        assert await sharing.release(lent) == state  # twice is once
    assert state is not None
    assert json.loads(state)["type"] == party.bench.tier.name
    image = party.bench.image
    told = {"place": str(party.place), "root": str(party.bench.root), "image": str(image.root)}
    seen = await elsewhere(
        **told, reference=image.reference, state=state.decode(), line="cat memo; echo two >> memo"
    )
    assert (seen["source"], seen["seen"]) == (Source.EXTERNAL_STATE, "one\n")
    assert await party.bench.tier.list() == []
    async with party.sharing() as sharing:
        lent = await sharing.acquire(replace(party.wanted, state=seen["state"].encode()))
        assert (await lent.sandbox.exec("cat memo")).stdout == b"one\ntwo\n"
        assert await sharing.release(lent) is not None
    # The scope's next holder finds the newest files, too, whoever wrote them.
    assert await party.use("cat memo") == (Source.STORED_STATE, "one\ntwo\n")


async def test_a_sandbox_that_stays_is_the_same_one(party: Party) -> None:
    party.bench.need("sleep")
    line = "echo x >> memo; cat memo"
    assert await party.use(line, after_use=AfterUse.STAY) == (Source.CREATED, "x\n")
    (info,) = await party.bench.tier.list()
    assert info.state is SandboxState.WAITING
    assert await party.use(line, after_use=AfterUse.STAY) == (Source.STORED_STATE, "x\nx\n")
    (again,) = await party.bench.tier.list()
    assert (again.name, again.created_ms) == (info.name, info.created_ms)


async def test_guests_share_and_the_last_one_out_lets_it_go(party: Party) -> None:
    party.bench.need("sleep")
    async with party.sharing() as sharing:
        lent = await sharing.acquire(party.wanted)
        invitation = lent.invitation()
        told = (str(invitation.directory), invitation.name, invitation.epoch)
        line = "echo $WHO > from-guest; echo $WHO"
        assert (await elsewhere(place="", invitation=told, line=line))["seen"] == "guest\n"
        assert (await lent.sandbox.exec("cat from-guest; echo $WHO")).stdout == b"guest\n\n"
        async with visit(invitation):
            with pytest.raises(SandboxBusy, match="have not left"):
                await sharing.release(lent)
            assert (await lent.sandbox.exec("true")).exit_code == 0  # nothing happened
        await sharing.release(lent)
        with pytest.raises(SandboxGone):
            async with visit(invitation):
                pass


async def test_what_is_handed_in_is_kept_and_never_destroyed(party: Party, name: str) -> None:
    party.bench.need("sleep")
    theirs = await party.bench.tier.create(party.bench.spec(name, epoch=4))
    await theirs.exec("echo theirs > memo")
    async with party.sharing() as sharing:
        async with sharing.lend(replace(party.wanted, sandbox=theirs)) as lent:
            assert (lent.source, lent.sandbox, lent.key) == (Source.EXTERNAL_SANDBOX, theirs, None)
        assert party.snapshots.epoch(name) == 4
        assert (await theirs.exec("cat memo")).stdout == b"theirs\n"
        await party.bench.tier.destroy(name)
        with pytest.raises(SandboxNotFound):
            await sharing.acquire(replace(party.wanted, sandbox=theirs))
    await theirs.close()
    assert party.states.keys() == []


async def test_for_one_use_nothing_is_kept(party: Party) -> None:
    async with party.sharing() as sharing:
        lent = await sharing.acquire(replace(party.wanted, scope=Scope.SESSION))
        assert (lent.source, lent.key, lent.name[:5]) == (Source.CREATED, None, "once-")
        assert await sharing.release(lent) is None
    assert await party.bench.tier.list() == []
    assert (party.states.keys(), party.snapshots.owners()) == ([], [])


async def test_a_cancelled_acquire_leaves_nothing_and_nobody_waits(party: Party) -> None:
    async with party.sharing() as sharing:
        for pause_s in (0.0, 0.02, 0.15):
            asking = asyncio.ensure_future(sharing.acquire(party.wanted))
            await asyncio.sleep(pause_s)
            if not asking.cancel():  # it was quicker
                await sharing.abandon(lent := await asking)
                await party.bench.tier.destroy(lent.name)
                continue
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await party.bench.tier.list() == []
        lent = await sharing.acquire(replace(party.wanted, wait_s=0.0))
        await sharing.abandon(lent)


class Full(LocalStore):
    """A store without room."""

    is_full = True

    def put(self, *arguments: Any) -> None:
        if self.is_full:
            raise StoreUnavailable("the store", "it is full")
        super().put(*arguments)


async def test_a_block_that_cannot_keep_its_files_lets_the_next_one_in(party: Party) -> None:
    party.bench.need("sleep")
    store = Full(party.place / "store")
    party.snapshots = Snapshots(store, party.place / "scratch")
    async with party.sharing() as sharing:
        with pytest.raises(StoreUnavailable):
            async with sharing.lend(party.wanted) as lent:
                await lent.sandbox.exec("echo kept > memo")
        store.is_full = False
        async with sharing.lend(replace(party.wanted, wait_s=0.0)) as lent:
            assert (await lent.sandbox.exec("cat memo")).stdout == b"kept\n"


async def test_a_store_that_is_full_loses_nothing(party: Party) -> None:
    party.bench.need("sleep")
    store = Full(party.place / "store")
    party.snapshots = Snapshots(store, party.place / "scratch")
    async with party.sharing() as sharing:
        lent = await sharing.acquire(party.wanted)
        await lent.sandbox.exec("echo kept > memo")
        with pytest.raises(StoreUnavailable, match="full"):
            await sharing.release(lent)
        assert (await lent.sandbox.exec("cat memo")).stdout == b"kept\n"
        with pytest.raises(StoreUnavailable):
            await sharing.release(lent)
        await sharing.abandon(lent)
    store.is_full = False
    assert await party.use("cat memo") == (Source.STORED_STATE, "kept\n")


async def test_a_newer_holder_keeps_the_older_one_out(party: Party) -> None:
    party.bench.need("sleep")
    async with party.sharing() as sharing, party.sharing() as other:
        late = await sharing.acquire(party.wanted)
        await late.sandbox.exec("echo late > memo")
        assert late.held is not None
        sharing._guard.latch.leave(
            party.key, late.held.holder
        )  # as if its time were over, and it knew nothing
        newer = await other.acquire(party.wanted)
        assert newer.token > late.token
        assert (await newer.sandbox.exec("cat memo; echo newer > memo")).stdout == b"late\n"
        with pytest.raises(StaleEpoch):
            await late.sandbox.exec("echo late > memo")
        with pytest.raises(GuardLost):
            await sharing.release(late)
        await other.release(newer)
    assert await party.use("cat memo") == (Source.STORED_STATE, "newer\n")


@pytest.mark.parametrize("garbage", [b"garbage", b'{"format": 9}'], ids=["no-json", "other-format"])
async def test_a_state_that_cannot_be_read_is_an_error_and_kept(party: Party, garbage: bytes) -> None:
    party.states.claim(party.key, 1)
    party.states.save(party.key, 1, garbage)
    with pytest.raises(StateUnreadable, match="was kept as it is"):
        await party.use("true")
    assert party.states.keys() == [party.key]
    source, _ = await party.use("true", on_unreadable=OnUnreadable.FRESH, after_use=AfterUse.STAY)
    assert source == Source.CREATED
    assert party.states.aside(party.key) == garbage


async def test_a_snapshot_that_is_gone_is_an_error_unless_fresh_is_wanted(party: Party) -> None:
    party.bench.need("sleep")
    await party.use("echo x > memo")
    party.snapshots.forget(party.name)
    with pytest.raises(StateLost, match="not in the snapshot store"):
        await party.use("true")
    assert party.states.keys() == [party.key]
    fresh = await party.use("cat memo || echo none", on_unreadable=OnUnreadable.FRESH)
    assert fresh == (Source.CREATED, "none\n")


async def test_states_that_were_forgotten_cost_no_file(party: Party) -> None:
    """Say, a Redis that was killed and kept nothing: the sandbox's snapshots are found by its name."""
    party.bench.need("sleep")
    await party.use("echo x > memo")
    party.states.close()
    for file in party.place.glob("states.db*"):
        file.unlink()
    party.states = SqliteStates(party.place / "states.db")
    assert await party.use("cat memo") == (Source.STORED_STATE, "x\n")


def test_both_handed_in_makes_no_sense(party: Party) -> None:
    with pytest.raises(InvalidSpec):
        replace(party.wanted, state=b"{}", sandbox=Lent.__new__(Lent))  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec):
        replace(party.wanted, wait_s=-1.0)
