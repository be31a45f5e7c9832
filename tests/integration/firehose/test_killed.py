"""A network, killed with SIGKILL at random moments: nothing that it confirmed is lost."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from firehose.document import signing_key
from firehose.errors import HttpError, XrpcError
from firehose.frames import CommitEvent, parse_frame, peek
from firehose.http import HttpSession
from firehose.identity import DidDirectory
from firehose.listen import listening_socket
from firehose.repo import read_repo_car
from firehose.subscribe import Backoff, Subscriber
from firehose.syntax import parse_did
from firehose.xrpc import XrpcClient

NOTE = "dev.example.note"
QUICK = Backoff(base=0.02, cap=0.2)
NETWORK = """
import asyncio, sys
from pathlib import Path
from firehose.network import Network

async def main(state, port):
    async with Network(Path(state), port=int(port)):
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def free_port() -> int:
    with listening_socket("127.0.0.1", 0) as taken:
        port: int = taken.getsockname()[1]
        return port


class Victim:
    """A process that is killed and started again."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._command = (sys.executable, "-c", program, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self.kills = 0

    async def start(self) -> None:
        assert self._process is None or self._process.returncode is not None, "it runs already"
        self._process = await asyncio.create_subprocess_exec(*self._command, cwd=Path(__file__).parents[3])

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self.kills += 1


@asynccontextmanager
async def killing(victim: Victim, rng: random.Random, longest_s: float, url: str) -> AsyncIterator[None]:
    """Inside: the victim is killed again and again, a random while after it answers, or has been started.
    Afterwards: it runs.
    """

    is_over = asyncio.Event()

    async def torment() -> None:
        while not is_over.is_set():
            if rng.random() < 0.75:
                await answering(url)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), rng.uniform(0.3, longest_s))
            await victim.kill()
            await victim.start()

    task = asyncio.ensure_future(torment())
    try:
        yield
    finally:
        is_over.set()  # never cancelled: a process that is being started would be nobody's
        await task


async def wait_for(is_true: Callable[[], bool], deadline_s: float) -> None:
    async with asyncio.timeout(deadline_s):
        while not is_true():
            await asyncio.sleep(0.02)


async def test_a_network_that_is_killed_keeps_what_it_confirmed(tmp_path: Path) -> None:
    port = free_port()
    victim = Victim(NETWORK, str(tmp_path / "network"), str(port))
    url = f"http://127.0.0.1:{port}"
    confirmed: dict[str, int] = {}
    frames: list[bytes] = []
    try:
        async with XrpcClient(url) as alice, Subscriber(url, cursor=0, backoff=QUICK) as subscriber:

            async def listen() -> None:
                async for frame in subscriber.frames():
                    frames.append(frame)

            await victim.start()
            session = await first_account(alice)
            listening = asyncio.ensure_future(listen())
            async with killing(victim, random.Random(3), 1.5, url):
                number = 0
                while victim.kills < 4 or len(confirmed) < 30:
                    try:
                        await alice.put_record(NOTE, f"k{number % 50}", {"n": number})
                        confirmed[f"k{number % 50}"] = number
                    except (HttpError, XrpcError):
                        await asyncio.sleep(0.05)
                    number += 1
            await answering(url)
            async with DidDirectory(url) as directory:
                document = await directory.resolve(session)
            contents = read_repo_car(await alice.get_repo(session))
            seq = (await health(url))["seq"]
            await wait_for(lambda: (subscriber.cursor or 0) >= seq, 60)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    finally:
        await victim.kill()
    assert document is not None
    assert signing_key(document, parse_did(session)) is not None
    kept = {path.rpartition("/")[2]: value["n"] for path, (_, value) in contents.records.items()}
    for key, number in confirmed.items():
        assert kept[key] >= number  # an unconfirmed later write may have arrived
    assert [peek(frame).seq for frame in frames] == list(range(1, seq + 1))
    commits = [event for event in map(parse_frame, frames) if isinstance(event, CommitEvent)]
    assert len(commits) > 20, "it was hardly alive"
    for before, after in pairwise(commits):
        assert after.since == before.rev  # one unbroken chain over all the crashes
    assert commits[-1].rev == contents.rev


async def first_account(client: XrpcClient) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                return (await client.create_account("alice.test", "pw")).did
            except HttpError:
                await asyncio.sleep(0.05)


async def answering(url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await health(url)
                return
            except HttpError:
                await asyncio.sleep(0.05)


async def health(url: str) -> dict[str, int]:
    async with HttpSession(url) as http:
        answer: dict[str, int] = json.loads((await http.request("GET", "/")).body)
        return answer
