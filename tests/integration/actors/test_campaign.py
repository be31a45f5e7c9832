"""RPG campaigns in one process: a death ends one lease, characters stay with their agents."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors import records
from actors.faces import Account, Report
from actors.farewell import GRACE_S
from actors.series import Series
from firehose import XrpcClient
from games.rpg import Rpg
from leases import LeaseStatus, LedgerReader

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py
NAMES = ("alice", "bob", "carol")

pytestmark = pytest.mark.timeout(180)


class Party:
    """Three agents and their game master on a line."""

    def __init__(self, line: Any, master: Account, players: list[Account], seed: int) -> None:
        self.line, self.master, self.players, self.seed = line, master, players, seed
        agents = [
            line.agent(player, master, environment_types=("rpg",), seed=seed) for player in self.players
        ]
        self._tasks = line.start_agents(agents)

    @classmethod
    async def of(cls, line: Any, seed: int) -> "Party":
        players = [await line.account(name) for name in NAMES]
        return cls(line, await line.account("gamemaster"), players, seed)

    def leave(self) -> None:
        for task in self._tasks:
            task.cancel()

    def game_master(self, environment_id: str = "rpg-1", **changes: Any) -> Any:
        wanted = {"environment_id": environment_id, "environment_type": "rpg", "seed": self.seed}
        return self.line.master(self.master, self.players, **wanted | {"settings": {}} | changes)

    async def play(self, game: Any, leases: int) -> Report:
        """To the end, until nothing is leased any more; the last status."""
        async with asyncio.timeout(60):
            await game.run()
        await self.line.until({LeaseStatus.DESTROYED}, leases)
        status: Report = await game.status()
        assert status["skipped"] == 0, await self.line.reasons(self.master)
        return status

    async def said(self, collection: str) -> list[dict[str, Any]]:
        """The game master's records of a collection, as listed: with uri, cid and value."""
        async with XrpcClient(self.line.endpoints.pds_url) as xrpc:
            found, _ = await xrpc.list_records(self.master.did, collection, limit=100)
        return [dict(item) for item in found]

    def ended_by(self) -> dict[str, str | None]:
        """By agent and environment, how its lease ended."""
        with LedgerReader(self.line.root / "ledger.db") as ledger:
            names = {player.did: name for name, player in zip(NAMES, self.players, strict=True)}
            return {
                f"{names[lease.agent_did]} {lease.environment_id}": lease.ended_by for lease in ledger.list()
            }

    def files(self, name: str) -> list[Path]:
        """A file of every agent under /data, where it has one."""
        return sorted(self.line.root.glob(f"data/*/{name}"))

    def sheets(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.files("character.json")]


async def test_a_death_ends_one_lease_while_the_others_play_on(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=9)
        game = party.game_master()
        status = await party.play(game, 3)
        (death,) = status["deaths"]
        (told,) = await party.said(records.AGENT_DEATH)
        party.leave()
        assert (death["agent"], death["cause"]) == (told["value"]["subject"], told["value"]["cause"])
        assert death["turn"] < status["outcome"]["turns"]
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            assert min(ledger.list(), key=lambda lease: lease.ended_at or 0).agent_did == death["agent"]
            for lease in ledger.list():
                is_dead = lease.agent_did == death["agent"]
                assert lease.ended_by == ("agent.death" if is_dead else "game.finished")
                (ended,) = [event for event in ledger.history(lease.id) if event.is_ended]
                assert (ended.event == told["uri"]) is is_dead
        dead = [sheet for sheet in party.sheets() if sheet["status"] == "dead"]
        assert [(sheet["character"]["items"], sheet["character"]["gold"]) for sheet in dead] == [({}, 0)]
        assert len(party.sheets()) == 3


