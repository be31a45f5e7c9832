"""The whole line in one process, without Ray; every part is the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors import records
from actors.accounts import AccountBook
from actors.agent import Agent, AgentConfig
from actors.environment import EnvironmentConfig, GameMaster
from actors.events import RecordReader
from actors.faces import Account, Endpoints, LeaseRequest, SandboxOrder
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from actors.supervisor import Supervisor, SupervisorConfig
from firehose import DidDirectory, XrpcClient
from firehose.network import Network
from firehose.tap import Tap
from games.catan import Catan
from leases import LeaseEnded, LeaseStatus, LedgerReader, StaleEpoch
from sandboxes import Limits, connect_sandbox

LEXICONS = shipped("config/lexicons")


@dataclass
class Line:
    """Everything that runs, and who is who."""

    root: Path
    endpoints: Endpoints
    supervisor: Supervisor
    host: Host
    book: AccountBook
    tasks: asyncio.TaskGroup

    async def account(self, name: str) -> Account:
        async with XrpcClient(self.endpoints.pds_url) as xrpc:
            return await self.book.account(xrpc, f"{name}.test")

    def agent(self, account: Account, authority: Account, **changes: Any) -> Agent:
        config: dict[str, Any] = {
            "account": account,
            "endpoints": self.endpoints,
            "supervisor_did": "did:plc:unknown",
            "authorities": (authority.did,),
            "environment_types": ("catan",),
            "node_id": "here",
            "start_cursor": 0,
            "seed": 7,
            "turn_timeout_s": 20.0,
            "lexicons": LEXICONS,
        } | changes
        return Agent(AgentConfig(**config), self.supervisor)

    def master(self, account: Account, players: list[Account], **changes: Any) -> GameMaster:
        config: dict[str, Any] = {
            "account": account,
            "endpoints": self.endpoints,
            "environment_id": "catan-1",
            "environment_type": "catan",
            "players": tuple(player.did for player in players),
            "seed": 7,
            "settings": {"turn_cap": 12},
            "start_cursor": 0,
            "action_timeout_s": 30.0,
            "join_timeout_s": 30.0,
            "lexicons": LEXICONS,
        } | changes
        return GameMaster(EnvironmentConfig(**config), Catan, self.supervisor)

    def start_agents(self, agents: list[Agent]) -> list["asyncio.Task[None]"]:
        return [self.tasks.create_task(agent.run(lambda: None)) for agent in agents]

    def statuses(self) -> list[str]:
        with LedgerReader(self.root / "ledger.db") as ledger:
            return [lease.status for lease in ledger.list()]

    async def reasons(self, account: Account) -> list[str]:
        """Why turns were skipped, by the game master's own records."""
        async with XrpcClient(self.endpoints.pds_url) as xrpc:
            turns, _ = await xrpc.list_records(account.did, records.GAME_TURN, limit=100)
        decided = [turn["value"].get("previous", {}) for turn in turns]
        return [previous["skip"] for previous in decided if "skip" in previous]

    async def until(self, statuses: set[str], count: int) -> None:
        async with asyncio.timeout(20):
            while not (set(self.statuses()) <= statuses and len(self.statuses()) == count):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_line(root: Path, *, images: Path | None = None, **changes: Any) -> AsyncIterator[Line]:
    """Everything running over `root`; `changes` are fields of the supervisor's configuration."""
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(
            Network(root / "network.db", validate=RecordReader(LEXICONS).check)
        )
        directory = await stack.enter_async_context(DidDirectory(network.url))
        tap = await stack.enter_async_context(Tap(network.url, directory, root / "tap", cursor=0))
        endpoints = Endpoints(pds_url=network.url, tap_url=tap.url)
        book = AccountBook(root / "accounts.json")
        async with XrpcClient(network.url) as xrpc:
            account = await book.account(xrpc, "supervisor.test")
        folder = images or shipped("images")
        host = Host(
            HostConfig(node_id="here", root=root, images=folder, limits=Limits(), slots=8),
            make_tier("process", root / "sandboxes"),
        )
        config: dict[str, Any] = {
            "account": account,
            "endpoints": endpoints,
            "ledger": root / "ledger.db",
            "nodes": ("here",),
            "tier": "process",
            "ttl_ms": 86_400_000,
            "max_ttl_ms": None,
            "sleep_after_ms": 300_000,
            "budget_hours": None,
            "usd_per_hour": {},
            "start_cursor": 0,
            "lexicons": LEXICONS,
        } | changes
        supervisor = Supervisor(SupervisorConfig(**config), lambda node_id: host)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(tap.run()), tasks.create_task(supervisor.run(lambda: None))]
        line = Line(root, endpoints, supervisor, host, book, tasks)
        try:
            yield line
        finally:
            await supervisor.drain(20)
            assert await host.list() == []
            for task in running:
                task.cancel()


async def test_a_short_game_ends_every_lease_and_leaves_nothing(tmp_path: Path) -> None:
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


async def test_a_killed_game_master_goes_on_from_its_own_records(tmp_path: Path) -> None:
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


async def test_strangers_end_nothing_start_nothing_and_are_counted(tmp_path: Path) -> None:
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


async def test_concurrent_acquires_of_one_pair_create_one_sandbox(tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        placements = await asyncio.gather(*(line.supervisor.acquire(REQUEST) for _ in range(20)))
        assert len({placement.directory for placement in placements}) == 1
        assert [placement.is_new for placement in placements].count(True) == 1
        assert len(await line.host.list()) == 1


@pytest.mark.parametrize(
    ("changes", "ended_by"),
    [
        pytest.param({"ttl_ms": 1500}, "ttl", id="nobody-renews"),
        pytest.param({"budget_hours": 1.0 / 3600}, "budget", id="its-budget-is-used-up"),
        pytest.param({}, "operator", id="an-operator-ends-it"),
    ],
)
async def test_other_ways_a_lease_ends(tmp_path: Path, changes: dict[str, Any], ended_by: str) -> None:
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


async def test_an_ended_lease_is_followed_by_one_with_the_next_epoch(tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        first = await line.supervisor.acquire(REQUEST)
        await line.supervisor.end(first.lease_id)
        second = await line.supervisor.acquire(REQUEST)  # waits until the old sandbox is gone
        assert (first.epoch, second.epoch, second.is_new) == (1, 2, True)
        with pytest.raises(StaleEpoch):
            await line.supervisor.renew(first.lease_id, first.epoch, 1, 1)


async def test_a_dead_sandbox_is_made_again_and_an_orphan_is_removed(tmp_path: Path) -> None:
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
            while len(await line.host.list()) > 1:
                await asyncio.sleep(0.1)
        assert (await line.supervisor.status())["counters"]["orphan_sandboxes"] == 1


MISBEHAVING = """
import json, os, sys, time
kinds = ["raise SystemExit(3)", "print('no json')", "print('{}'); print('{}')", "time.sleep(60)",
         "os._exit(0)", "print(json.dumps({'type': 'fly'}))", "print('x' * 5000000)"]
exec(kinds[int(os.environ["TURN_NUMBER"]) % len(kinds)])
"""


async def test_turns_that_go_wrong_are_skipped_and_the_game_goes_on(tmp_path: Path) -> None:
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
