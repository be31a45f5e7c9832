"""The main job: play a game, or a campaign, with leased sandboxes on the cluster at hand, and report."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from actors.agent import AgentActor, AgentConfig
from actors.cluster import Node
from actors.environment import EnvironmentActor, EnvironmentConfig
from actors.errors import GameFailed
from actors.faces import Account, Report
from actors.latency import event_to_action_ms
from actors.remote import RemoteActor
from actors.resources import shipped
from actors.series import DEFAULT_ADVENTURES, NextGame, Series, check_order
from actors.settings import Settings
from actors.summary import Played, summary
from actors.system import System, running_system
from firehose import DidDirectory, XrpcClient
from firehose.tid import TidClock

NAMES: Final = ("alice", "bob", "carol", "dave", "erin", "frank")
POLL_S: Final = 0.25
DRAIN_TIMEOUT_S: Final = 8.0  # an interrupted game is cleared away within 10 s
LATE_TURN: Final = 8  # who comes late joins at this decision: the others have left town by then
END_TIMEOUT_S: Final = 60.0  # from the end of a game until nothing of it is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to simulate.

    `board` gets the last board as SVG, `chronicle` the story of a campaign as Markdown; `adventures` None is
    the default of an environment type that has campaigns. `late` of the agents come when the others play.
    """

    environment_type: str
    agents: int
    seed: int
    board: Path | None = None
    adventures: int | None = None
    chronicle: Path | None = None
    late: int = 0


@dataclass(slots=True, kw_only=True)
class Moment:
    """What a view shows while the game runs."""

    stage: str
    environment: Report | None = None
    supervisor: Report | None = None
    tap: Report | None = None
    board: str = ""
    told: list[str] = field(default_factory=list)  # what happened lately, where the game tells it
    names: dict[str, str] | None = None  # DID → short name
    cleared: Report | None = None  # after the end: leases ended by force, sandboxes left


Watch = Callable[[Moment], None]


