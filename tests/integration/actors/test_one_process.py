"""A game of Catan and what disturbs it, the whole line in one process, without Ray."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors import records
from actors.budgets import AtLimit
from actors.faces import LeaseRequest, SandboxOrder
from firehose import XrpcClient
from leases import LeaseEnded, LeaseStatus, LedgerReader, StaleEpoch
from sandboxes import connect_sandbox

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py


async def test_a_short_game_ends_every_lease_and_leaves_nothing(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents([line.agent(player, master) for player in (alice, bob)])
        game = line.master(master, [alice, bob])
        async with asyncio.timeout(60):
            await game.run()
        status = await game.status()
        assert status["outcome"]["turns"] == 12
        assert status["skipped"] == 0, await line.reasons(master)
        await line.until({LeaseStatus.DESTROYED}, 2)
        for task in agents:
            task.cancel()
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            for lease in ledger.list():
                assert lease.ended_by == "game.finished"
                ended = [event for event in ledger.history(lease.id) if event.is_ended]
                assert [event.author_did for event in ended] == [master.did]
        async with XrpcClient(line.endpoints.pds_url) as xrpc:
            for player in (alice, bob):
                actions, _ = await xrpc.list_records(player.did, records.GAME_ACTION, limit=100)
                turns = [action["value"]["turn"] for action in actions]
                assert len(turns) == len(set(turns)) > 0
                assert all("action" in action["value"] for action in actions)


async def test_a_killed_game_master_goes_on_from_its_own_records(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents([line.agent(player, master) for player in (alice, bob)])
        first = line.master(master, [alice, bob])
        running = line.tasks.create_task(first.run())
        async with asyncio.timeout(60):
            while (await first.status())["turn"] < 5:
                await asyncio.sleep(0.01)
        running.cancel()
        second = line.master(master, [alice, bob])
        async with asyncio.timeout(60):
            await second.run()
        whole = line.master(master, [alice, bob], environment_id="catan-2")
        async with asyncio.timeout(60):
            await whole.run()
        assert (await second.status())["game_log_sha256"] == (await whole.status())["game_log_sha256"]
        for task in agents:
            task.cancel()


async def test_strangers_end_nothing_start_nothing_and_are_counted(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        master, alice, mallory = [await line.account(name) for name in ("gamemaster", "alice", "mallory")]
        agents = line.start_agents([line.agent(alice, master)])
        async with XrpcClient(line.endpoints.pds_url) as xrpc, XrpcClient(line.endpoints.pds_url) as other:
            await xrpc.login(master.did, master.password)
            await other.login(mallory.did, mallory.password)
            opened = records.env_created(
                environment_id="catan-1",
                type="catan",
                players=[alice.did, mallory.did],
                settings={},
                now_ms=0,
            )
            await other.put_record(records.ENV_CREATED, "catan-evil", {**opened, "environment": "catan-evil"})
            await xrpc.put_record(records.ENV_CREATED, "catan-1", opened)
            await line.until({LeaseStatus.ACTIVE}, 1)
            over = records.game_finished(
                environment_id="catan-1",
                reason="mine",
                winner_did=mallory.did,
                turns=0,
                previous=None,
                now_ms=0,
            )
            await other.put_record(records.GAME_FINISHED, "catan-1", over)
            turn = records.game_turn(
                environment_id="catan-1",
                turn=1,
                player_did=alice.did,
                phase="roll",
                state={},
                deadline_ms=0,
                previous=None,
                now_ms=0,
            )
            await other.put_record(records.GAME_TURN, records.turn_key("catan-1", 1), turn)
            async with asyncio.timeout(20):
                while (await line.supervisor.status())["counters"].get("turn_from_stranger", 0) < 1:
                    await asyncio.sleep(0.05)
            counters = (await line.supervisor.status())["counters"]
            assert counters["ending.not_authority"] == 1
            assert line.statuses() == [LeaseStatus.ACTIVE]
            assert await xrpc.list_records(alice.did, records.GAME_ACTION) == ([], None)
            await xrpc.put_record(records.GAME_FINISHED, "catan-1", over)
            await line.until({LeaseStatus.DESTROYED}, 1)
        for task in agents:
            task.cancel()


REQUEST = LeaseRequest(
    agent_did="did:plc:alice234567",
    environment_id="catan-1",
    environment_type="catan",
    authority_did="did:plc:master",
    node_id="here",
)


async def test_concurrent_acquires_of_one_pair_create_one_sandbox(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        placements = await asyncio.gather(*(line.supervisor.acquire(REQUEST) for _ in range(20)))
        assert len({placement.directory for placement in placements}) == 1
        assert [placement.is_new for placement in placements].count(True) == 1
        assert len(await line.host.list()) == 1


@pytest.mark.parametrize(
    ("changes", "ended_by"),
    [
        pytest.param({"ttl_ms": 4000}, "ttl", id="nobody-renews"),
        pytest.param(
            {"budget_hours": 4.0 / 3600, "at_limit": AtLimit.END}, "budget", id="its-budget-is-used-up"
        ),
        pytest.param({}, "operator", id="an-operator-ends-it"),
    ],
)
async def test_other_ways_a_lease_ends(
    running_line: RunningLine, tmp_path: Path, changes: dict[str, Any], ended_by: str
) -> None:
    async with running_line(tmp_path, **changes) as line:
        placement = await line.supervisor.acquire(REQUEST)
        assert placement.directory.is_dir()
        if ended_by == "operator":
            await line.supervisor.end(placement.lease_id)
        await line.until({LeaseStatus.DESTROYED}, 1)
        assert not placement.directory.exists()
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            assert ledger.get(placement.lease_id).ended_by == ended_by
        assert await line.supervisor.renew(placement.lease_id, placement.epoch, 1, 1) is False
        with pytest.raises(LeaseEnded):
            await line.supervisor.recover(placement.lease_id, placement.epoch)


async def test_an_ended_lease_is_followed_by_one_with_the_next_epoch(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        first = await line.supervisor.acquire(REQUEST)
        await line.supervisor.end(first.lease_id)
        second = await line.supervisor.acquire(REQUEST)  # waits until the old sandbox is gone
        assert (first.epoch, second.epoch, second.is_new) == (1, 2, True)
        with pytest.raises(StaleEpoch):
            await line.supervisor.renew(first.lease_id, first.epoch, 1, 1)


async def test_a_dead_sandbox_is_made_again_and_an_orphan_is_removed(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        placement = await line.supervisor.acquire(REQUEST)
        await line.host.destroy(placement.directory.name)
        again = await line.supervisor.recover(placement.lease_id, placement.epoch)
        sandbox = connect_sandbox(again.directory, epoch=again.epoch)
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        await sandbox.close()
        order = SandboxOrder(
            name="orphan",
            lease_id="nobody",
            epoch=1,
            agent_did="did:plc:bob234567",
            environment_id="catan-9",
            environment_type="catan",
        )
        await line.host.create(order)
        async with asyncio.timeout(30):
            while not (await line.supervisor.status())["counters"].get("orphan_sandboxes"):
                await asyncio.sleep(0.1)
        assert len(await line.host.list()) == 1


async def test_a_sandbox_leased_while_the_host_is_asked_is_no_orphan(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        ask = line.host.list
        async with asyncio.timeout(20):
            while line.supervisor._repair.done_at == float(
                "-inf"
            ):  # its own first round is over, the next is 10 s away
                await asyncio.sleep(0.01)

        async def slow_list() -> Any:
            line.supervisor._repair.done_at = time.monotonic()  # so that this round stays the only one
            await line.supervisor.acquire(REQUEST)
            return await ask()

        line.host.list = slow_list
        line.supervisor._repair.done_at = float("-inf")
        await line.supervisor._repair.reconcile()
        line.host.list = ask
        assert len(await line.host.list()) == 1
        assert "orphan_sandboxes" not in (await line.supervisor.status())["counters"]


MISBEHAVING = """
import json, os, sys, time
kinds = ["raise SystemExit(3)", "print('no json')", "print('{}'); print('{}')", "time.sleep(60)",
         "os._exit(0)", "print(json.dumps({'type': 'fly'}))", "print('x' * 5000000)"]
