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
from actors.faces import Account, Endpoints
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from actors.supervisor import Supervisor, SupervisorConfig
from firehose import DidDirectory, XrpcClient
from firehose.network import Network
from firehose.tap import Tap
from games.catan import Catan
from leases import LeaseStatus, LedgerReader
from sandboxes import Limits

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
async def running_line(root: Path) -> AsyncIterator[Line]:
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
        host = Host(
            HostConfig(node_id="here", root=root, images=shipped("images"), limits=Limits(), slots=8),
            make_tier("process", root / "sandboxes"),
        )
        config = SupervisorConfig(
            account=account,
            endpoints=endpoints,
            ledger=root / "ledger.db",
            nodes=("here",),
            tier="process",
            ttl_ms=86_400_000,
            max_ttl_ms=None,
            sleep_after_ms=300_000,
            budget_hours=None,
            usd_per_hour={},
            start_cursor=0,
            lexicons=LEXICONS,
        )
        supervisor = Supervisor(config, lambda node_id: host)
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


@pytest.mark.parametrize("count", [20])
async def test_concurrent_acquires_of_one_pair_create_one_sandbox(tmp_path: Path, count: int) -> None:
    from actors.faces import LeaseRequest

    async with running_line(tmp_path) as line:
        request = LeaseRequest(
            agent_did="did:plc:alice234567",
            environment_id="catan-1",
            environment_type="catan",
            authority_did="did:plc:master",
            node_id="here",
        )
        placements = await asyncio.gather(*(line.supervisor.acquire(request) for _ in range(count)))
        assert len({placement.directory for placement in placements}) == 1
        assert [placement.is_new for placement in placements].count(True) == 1
        assert len(await line.host.list()) == 1
