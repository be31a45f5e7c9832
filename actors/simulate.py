"""The main job: play a game with leased sandboxes on whatever cluster is at hand, and report."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.agent import AgentActor, AgentConfig
from actors.cluster import Node
from actors.environment import EnvironmentActor, EnvironmentConfig
from actors.errors import GameFailed, WrongUse
from actors.faces import Account, Report
from actors.latency import event_to_action_ms, percentiles
from actors.remote import RemoteActor
from actors.resources import shipped
from actors.settings import Settings
from actors.system import HANDLE_DOMAIN, System, running_system
from firehose import DidDirectory, XrpcClient
from firehose.tid import TidClock

NAMES: Final = ("alice", "bob", "carol", "dave", "erin", "frank")
SEATS: Final = {"catan": range(2, 5)}  # players that an environment type can have
POLL_S: Final = 0.25
DRAIN_TIMEOUT_S: Final = 8.0  # an interrupted game is cleared away within 10 s
END_TIMEOUT_S: Final = 60.0  # from the end of a game until nothing of it is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to simulate. `board` gets the final board as SVG; `record` every raw frame of the firehose."""

    environment_type: str
    agents: int
    seed: int
    board: Path | None = None


@dataclass(slots=True, kw_only=True)
class Moment:
    """What a view shows while the game runs."""

    stage: str
    environment: Report | None = None
    supervisor: Report | None = None
    tap: Report | None = None
    board: str = ""
    names: dict[str, str] | None = None  # DID → short name
    cleared: Report | None = None  # after the end: leases ended by force, sandboxes left


Watch = Callable[[Moment], None]


async def simulate(settings: Settings, order: Order, watch: Watch) -> Report:
    """Play one game to its end and report as docs/records.md says.

    Args:
        settings: see config/skylease.toml.
        order: what to play.
        watch: told of everything that happens.

    Raises:
        WrongUse: no such environment type, or not with so many agents.
        SkyleaseError: what went wrong, after everything was cleared away.
    """
    if order.environment_type not in SEATS:
        raise WrongUse(
            f"there is no environment type {order.environment_type!r}: there is {', '.join(SEATS)}"
        )
    seats = SEATS[order.environment_type]
    if order.agents not in seats:
        raise WrongUse(
            f"{order.environment_type} is for {seats[0]} to {seats[-1]} agents, not {order.agents}: "
            "choose another --agents"
        )
    started = time.monotonic()
    watch(Moment(stage="starting Ray, the network, the tap and the supervisor"))
    async with running_system(settings, actors=order.agents + 1) as system:
        simulation = Simulation(system, order, watch)
        try:
            report = await simulation.play()
        finally:
            await simulation.clear()
        report["sandboxes"]["left"] = (
            await system.sandboxes_left() if system.owned else report["sandboxes"]["left"]
        )
    report["seconds"] = round(time.monotonic() - started, 1)
    return report