exec(kinds[int(os.environ["TURN_NUMBER"]) % len(kinds)])
"""


async def test_turns_that_go_wrong_are_skipped_and_the_game_goes_on(
    running_line: RunningLine, tmp_path: Path
) -> None:
    image = tmp_path / "images/catan"
    image.mkdir(parents=True)
    (image / "image.toml").write_text('name = "catan"\nturn_script = "take_turn.py"\n')
    (image / "take_turn.py").write_text(MISBEHAVING)
    (tmp_path / "line").mkdir()
    async with running_line(tmp_path / "line", images=tmp_path / "images") as line:
        master, alice, bob = [await line.account(name) for name in ("gamemaster", "alice", "bob")]
        agents = line.start_agents(
            [line.agent(player, master, turn_timeout_s=1.0) for player in (alice, bob)]
        )
        game = line.master(master, [alice, bob], settings={"turn_cap": 15})
        async with asyncio.timeout(90):
            await game.run()
        status = await game.status()
        assert status["outcome"]["turns"] == 15
        assert status["skipped"] == 15
        reasons = await line.reasons(master)
        assert len(reasons) >= 14  # the last decision is in game.finished
        assert all(0 < len(reason) <= 500 for reason in reasons)
        expected = ("exited with 3", "not one JSON object", "did not end within 1 s", "illegal", "nothing on")
        for said in expected:
            assert any(said in reason for reason in reasons), (said, reasons)
        await line.until({LeaseStatus.DESTROYED}, 2)
        for task in agents:
            task.cancel()
