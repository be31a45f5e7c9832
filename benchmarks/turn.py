"""How long a warm turn and a warm command take through the public API on every tier, and what others take.

The work: a Python script reads a small state as JSON on stdin and answers with one JSON object; and
`/bin/true`. Ours run in sandboxes that have been up for a while. The peers: a fresh `python3 -c` on the bare
host; the same by `docker exec` through docker-py; llm-sandbox and SWE-ReX where `make bench-peers` was run.

    python -m benchmarks.turn [N]
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from benchmarks.places import (
    DOCKER_IMAGE,
    ENV,
    SCRIPT,
    STATE,
    Place,
    peers_apart,
    places,
    report,
    summary,
)
from sandboxes import Sandbox

WARM_UP: Final = 10
BLOCK: Final = 10  # calls of one case in a row
OURS: Final = "ours"
RAW_STATE: Final = json.dumps(STATE).encode()
TURN: Final = "warm_python_turn"
COMMAND: Final = "warm_command"


Call = Callable[[], Awaitable[object]]


def bench_turn(n: int = 200) -> dict[str, Any]:
    """Return medians and 99th percentiles in ms, ours and the peers', over `n` repetitions of each case."""
    with places() as (found, absent):
        times = asyncio.run(_measured(found, n))
    ours = {case: summary(seconds) for (who, case), seconds in times.items() if who == OURS}
    peers: dict[str, dict[str, dict[str, float]]] = {}
    for (who, case), seconds in times.items():
        if who != OURS:
            peers.setdefault(who, {})[case] = summary(seconds)
    return report("turn", ours, peers | peers_apart("turn", n, absent), absent)


async def _measured(found: list[Place], n: int) -> dict[tuple[str, str], list[float]]:
    """The seconds of everything that is measured here, in turns of a few calls: what else the machine does
    meets all of them alike.
    """
    async with AsyncExitStack() as stack:
        calls: dict[tuple[str, str], Call] = {}
        for place in found:
            sandbox = await stack.enter_async_context(_sandbox(place))
            calls[OURS, place.case(TURN)] = partial(_turn, sandbox)
            calls[OURS, place.case(COMMAND)] = partial(_command, sandbox)
        calls["subprocess", TURN] = _subprocess_turn
        calls |= {("docker_py", case): call for case, call in stack.enter_context(_docker()).items()}
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for call in calls.values():
            await _times(call, WARM_UP)
        while any(len(seconds) < n for seconds in times.values()):
            for key, call in calls.items():
                times[key] += await _times(call, min(BLOCK, n - len(times[key])))
        return times


async def _times(call: Call, n: int) -> list[float]:
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begun)
    return times


@asynccontextmanager
async def _sandbox(place: Place) -> AsyncIterator[Sandbox]:
    sandbox = await place.tier.create(place.spec("bench"))
    try:
        yield sandbox
    finally:
        await sandbox.close()
        await place.tier.destroy("bench")


async def _turn(sandbox: Sandbox) -> None:
    result = await sandbox.turn(STATE, turn=1, env=ENV)
    if result.action is None:
        raise RuntimeError(f"a turn failed: {result.skip}")


async def _command(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["/bin/true"])
    if result.exit_code:
        raise RuntimeError(f"a command failed: {result.stderr_text}")


async def _subprocess_turn() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    subprocess.run([python, "-c", SCRIPT], input=RAW_STATE, capture_output=True, check=True)  # noqa: ASYNC221


@contextmanager
def _docker() -> Iterator[dict[str, Call]]:
    """docker-py's calls; none where no daemon answers or the image is not there."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=60)
        container = client.containers.run(
            DOCKER_IMAGE, ["sleep", "3600"], detach=True, network_mode="none", init=True
        )
    except DockerException:
        yield {}
        return
    # docker-py's exec has no stdin: the state goes as an argument, which is less work than ours
    script = SCRIPT.replace("sys.stdin", "__import__('io').StringIO(sys.argv[1])")
    turn = ["python3", "-c", script, RAW_STATE.decode()]

    async def execute(argv: list[str]) -> None:
        if container.exec_run(argv).exit_code:
            raise RuntimeError("docker-py's exec failed")

    try:
        yield {TURN: partial(execute, turn), COMMAND: partial(execute, ["/bin/true"])}
    finally:
        container.remove(force=True)
        client.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bench_turn(int(sys.argv[1]) if len(sys.argv) > 1 else 200)) + "\n")
