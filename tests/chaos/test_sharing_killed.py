"""Holders of a shared sandbox are stopped past their time, contend, and are killed at every step."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leases import LedgerLatch
from sandboxes import ImageSpec, Limits, SandboxSpec, SandboxState, open_tier
from sandboxes.sharing import (
    AfterUse,
    Caller,
    Guard,
    GuardLost,
    Latch,
    Scope,
    Sharing,
    Source,
    SqliteStates,
    Wanted,
    key_of,
    sandbox_name,
    tiers_over,
)
from sandboxes.sharing.redis_states import RedisLatch, RedisStates
from sandboxes.snapshots import LocalStore, Snapshots
from tests.killing import code_of, killed_at

ALICE = Caller(agent_id="did:plc:alice")
KEY = key_of(Scope.AGENT, ALICE)
assert KEY is not None
NAME = sandbox_name(KEY)
TTL_S = 2.0  # of a holder that is stopped for longer
CHANGES = ((os, ("fsync", "replace", "rename", "kill")), (SqliteStates, ("claim", "save")))


class Place:
    """What all processes of a test share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ttl_s = 60.0  # no holder stalls for so long by itself
        self.redis = ""  # URL of the Redis where they meet; empty: the files of this node
        image = root / "image"
        image.mkdir()
        (image / "take_turn.py").write_text("print('{}')")
        root.chmod(0o755)
        image.chmod(0o755)
        spec = SandboxSpec(
            name="x", epoch=0, image=ImageSpec(name="test", root=image), limits=Limits(idle_deadline_s=60)
        )
        self.wanted = Wanted(spec=spec, scope=Scope.AGENT, caller=ALICE, wait_s=30.0)

    def sharing(self, node: str = "here", *, guarded: bool = True) -> Sharing:
        """What another process would make."""
        return Sharing(
            tiers_over(self.root / node),
            RedisStates(self.redis) if self.redis else SqliteStates(self.root / "states.db"),
            Snapshots(LocalStore(self.root / "store"), self.root / "scratch"),
            node=node,
            guard=Guard(self._latch(), ttl_s=self.ttl_s) if guarded else None,
        )

    def _latch(self) -> Latch:
        return RedisLatch(self.redis) if self.redis else LedgerLatch(self.root / "ledger.db")

    async def use(
        self, line: str, *, node: str = "here", guarded: bool = True, **changes: Any
    ) -> tuple[str, str]:
        """Run a line in the sandbox; return where it came from and what was written."""
        wanted = replace(self.wanted, **changes)
        async with self.sharing(node, guarded=guarded) as sharing, sharing.lend(wanted) as lent:
            done = await lent.sandbox.exec(line)
            assert done.exit_code == 0, done.stderr
            return lent.source, done.stdout.decode()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """At the end nothing is left of any sandbox, once it was swept."""
    yield Place(tmp_path)

    async def sweep(node: str) -> None:
        place = tmp_path / node
        async with Sharing(
            tiers_over(place),
            SqliteStates(tmp_path / "states.db"),
            Snapshots(LocalStore(tmp_path / "store"), tmp_path / "scratch"),
            node=node,
        ) as sharing:
            await sharing.sweep("process", idle_s=0)
        tier = open_tier("process", place)
        await tier.sweep()
        info = await tier.inspect(NAME)
        assert (info.state, info.leftovers) == (SandboxState.DELETED, ())
        assert await tier.list() == []

    for node in ("here", "there"):
        if (tmp_path / node).is_dir():
            asyncio.run(sweep(node))


def child(work: Callable[[], Awaitable[int]]) -> int:
    """Do some work in a child; its exit code is what the work returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = asyncio.run(work())  # type: ignore[arg-type]
    finally:
        os._exit(code)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A Redis of our own."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server (apt-get install redis-server)")
    socket = tmp_path / "redis.sock"
    words = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--save", ""]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(socket)
            yield f"unix://{socket}"
        finally:
            server.kill()


@pytest.mark.parametrize(("node", "meet"), [("here", "ledger"), ("there", "redis")])
def test_a_holder_that_was_stopped_past_its_time_is_refused(
    place: Place, node: str, meet: str, request: pytest.FixtureRequest
) -> None:
    """The next one works on the same node, with the living sandbox, or on another one, with its files."""
    place.redis = request.getfixturevalue("redis_url") if meet == "redis" else ""
    asyncio.run(place.use("echo first > memo"))

    async def late() -> int:
        place.ttl_s = TTL_S  # in this process only
        async with place.sharing() as sharing:
            lent = await sharing.acquire(place.wanted)
            await lent.sandbox.exec("echo late > memo")
            (place.root / "has").touch()
            while not (place.root / "go").exists():
                await asyncio.sleep(0.01)
            try:
                await sharing.release(lent)
            except GuardLost:
                return 7
            return 0

    pid = child(late)
    wait_for(place.root / "has")
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    _, seen = asyncio.run(place.use("cat memo; echo next > memo", node=node))
    assert time.monotonic() - started < 30
    assert seen == ("late\n" if node == "here" else "first\n")
    (place.root / "go").touch()
    os.kill(pid, signal.SIGCONT)
    assert code_of(pid) == 7
    assert asyncio.run(place.use("cat memo")) == (Source.STORED_STATE, "next\n")


def test_of_many_processes_one_creates(place: Place) -> None:
    asyncio.run(place.use("true", scope=Scope.GLOBAL))  # so that no child has to make the files

    async def work() -> int:
        line = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
        source, _ = await place.use(line, after_use=AfterUse.STAY)
        return 1 if source == Source.CREATED else 0

    pids = [child(work) for _ in range(5)]
    assert sorted(code_of(pid) for pid in pids) == [0, 0, 0, 0, 1]
    assert asyncio.run(place.use("cat n")) == (Source.STORED_STATE, "5\n")


# Every one of some 90 steps for a night; every 11th in between.
STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 11


@pytest.mark.timeout(900 if STRIDE == 1 else 300)
@pytest.mark.parametrize("after_use", list(AfterUse))
def test_killed_at_every_step(place: Place, after_use: AfterUse) -> None:
    """From acquire to release: what was written before is there after."""
    step, codes = 2, []
    asyncio.run(place.use(f"echo {step} > memo", guarded=False))
    while 0 not in codes:
        again = partial(place.use, "cat memo; echo more >> log", guarded=False, after_use=after_use)
        codes.append(killed_at(step, CHANGES, again))
        line = f"cat memo; echo {step + STRIDE} > memo"
        assert asyncio.run(place.use(line, guarded=False)) == (Source.STORED_STATE, f"{step}\n")
        step += STRIDE
        assert step < 400, "it never comes to its end"
    assert len(codes) > 3
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.timeout(900 if STRIDE == 1 else 300)
def test_killed_while_the_first_is_made(place: Place) -> None:
    step, codes = 2, []
    while 0 not in codes:
        caller = Caller(agent_id=f"agent-{step}")
        used = partial(place.use, "echo kept > memo", guarded=False, caller=caller)
        codes.append(killed_at(step, CHANGES, used))
        _, seen = asyncio.run(place.use("cat memo || true", guarded=False, caller=caller))
        assert seen == "kept\n" or (seen == "" and codes[-1] != 0)
        step += STRIDE
        assert step < 400, "it never comes to its end"
    assert len(codes) > 3
