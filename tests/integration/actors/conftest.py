"""The whole line in one process, without Ray; every part is the real one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors import records
from actors.accounts import AccountBook
from actors.agent import Agent, AgentConfig
from actors.egress import WayOut
from actors.environment import RULES, EnvironmentConfig, GameMaster
from actors.events import RecordReader
from actors.faces import Account, Endpoints
from actors.host import Host, HostConfig, make_tier
from actors.resources import shipped
from actors.supervisor import Supervisor, SupervisorConfig
from firehose import DidDirectory, XrpcClient
from firehose.network import Network
from firehose.tap import Tap
from leases import LedgerReader
from sandboxes import Limits
from sandboxes.egress.dial import Dialer

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
        rules = RULES[config["environment_type"]]
        return GameMaster(EnvironmentConfig(**config), rules, self.supervisor)

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

    async def until_ended(self, lease_id: str) -> None:
        """Wait until a lease is over and nothing of its sandbox is left."""
        async with asyncio.timeout(20):
            with LedgerReader(self.root / "ledger.db") as ledger:
                while ledger.get(lease_id).status != "destroyed":
                    await asyncio.sleep(0.05)

    async def until(self, statuses: set[str], count: int) -> None:
        async with asyncio.timeout(20):
            while not (set(self.statuses()) <= statuses and len(self.statuses()) == count):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def run_line(
    root: Path,
    *,
    images: Path | None = None,
    way_out: WayOut | None = None,
    dialer: Dialer | None = None,
    nap_after_s: float = 0.0,
    **changes: Any,
) -> AsyncIterator[Line]:
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
        reached = way_out or WayOut()
        host = Host(
            HostConfig(
                node_id="here",
                root=root,
                images=folder,
                limits=Limits(),
                slots=8,
                way_out=reached,
                nap_after_s=nap_after_s,
            ),
            make_tier(changes.get("tier", "process"), root / "sandboxes"),
            dialer=dialer,
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


@pytest.fixture
def running_line() -> Callable[..., AbstractAsyncContextManager[Line]]:
    """Everything running over a directory, as a context manager."""
    return run_line
