"""What a Jetstream server says ends no lease, unless the configuration believes it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from actors import hearsay, records
from actors.events import RecordReader
from actors.resources import shipped
from firehose.cid import Cid
from firehose.drisl import encode
from leases import LeaseStatus, Ledger

AUTHORITY, STRANGER, AGENT = (f"did:plc:{letter * 24}" for letter in "abc")
NOW_MS = 1_790_000_000_000


def told(time_us: int, author: str, collection: str, record: dict[str, Any]) -> str:
    part = {
        "rev": "3l3qo2vutsw2b",
        "operation": "create",
        "collection": collection,
        "rkey": "self",
        "record": record,
        "cid": str(Cid.for_dag_cbor(encode(record))),
    }
    return json.dumps({"did": author, "time_us": time_us, "kind": "commit", "commit": part})


def finished(author: str, time_us: int, **changes: Any) -> str:
    record = {
        "$type": "dev.skylease.game.finished",
        "environment": "catan-1",
        "reason": "won",
        "turns": 3,
        "createdAt": "2026-09-21T00:00:00.000Z",
    } | changes
    return told(time_us, author, "dev.skylease.game.finished", record)


@pytest.mark.parametrize("believes", [False, True])
async def test_an_ending_that_nobody_has_proved(tmp_path: Path, believes: bool) -> None:
    ledger = Ledger(tmp_path / "ledger.db", clock=lambda: NOW_MS)
    lease = ledger.acquire(AGENT, "catan-1", "catan", authority_did=AUTHORITY).lease
    events = [
        finished(STRANGER, 1),
        told(2, AUTHORITY, "dev.skylease.game.turn", {"n": 1}),
        finished(AUTHORITY, 3, environment=5),
        finished(AUTHORITY, 4),
    ]

    async def script(connection: ServerConnection) -> None:
        for event in events:
            await connection.send(event)
        await connection.wait_closed()

    reader = RecordReader(shipped("config/lexicons"))
    woken = asyncio.Event()
    async with serve(script, "127.0.0.1", 0) as server, asyncio.timeout(10):
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        collections = [records.GAME_FINISHED]
        listening = asyncio.ensure_future(
            hearsay.listen(url, collections, reader, ledger, believes=believes, wake=woken.set)
        )
        name = "unverified_believed" if believes else "unverified_ignored"
        while ledger.counters().get(name, 0) < 2:
            await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    status = ledger.get(lease.id).status
    assert (status is LeaseStatus.ACTIVE) is not believes
    assert woken.is_set() is believes
    assert reader.invalid == 2
    ledger.close()