class Simulation:
    """One game on a running system."""

    def __init__(self, system: System, order: Order, watch: Watch) -> None:
        self._system, self._order, self._watch = system, order, watch
        tid = TidClock(lambda: time.time_ns() // 1000).next()
        self._environment_id = f"{order.environment_type}-{order.seed}-{tid}"
        self._actors: list[str] = []
        self._master_did = ""
        self.cleared: Report = {}

    async def play(self) -> Report:
        """Start the agents and the game master, wait for the end, and report."""
        system, watch = self._system, self._watch
        watch(Moment(stage="creating identities"))
        master, players = await self._accounts()
        cursor = int((await system.tap.call("stats")).get("seq") or 0)
        watch(Moment(stage=f"starting {len(players)} agents"))
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._start_environment(master, players, cursor))
            agents = await self._start_agents(master, players, cursor)
        environment = starting.result()
        names = {player.did: _short(player.handle) for player in players}
        self._master_did = master.did
        status = await self._follow(environment, names)
        await self._wait_until_ended()
        return await self._report(environment, agents, status, cursor, names)

    async def clear(self) -> None:
        """Stop our actors; end what they hold. Also after Ctrl-C, so it is shielded and bounded."""
        self._watch(Moment(stage="clearing away"))
        await asyncio.shield(self._clear())

    async def _clear(self) -> None:
        for name in reversed(self._actors):
            await self._system.stage.stop(name, timeout_s=1.0)
        if self._system.owned:
            self.cleared = await self._system.supervisor.call(
                "drain", DRAIN_TIMEOUT_S, timeout_s=DRAIN_TIMEOUT_S + 2
            )
        else:
            self.cleared = await self._system.supervisor.call("end_environment", self._environment_id)
        self._watch(Moment(stage="cleared away", cleared=self.cleared))

    async def _accounts(self) -> tuple[Account, list[Account]]:
        async with XrpcClient(self._system.endpoints.pds_url) as xrpc:
            book = self._system.accounts
            master = await book.account(xrpc, f"gamemaster.{HANDLE_DOMAIN}")
            names = NAMES[: self._order.agents]
            players = [await book.account(xrpc, f"{name}.{HANDLE_DOMAIN}") for name in names]
        return master, players

    async def _start_agents(self, master: Account, players: list[Account], cursor: int) -> list[RemoteActor]:
        system = self._system

        async def start(index: int, player: Account) -> RemoteActor:
            node = system.nodes[index % len(system.nodes)]
            return await self._start(
                f"agent:{player.did}", AgentActor, self._agent(master, player, node, cursor), node=node
            )

        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(start(index, player)) for index, player in enumerate(players)]
        return [task.result() for task in started]

    def _agent(self, master: Account, player: Account, node: Node, cursor: int) -> AgentConfig:
        system = self._system
        return AgentConfig(
            account=player,
            endpoints=system.endpoints,
            supervisor_did=system.supervisor_did,
            authorities=(master.did,),
            environment_types=(self._order.environment_type,),
            node_id=node.node_id,
            start_cursor=cursor,
            seed=self._order.seed,
            turn_timeout_s=system.settings.game.turn_timeout_s,
            lexicons=shipped("config/lexicons"),
        )

    async def _start_environment(self, master: Account, players: list[Account], cursor: int) -> RemoteActor:
        system, game = self._system, self._system.settings.game
        config = EnvironmentConfig(
            account=master,
            endpoints=system.endpoints,
            environment_id=self._environment_id,
            environment_type=self._order.environment_type,
            players=tuple(player.did for player in players),
            seed=self._order.seed,
            settings={"turn_cap": game.catan_turn_cap},
            start_cursor=cursor,
            action_timeout_s=game.action_timeout_s,
            join_timeout_s=game.join_timeout_s,
            lexicons=shipped("config/lexicons"),
        )
        name = f"environment:{self._environment_id}"
        return await self._start(name, EnvironmentActor, config, node=system.nodes[0])

    async def _start(self, name: str, actor_class: Any, config: object, *, node: Node) -> RemoteActor:
        self._actors.append(name)
        return await self._system.stage.start(name, actor_class, config, node=node)

    async def _follow(self, environment: RemoteActor, names: dict[str, str]) -> Report:
        """Show the game until it is over; its last status."""
        seats = list(names.values())
        while True:
            status: Report = await environment.call("status")
            board = (await environment.call("board", seats)).get("text", "")
            self._watch(
                Moment(
                    stage="playing",
                    environment=status,
                    supervisor=await self._system.supervisor.call("status"),
                    tap=await self._system.tap.call("stats"),
                    board=board,
                    names=names,
                )
            )
            if status["over"]:
                return status
            await asyncio.sleep(POLL_S)

    async def _wait_until_ended(self) -> None:
        """Until the supervisor has heard the end and nothing of any sandbox of this game is left."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                while await self._unended():
                    await asyncio.sleep(POLL_S / 5)
        except TimeoutError:
            left = ", ".join(await self._unended())
            raise GameFailed(
                f"the game is over, but leases have not ended: {left}: see `skylease status`"
            ) from None

    async def _unended(self) -> list[str]:
        return [
            lease["lease"]
            for lease in await self._system.supervisor.call("leases", self._environment_id)
            if lease["status"] != "destroyed"
        ]

    async def _report(
        self,
        environment: RemoteActor,
        agents: list[RemoteActor],
        status: Report,
        cursor: int,
        names: dict[str, str],
    ) -> Report:
        system, order = self._system, self._order
        if order.board is not None:
            board = await environment.call("board", list(names.values()))
            await asyncio.to_thread(order.board.write_text, board["svg"], encoding="utf-8")
        reports = [await agent.call("report") for agent in agents]
        leases = await system.supervisor.call("leases", self._environment_id)
        hosts = [await system.host(node).call("report") for node in system.nodes]
        tap = await system.tap.call("stats")
        outcome = status["outcome"]
        window = system.data_path / "tap" / "window.fht"
        if system.settings.tap.record:
            dids = [system.supervisor_did, self._master_did, *names]
            await self._save_documents(Path(system.settings.tap.record), dids)
        return {
            "environment_type": order.environment_type,
            "games": [{"environment": self._environment_id, **outcome}],
            "agents": len(agents),
            "leases": {
                "acquired": len(leases),
                "ended": sum(lease["status"] == "destroyed" for lease in leases),
                "live": sum(lease["status"] in ("active", "sleeping") for lease in leases),
            },
            "sandboxes": {
                "created": sum(host["made"] for host in hosts),
                "destroyed": sum(lease["status"] == "destroyed" for lease in leases),
                "left": sum(host["sandboxes"] for host in hosts),
                "tier": hosts[0]["tier"],
            },
            "turns": {"taken": outcome["turns"] - status["skipped"], "skipped": status["skipped"]},
            "turn_ms": percentiles([ms for report in reports for ms in report["turn_ms"]]),
            "event_to_action_ms": percentiles(
                await asyncio.to_thread(event_to_action_ms, window, self._environment_id, cursor)
            ),
            "events": {key: tap.get(key) for key in ("seen", "verified", "rejected")},
            "refused": (await system.supervisor.call("status"))["counters"],
            "game_log_sha256": status["game_log_sha256"],
        }

    async def _save_documents(self, trace: Path, dids: list[str]) -> None:
        """Put the DID documents of everybody who spoke beside the trace, where `replay` looks for them."""
        plc_url = self._system.settings.network.plc_url or self._system.endpoints.pds_url
        async with DidDirectory(plc_url) as directory:
            documents = {did: await directory.resolve(did) for did in dids}
        beside = trace.with_suffix(".did_docs.json")
        await asyncio.to_thread(beside.write_text, json.dumps(documents, indent=1), encoding="utf-8")


def _short(handle: str) -> str:
    return handle.partition(".")[0]
