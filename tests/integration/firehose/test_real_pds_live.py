"""A real @atproto/pds, through XRPC and back through the tap: `make test-pds` installs it and runs this."""

import asyncio
import base64
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firehose import (
    AccountEvent,
    Action,
    CommitEvent,
    IdentityEvent,
    Subscriber,
    SyncEvent,
    XrpcClient,
    parse_frame,
)
from firehose.identity import DidDirectory
from firehose.tap import Tap

INSTALLED = os.environ.get("REAL_PDS_DIR", "")
NODE = shutil.which("node") or ""
START = Path(__file__).with_name("real_pds") / "start.cjs"
START_TIMEOUT_S = 90.0  # of a loaded machine: node reads 250 MB of modules
NOTE = "dev.example.note"
PASSWORD = "only-for-this-test"

pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(not INSTALLED or not NODE, reason="needs @atproto/pds from npm: make test-pds"),
]


@dataclass
class Pds:
    process: "subprocess.Popen[bytes]"
    url: str
    plc_url: str

    def read_line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"the PDS said nothing in {timeout_s:g} s")
        return self.process.stdout.readline()

    def rotate(self, did: str) -> str:
        """Give an account a new signing key; the new did:key."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"rotate": did}).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, str] = json.loads(self.read_line(10))
        return answer["key"]

    def as_admin(self, method: str, body: dict[str, Any]) -> None:
        credentials = base64.b64encode(b"admin:admin-pass").decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {credentials}"}
        request = urllib.request.Request(f"{self.url}/xrpc/{method}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def pds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pds]:
    data = tmp_path_factory.mktemp("pds")
    pds_port, plc_port = free_port(), free_port()
    process = subprocess.Popen(
        [NODE, str(START), INSTALLED, str(data), str(pds_port), str(plc_port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(data / "stderr").open("wb"),
        bufsize=0,
    )
    pds = Pds(process, f"http://127.0.0.1:{pds_port}", f"http://127.0.0.1:{plc_port}")
    try:
        assert pds.read_line(START_TIMEOUT_S) == b"ready\n", (data / "stderr").read_text()
        yield pds
    finally:
        process.kill()
        process.wait()


async def write_all_sorts(client: XrpcClient, pds: Pds) -> Counter[Action]:
    """Every way of writing; how many ops of each kind that makes."""
    session = client.session
    assert session is not None
    created = [await client.create_record(NOTE, {"$type": NOTE, "n": n}) for n in range(5)]
    for n in range(20):
        await client.put_record(NOTE, f"slot-{n % 4}", {"$type": NOTE, "n": n})
    await client.delete_record(NOTE, created[0].uri.rpartition("/")[2])
    writes = [
        {
            "$type": "com.atproto.repo.applyWrites#create",
            "collection": NOTE,
            "rkey": f"batch-{n}",
            "value": {"$type": NOTE, "n": n},
        }
        for n in range(150)
    ]
    body = {"repo": session.did, "validate": False, "writes": writes}
    await client.procedure("com.atproto.repo.applyWrites", body)
    pds.rotate(session.did)
    await client.create_record(NOTE, {"$type": NOTE, "key": "new"})
    return Counter({Action.CREATE: 5 + 4 + 150 + 1, Action.UPDATE: 16, Action.DELETE: 1})


async def collect(tap: Tap, until: Any) -> list[Any]:
    events = []
    async with Subscriber(tap.url, cursor=0) as subscriber, asyncio.timeout(60):
        async for frame in subscriber.frames():
            events.append(parse_frame(frame))
            if until(events[-1]):
                return events
    raise AssertionError("the stream ended")


async def test_all_that_happens_on_a_real_pds_comes_back_verified(pds: Pds, tmp_path: Path) -> None:
    async with (
        DidDirectory(pds.plc_url) as directory,
        Tap(pds.url, directory, tmp_path, cursor=0) as tap,
        XrpcClient(pds.url) as alice,
        XrpcClient(pds.url) as bob,
    ):
        run = asyncio.ensure_future(tap.run())
        for client, name in ((alice, "anouk"), (bob, "boris")):
            await client.create_account(f"{name}.test", PASSWORD, email=f"{name}@example.com")
        assert alice.session is not None
        assert bob.session is not None
        expected = await write_all_sorts(alice, pds)
        await bob.create_record(NOTE, {"$type": NOTE, "n": 1})
        await bob.procedure("com.atproto.server.deactivateAccount", {})
        await bob.procedure("com.atproto.server.activateAccount")
        await bob.create_record(NOTE, {"$type": NOTE, "n": 2})
        pds.as_admin("com.atproto.admin.deleteAccount", {"did": bob.session.did})
        archive = await alice.get_repo(alice.session.did)
        events = await collect(tap, lambda event: getattr(event, "status", None) == "deleted")
        stats = tap.stats()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    commits = [event for event in events if isinstance(event, CommitEvent)]
    hers = [event for event in commits if event.repo == alice.session.did]
    assert Counter(op.action for event in hers for op in event.ops) == expected
    assert len([op for event in commits if event.repo == bob.session.did for op in event.ops]) == 2
    statuses = [
        event.status for event in events if isinstance(event, AccountEvent) and event.did == bob.session.did
    ]
    assert [status for status in statuses if status] == ["deactivated", "deleted"]
    assert any(isinstance(event, IdentityEvent) for event in events)
    assert any(isinstance(event, SyncEvent) for event in events)
    # Nothing was refused, nothing missed, and what we hold is what the server would give out.
    assert set(stats["verdicts"]) <= {"accept", "noop"}, stats["verdicts"]
    assert stats["resync"].get("gaps", 0) == 0
    assert hers[-1].commit.bytes in archive


def test_a_game_whose_agents_live_on_a_real_pds(pds: Pds, tmp_path: Path) -> None:
    env = os.environ | {
        "SKYLEASE_NETWORK__PDS_URL": pds.url,
        "SKYLEASE_NETWORK__PLC_URL": pds.plc_url,
        "SKYLEASE_DATA_DIR": str(tmp_path / "data"),
    }
    command = [str(Path(sys.executable).with_name("skylease")), "simulate", "catan", "--seed", "7", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    game = report["games"][0]
    assert game["winner"]
    assert report["leases"]["acquired"] == report["leases"]["ended"] == 4
    assert report["leases"]["live"] == report["sandboxes"]["left"] == 0
    assert report["events"]["rejected"] == 0
    assert report["events"]["verified"] >= report["turns"]["taken"]
