"""`task.complete` and `pr.merged`: an authority says them on the network, and a coding lease ends. No Ray."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors import records
from firehose import XrpcClient, XrpcError
from leases import LeaseStatus, LedgerReader

RunningLine = Callable[..., AbstractAsyncContextManager[Any]]  # of a `Line`; conftest.py


async def test_a_coding_lease_ends_when_its_authority_says_so(
    running_line: RunningLine, tmp_path: Path
) -> None:
    image = tmp_path / "images/coding"
    image.mkdir(parents=True)
    (image / "image.toml").write_text('name = "coding"\nturn_script = "take_turn.py"\n')
    (image / "take_turn.py").write_text("print('{}')\n")
    async with running_line(tmp_path / "line", images=tmp_path / "images") as line:
        board, alice, bob, mallory = [await line.account(n) for n in ("board", "alice", "bob", "mallory")]
        agents = line.start_agents(
            [line.agent(player, board, environment_types=("coding",)) for player in (alice, bob)]
        )
        async with XrpcClient(line.endpoints.pds_url) as said, XrpcClient(line.endpoints.pds_url) as other:
            await said.login(board.did, board.password)
            await other.login(mallory.did, mallory.password)
            for number, collection in enumerate((records.TASK_COMPLETE, records.PR_MERGED), 1):
                task, live = f"task-{number}", {LeaseStatus.ACTIVE, LeaseStatus.DESTROYED}
                opened = records.env_created(
                    environment_id=task, type="coding", players=[alice.did, bob.did], settings={}, now_ms=0
                )
                await said.put_record(records.ENV_CREATED, task, opened)
                await line.until(live, 2 * number)
                endings = {
                    records.TASK_COMPLETE: records.task_complete(
                        environment_id=task, result={"tests": "pass"}, now_ms=0
                    ),
                    records.PR_MERGED: records.pr_merged(
                        environment_id=task, uri="https://example.com/pulls/1", now_ms=0
                    ),
                }
                with pytest.raises(XrpcError, match="InvalidRequest"):  # it breaks its lexicon
                    await said.put_record(collection, task, endings[collection] | {"environment": 7})
                await other.put_record(collection, task, endings[collection])  # not the authority
                only_bob = {**endings[collection], "subject": bob.did}
                await said.put_record(collection, f"{task}.bob", only_bob)
                await line.until(live, 2 * number)
                async with asyncio.timeout(20):
                    while line.statuses().count(LeaseStatus.DESTROYED) < 2 * number - 1:
                        await asyncio.sleep(0.05)
                assert line.statuses().count(LeaseStatus.ACTIVE) == 1  # alice plays on
                await said.put_record(collection, task, endings[collection])
                await line.until({LeaseStatus.DESTROYED}, 2 * number)
        counters = (await line.supervisor.status())["counters"]
        assert counters["ending.not_authority"] == 2  # what mallory said
        with LedgerReader(tmp_path / "line/ledger.db") as reader:
            told = {
                str(lease.id): (lease.ended_by, [e.event for e in reader.history(lease.id) if e.is_ended])
                for lease in reader.list()
            }
        for agent, key in ((alice, ""), (bob, ".bob")):
            assert told[f"{agent.did}::task-1"] == (
                "task.complete",
                [f"at://{board.did}/{records.TASK_COMPLETE}/task-1{key}"],
            )
            assert told[f"{agent.did}::task-2"] == (
                "pr.merged",
                [f"at://{board.did}/{records.PR_MERGED}/task-2{key}"],
            )
        for running in agents:
            running.cancel()