async def simulate(settings: Settings, order: Order, watch: Watch) -> Report:
    """Play to the end and report as docs/records.md says.

    Args:
        settings: see config/skylease.toml.
        order: what to play.
        watch: told of everything that happens.

    Raises:
        WrongUse: it cannot be played like that.
        SkyleaseError: what went wrong, after everything was cleared away.
    """
    check_order(
        order.environment_type,
        order.agents,
        order.adventures,
        chronicle=order.chronicle is not None,
        late=order.late,
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
    """The games of one order on a running system; the agents stay from the first to the last."""

    def __init__(self, system: System, order: Order, watch: Watch) -> None:
        self._system, self._order, self._watch = system, order, watch
        self._actors: list[str] = []
        self._environments: list[str] = []
        self._names: dict[str, str] = {}  # DID → short name, by seat
        self._master_did = ""
        self.cleared: Report = {}

    async def play(self) -> Report:
        """Start the agents and a game master per game, wait for the end, and report."""
        for (
            node
        ) in self._system.nodes:  # an image that is not built is told now, not after a minute's waiting
            await self._system.host(node).call("image", self._order.environment_type)
        self._watch(Moment(stage="creating identities"))
        master, players = await self._accounts()
        self._names = {player.did: _short(player.handle) for player in players}
        self._master_did = master.did
        series, played = self._series(), list[Played]()
        agents: list[RemoteActor] = []
        while (game := series.next()) is not None:
            cursor = await self._position()
            async with asyncio.TaskGroup() as tasks:
                starting = tasks.create_task(self._start_environment(game, master, players, cursor))
                if not agents:
                    self._watch(Moment(stage=f"starting {len(players)} agents"))
                    agents = await self._start_agents(master, players, cursor)
            status = await self._follow(starting.result(), f"playing {game.title}".strip())
            await self._wait_until_ended(game.environment_id)
            played.append(await self._played(game, starting.result(), status, cursor))
            series.after(status["outcome"], played[-1].sequel)
        return await self._report(played, agents)

    def _series(self) -> Series:
        order, settings = self._order, self._system.settings.game
        tid = TidClock(lambda: time.time_ns() // 1000).next()
        environment_id = f"{order.environment_type}-{order.seed}-{tid}"
        if order.environment_type == "rpg":
            adventures = order.adventures or DEFAULT_ADVENTURES
            return Series.campaign(environment_id, order.seed, players=order.agents, adventures=adventures)
        return Series.single(environment_id, order.seed, {"turn_cap": settings.catan_turn_cap})

    async def _position(self) -> int:
        """The firehose position from which everything of ours is heard."""
        return int((await self._system.tap.call("stats")).get("seq") or 0)

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
            self.cleared = {"ended": 0, "left": 0}
            for environment_id in self._environments:
                cleared = await self._system.supervisor.call("end_environment", environment_id)
                self.cleared = {key: self.cleared[key] + cleared[key] for key in self.cleared}
        self._watch(Moment(stage="cleared away", cleared=self.cleared))

    async def _accounts(self) -> tuple[Account, list[Account]]:
        async with XrpcClient(self._system.endpoints.pds_url) as xrpc:
            book, domain = self._system.accounts, self._system.settings.network.handle_domain
            master = await book.account(xrpc, f"gamemaster.{domain}")
            names = NAMES[: self._order.agents]
            players = [await book.account(xrpc, f"{name}.{domain}") for name in names]
        return master, players

    async def _start_agents(self, master: Account, players: list[Account], cursor: int) -> list[RemoteActor]:
        system, punctual = self._system, len(players) - self._order.late

        async def start(index: int, player: Account) -> RemoteActor:
            node = system.nodes[index % len(system.nodes)]
            config = self._agent(master, player, node, cursor, is_late=index >= punctual)
            return await self._start(f"agent:{player.did}", AgentActor, config, node=node)

        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(start(index, player)) for index, player in enumerate(players)]
        return [task.result() for task in started]

    def _agent(
        self, master: Account, player: Account, node: Node, cursor: int, *, is_late: bool
    ) -> AgentConfig:
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
            join_at_turn=LATE_TURN if is_late else 1,
        )

    async def _start_environment(
        self, game: NextGame, master: Account, players: list[Account], cursor: int
    ) -> RemoteActor:
        system, limits = self._system, self._system.settings.game
        self._environments.append(game.environment_id)
        config = EnvironmentConfig(
            account=master,
            endpoints=system.endpoints,
            environment_id=game.environment_id,
            environment_type=self._order.environment_type,
            players=tuple(player.did for player in players),
            seed=game.seed,
            settings=game.settings,
            start_cursor=cursor,
            action_timeout_s=limits.action_timeout_s,
            join_timeout_s=limits.join_timeout_s,
            lexicons=shipped("config/lexicons"),
            late=tuple(player.did for player in players[len(players) - self._order.late :]),
        )
        name = f"environment:{game.environment_id}"
        return await self._start(name, EnvironmentActor, config, node=system.nodes[0])

    async def _start(self, name: str, actor_class: Any, config: object, *, node: Node) -> RemoteActor:
        self._actors.append(name)
        return await self._system.stage.start(name, actor_class, config, node=node)

    async def _follow(self, environment: RemoteActor, stage: str) -> Report:
        """Show the game until it is over; its last status."""
        seats = list(self._names.values())
        while True:
            status: Report = await environment.call("status")
            board = await environment.call("board", seats)
            self._watch(
                Moment(
                    stage=stage,
                    environment=status,
                    supervisor=await self._system.supervisor.call("status"),
                    tap=await self._system.tap.call("stats"),
                    board=board.get("text", ""),
                    told=board.get("told") or [],
                    names=self._names,
                )
            )
            if status["over"]:
                return status
            await asyncio.sleep(POLL_S)

    async def _wait_until_ended(self, environment_id: str) -> None:
        """Until the supervisor has heard the end and nothing of any sandbox of this game is left.

        So /data is free for the agents' next sandboxes: two never share it.
        """
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                while await self._unended(environment_id):
                    await asyncio.sleep(POLL_S / 5)
        except TimeoutError:
            left = ", ".join(await self._unended(environment_id))
            raise GameFailed(
                f"the game is over, but leases have not ended: {left}: see `skylease status`"
            ) from None

    async def _unended(self, environment_id: str) -> list[str]:
        return [
            lease["lease"]
            for lease in await self._system.supervisor.call("leases", environment_id)
            if lease["status"] != "destroyed"
        ]

    async def _played(self, game: NextGame, environment: RemoteActor, status: Report, cursor: int) -> Played:
        """What is left of a game that is over."""
        if self._order.board is not None:
            board = await environment.call("board", list(self._names.values()))
            await asyncio.to_thread(self._order.board.write_text, board["svg"], encoding="utf-8")
        window = self._system.data_path / "tap" / "window"
        return Played(
            status=status,
            sequel=await environment.call("sequel", list(self._names.values())),
            event_to_action_ms=await asyncio.to_thread(
                event_to_action_ms, window, game.environment_id, cursor
            ),
        )

    async def _report(self, played: list[Played], agents: list[RemoteActor]) -> Report:
        system, chronicle = self._system, self._order.chronicle
        if chronicle is not None:
            story = "\n".join(game.sequel["chronicle"] for game in played)
            await asyncio.to_thread(chronicle.write_text, story, encoding="utf-8")
        if system.settings.tap.record:
            dids = [system.supervisor_did, self._master_did, *self._names]
            await self._save_documents(Path(system.settings.tap.record), dids)
        leases = [await system.supervisor.call("leases", environment) for environment in self._environments]
        return summary(
            played,
            agents=[await agent.call("report") for agent in agents],
            leases=[lease for those in leases for lease in those],
            hosts=[await system.host(node).call("report") for node in system.nodes],
            tap=await system.tap.call("stats"),
            refused=(await system.supervisor.call("status"))["counters"],
        )

    async def _save_documents(self, trace: Path, dids: list[str]) -> None:
        """Put the DID documents of everybody who spoke beside the trace, where `replay` looks for them."""
        plc_url = self._system.settings.network.plc_url or self._system.endpoints.pds_url
        async with DidDirectory(plc_url) as directory:
            documents = {did: await directory.resolve(did) for did in dids}
        beside = trace.with_suffix(".did_docs.json")
        await asyncio.to_thread(beside.write_text, json.dumps(documents, indent=1), encoding="utf-8")


def _short(handle: str) -> str:
    return handle.partition(".")[0]