async def test_a_campaign_goes_on_with_whom_it_left(running_line: RunningLine, tmp_path: Path) -> None:
    """Two adventures: the dead one is born again, all files stay, what was broken is kept aside."""
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=9)
        series = Series.campaign("rpg-9", 9, players=3, adventures=2)
        leases, reasons = 0, []
        while (adventure := series.next()) is not None:
            leases += 3
            game = party.game_master(
                adventure.environment_id, seed=adventure.seed, settings=adventure.settings
            )
            status = await party.play(game, leases)
            reasons.append(status["outcome"]["reason"])
            series.after(status["outcome"], await game.sequel(list(NAMES)))
            if leases == 3:
                assert await party.said(records.CAMPAIGN_ENDED) == []
                party.files("character.json")[0].write_bytes(b'{"schema": 1, "character": "\xff')
        party.leave()
        assert reasons == ["victory", "victory"]
        (ended,) = await party.said(records.CAMPAIGN_ENDED)
        assert ended["value"]["environment"] == "rpg-9-2"
        assert [sheet["status"] for sheet in party.sheets()] == ["alive"] * 3
        assert {sheet["environment"] for sheet in party.sheets()} == {"rpg-9-2"}
        assert len([sheet for sheet in party.sheets() if sheet["character"]["ancestors"]]) == 1
        assert len(party.files("character.json.corrupt-1")) == 1
        assert sorted(map(str, party.ended_by().values())) == ["agent.death"] + ["game.finished"] * 5
        assert len(party.files("campaign/rpg-9-2-*.json")) == 3


async def test_a_killed_game_master_tells_no_death_twice(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=9)
        first = party.game_master()
        running = line.tasks.create_task(first.run())
        async with asyncio.timeout(60):
            while not await party.said(records.AGENT_DEATH):  # killed as soon as the death is said
                await asyncio.sleep(0.002)
        running.cancel()
        (before,) = await party.said(records.AGENT_DEATH)
        status = await party.play(party.game_master(), 3)
        (after,) = await party.said(records.AGENT_DEATH)
        party.leave()
        assert after == before  # createdAt too
        assert len(await party.said(records.GAME_FINISHED)) == 1
        assert sorted(map(str, party.ended_by().values())) == ["agent.death"] + ["game.finished"] * 2
        assert status["game_log_sha256"] == alone(seed=9, log=await decisions(party, status))
        again = party.game_master(action_timeout_s=0.001)  # the last decision is in what was said of the end
        await again.run()
        assert (await again.status())["game_log_sha256"] == status["game_log_sha256"]


async def decisions(party: Party, status: Report) -> list[dict[str, Any]]:
    """The log of the game by its players' own records."""
    log = []
    async with XrpcClient(party.line.endpoints.pds_url) as xrpc:
        for seat, player in enumerate(party.players):
            actions, _ = await xrpc.list_records(player.did, records.GAME_ACTION, limit=100)
            for action in actions:
                value = action["value"]
                log.append({"turn": value["turn"], "player": seat, "action": value["action"]})
    assert len(log) == status["outcome"]["turns"]
    return sorted(log, key=lambda entry: int(entry["turn"]))


def alone(seed: int, log: list[dict[str, Any]]) -> str:
    """The digest of the same game, played by the rules alone."""
    return Rpg.replay(3, seed, {}, log).log_sha256()


async def test_a_wipe_ends_every_lease_once_and_the_campaign(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=4)
        game = party.game_master(settings={"adventure": 1, "adventures": 3})
        status = await party.play(game, 3)
        party.leave()
        assert status["outcome"]["reason"] == "wipe"
        assert (await game.sequel(list(NAMES)))["ends_campaign"] is True
        assert set(party.ended_by().values()) == {"agent.death"}
        told = await party.said(records.AGENT_DEATH)
        assert {item["value"]["subject"] for item in told} == {player.did for player in party.players}
        (finished,) = await party.said(records.GAME_FINISHED)
        (ended,) = await party.said(records.CAMPAIGN_ENDED)
        assert finished["value"]["reason"] == ended["value"]["reason"] == "wipe"
        assert max(item["value"]["createdAt"] for item in told) <= finished["value"]["createdAt"]
        assert finished["value"]["createdAt"] <= ended["value"]["createdAt"]
        assert [sheet["status"] for sheet in party.sheets()] == ["dead"] * 3
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            histories = [ledger.history(lease.id) for lease in ledger.list()]
        for history in histories:
            (expired,) = [event for event in history if event.is_ended]
            assert history[-1].at - expired.at >= GRACE_S * 1000  # time for the last words
