"""RPG campaigns in one process: a death ends one lease, characters stay with their agents."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors import records
from actors.faces import Account, Report
from actors.farewell import GRACE_S
from actors.host import load_image, make_tier
from actors.resources import shipped
from actors.series import Series
from firehose import XrpcClient
from games.rpg import Rpg
from leases import LeaseStatus, LedgerReader

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py
NAMES = ("alice", "bob", "carol")
GONE_WITHIN_S = 15  # from a death to an empty tier, on a busy machine; half a second of it is grace
SEED_9_SHA256 = "28fff071a21df7dd314c009b2f546706000534e41705564d544aed3421d91517"  # by the rules alone


class Party:
    """Three agents and their game master on a line."""

    def __init__(self, line: Any, master: Account, players: list[Account], seed: int) -> None:
        self.line, self.master, self.players, self.seed = line, master, players, seed
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @classmethod
    async def of(cls, line: Any, seed: int, *, come: Sequence[int] = (0, 1, 2)) -> "Party":
        players = [await line.account(name) for name in NAMES]
        party = cls(line, await line.account("gamemaster"), players, seed)
        for player in come:
            party.come(player)
        return party

    def come(self, player: int) -> None:
        """Start the agent of a player."""
        agent = self.line.agent(self.players[player], self.master, environment_types=("rpg",), seed=self.seed)
        (self._tasks[player],) = self.line.start_agents([agent])

    def fall_silent(self, player: int) -> None:
        """End the agent of a player, who keeps its lease."""
        self._tasks.pop(player).cancel()

    def leave(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def game_master(self, environment_id: str = "rpg-1", **changes: Any) -> Any:
        wanted = {"environment_id": environment_id, "environment_type": "rpg", "seed": self.seed}
        return self.line.master(self.master, self.players, **wanted | {"settings": {}} | changes)

    async def play(self, game: Any, leases: int) -> Report:
        """To the end, until nothing is leased any more; the last status."""
        status = await self.finish(self.line.tasks.create_task(game.run()), game, leases)
        assert status["skipped"] == 0, await self.line.reasons(self.master)
        return status

    async def finish(self, running: "asyncio.Task[None]", game: Any, leases: int) -> Report:
        """As `play`, of a game that runs already, and with skips allowed."""
        async with asyncio.timeout(60):
            await running
        await self.line.until({LeaseStatus.DESTROYED}, leases)
        status: Report = await game.status()
        return status

    async def reach(self, game: Any, turn: int) -> None:
        async with asyncio.timeout(60):
            while (await game.status())["turn"] < turn:
                await asyncio.sleep(0.01)

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


async def need(tier_name: str, root: Path) -> None:
    """Skip where this machine does not offer a tier, or has no image for it."""
    tier = make_tier(tier_name, root)
    probe = await tier.probe()
    if not probe.ok:
        pytest.skip(f"{tier_name}: {probe.lacks[0].why}")
    image = load_image(shipped("images"), "rpg")
    if not await tier.has_image(image):
        pytest.skip(f"{tier_name}: {image.reference} is not built: `skylease images build rpg`")


@pytest.mark.parametrize("tier", ["process", "docker", "gvisor"])
async def test_a_death_ends_one_lease_while_the_others_play_on(
    running_line: RunningLine, tmp_path: Path, tier: str
) -> None:
    await need(tier, tmp_path / "sandboxes")
    async with running_line(tmp_path, tier=tier) as line:
        party = await Party.of(line, seed=9)
        game = party.game_master()
        status = await party.play(game, 3)
        assert status["game_log_sha256"] == SEED_9_SHA256
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
                history = ledger.history(lease.id)
                (ended,) = [event for event in history if event.is_ended]
                assert (ended.event == told["uri"]) is is_dead
                assert history[-1].at - ended.at < GONE_WITHIN_S * 1000
        assert len(await party.said(records.GAME_FINISHED)) == 1
        assert len(await party.said(records.CAMPAIGN_ENDED)) == 1  # its only adventure is its last
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


async def test_a_latecomer_joins_the_others_and_is_told_in_the_records(
    running_line: RunningLine, tmp_path: Path
) -> None:
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=7, come=(0, 1))
        late = party.players[2].did
        first = party.game_master(late=(late,), join_timeout_s=20.0)
        running = line.tasks.create_task(first.run())
        await party.reach(first, 6)
        assert len(line.statuses()) == 2  # nobody waited, nothing is leased to who is not there
        assert all(turn["value"]["player"] != late for turn in await party.said(records.GAME_TURN))
        party.come(2)
        async with asyncio.timeout(30):
            while not (
                came := [t["value"] for t in await party.said(records.GAME_TURN) if "here" in t["value"]]
            ):
                await asyncio.sleep(0.01)
        running.cancel()  # killed: the next one finds in its records who was left behind, and who came
        game = party.game_master(late=(late,))
        status = await party.play(game, 3)
        party.leave()
        turns = [turn["value"] for turn in await party.said(records.GAME_TURN)]
        (left,) = [turn for turn in turns if "away" in turn]
        assert (left["turn"], left["away"]) == (1, [late])
        assert [turn["turn"] for turn in turns if "here" in turn] == [came[0]["turn"]]
        assert min(turn["turn"] for turn in turns if turn["player"] == late) >= came[0]["turn"] > 5
        assert status["outcome"]["turns"] == len(turns)
        assert "catches up" in (await game.sequel(list(NAMES)))["chronicle"]
        assert len(party.sheets()) == 3


async def test_a_silent_player_is_skipped_though_nobody_else_acts(
    running_line: RunningLine, tmp_path: Path
) -> None:
    """Its agent is gone and its lease lives on: the timeout alone moves the game."""
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=7)
        game = party.game_master(action_timeout_s=1.5, settings={"turn_cap": 14})
        running = line.tasks.create_task(game.run())
        await party.reach(game, 3)
        party.fall_silent(2)
        status = await party.finish(running, game, 3)
        party.leave()
        turns = {turn["value"]["turn"]: turn["value"] for turn in await party.said(records.GAME_TURN)}
        silent = [turn["previous"] for turn in turns.values() if "skip" in turn.get("previous", {})]
        assert party.players[2].did in {previous["player"] for previous in silent}
        assert {previous["skip"] for previous in silent} == {"no action within 1.5 s"}
        assert 0 < len(silent) <= status["skipped"] < status["outcome"]["turns"] == 14
        assert set(party.ended_by().values()) <= {"game.finished", "agent.death"}


async def test_an_adventure_that_nobody_joins_is_abandoned(running_line: RunningLine, tmp_path: Path) -> None:
    async with running_line(tmp_path) as line:
        party = await Party.of(line, seed=7, come=())
        game = party.game_master(join_timeout_s=0.3, action_timeout_s=0.3, settings={"adventures": 2})
        async with asyncio.timeout(30):
            await game.run()
        status = await game.status()
        assert status["outcome"] == {"reason": "abandoned", "winner": None, "turns": 3}
        (ended,) = await party.said(records.CAMPAIGN_ENDED)  # nothing follows
        assert ended["value"]["reason"] == "abandoned"
        assert line.statuses() == []
