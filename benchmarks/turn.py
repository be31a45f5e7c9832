"""How long a warm turn takes through the public API, and what others take for the same work.

The work: a Python script reads a small state as JSON on stdin and answers with one JSON object. Ours is a
turn (and, beside it, a plain command) in a sandbox of the process tier that has been running for a while.
The peers are a fresh `python3 -c` on the bare host, and the same by `docker exec` through docker-py where a
daemon answers.

    python -m benchmarks.turn [N]
"""

import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sandboxes import ImageSpec, ProcessTier, Sandbox, SandboxSpec

SCRIPT: Final = (
    "import json, sys\n"
    "state = json.load(sys.stdin)\n"
    "print(json.dumps({'move': max(state['legal']), 'turn': state['turn']}))\n"
)
STATE: Final = {"turn": 1, "legal": list(range(50)), "board": {str(n): [n, n * 2] for n in range(100)}}
PRELOAD: Final = ("json", "random", "math", "collections")
DOCKER_IMAGE: Final = os.environ.get("SKYLEASE_BENCH_IMAGE", "python:3.12-slim-bookworm")
WARM_UP: Final = 10


def bench_turn(n: int = 200) -> dict[str, Any]:
    """Return medians and 99th percentiles in ms, ours and the peers', over `n` repetitions of each case."""
    ours = asyncio.run(_bench_ours(n))
    peers = {"subprocess": {"warm_python_turn": _bench_subprocess(n)}}
    docker = _bench_docker(n)
    if docker is not None:
        peers["docker_py"] = docker
    ratios = {
        peer: {case: round(cases[case]["p50"] / ours[case]["p50"], 1) for case in cases if case in ours}
        for peer, cases in peers.items()
    }
    host = f"{os.cpu_count()} x {platform.machine()}, Linux {platform.release()}"
    return {
        "bench": "turn",
        "unit": "ms",
        "ours": ours,
        "peers": peers,
        "ratios": ratios,
        "machine": f"{host}, Python {platform.python_version()}",
    }


async def _bench_ours(n: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="skylease-bench-") as directory:
        image = Path(directory) / "image"
        image.mkdir()
        (image / "take_turn.py").write_text(SCRIPT)
        tier = ProcessTier(Path(directory) / "state")
        spec = SandboxSpec(name="bench", epoch=1, image=ImageSpec(name="bench", root=image, preload=PRELOAD))
        sandbox = await tier.create(spec)
        try:
            return {
                "warm_python_turn": summary(await _turns(sandbox, n)),
                "warm_command": summary(await _commands(sandbox, n)),
            }
        finally:
            await sandbox.close()
            await tier.destroy("bench")


async def _turns(sandbox: Sandbox, n: int) -> list[float]:
    times = []
    for number in range(-WARM_UP, n):
        begun = time.perf_counter()
        result = await sandbox.turn(
            STATE, turn=number, env={"AGENT_DID": "did:plc:bench", "GAME_ID": "bench"}
        )
        times.append(time.perf_counter() - begun)
        if result.action is None:
            raise RuntimeError(f"a turn failed: {result.skip}")
    return times[WARM_UP:]


async def _commands(sandbox: Sandbox, n: int) -> list[float]:
    times = []
    for _ in range(-WARM_UP, n):
        begun = time.perf_counter()
        result = await sandbox.exec(["/bin/true"])
        times.append(time.perf_counter() - begun)
        if result.exit_code:
            raise RuntimeError(f"a command failed: {result.stderr_text}")
    return times[WARM_UP:]


def _bench_subprocess(n: int) -> dict[str, float]:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    raw = json.dumps(STATE).encode()

    def turn() -> None:
        subprocess.run([python, "-c", SCRIPT], input=raw, capture_output=True, check=True)

    return summary(_repeat(turn, n))


def _bench_docker(n: int) -> dict[str, dict[str, float]] | None:
    """Return docker-py's times, None where no daemon answers or the image is not there."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10)
        container = client.containers.run(
            DOCKER_IMAGE, ["sleep", "3600"], detach=True, network_mode="none", init=True
        )
    except DockerException:
        return None
    # docker-py's exec has no stdin: the state goes as an argument, which is less work than ours
    argv = [
        "python3",
        "-c",
        SCRIPT.replace("sys.stdin", "__import__('io').StringIO(sys.argv[1])"),
        json.dumps(STATE),
    ]
    try:
        return {
            "warm_python_turn": summary(_repeat(lambda: container.exec_run(argv), n)),
            "warm_command": summary(_repeat(lambda: container.exec_run(["/bin/true"]), n)),
        }
    finally:
        container.remove(force=True)
        client.close()


def _repeat(call: Callable[[], object], n: int) -> list[float]:
    times = []
    for _ in range(-WARM_UP, n):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times[WARM_UP:]


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds, and how many times were measured."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered) * 1e3, 2), "p99": round(p99 * 1e3, 2), "n": len(ordered)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bench_turn(int(sys.argv[1]) if len(sys.argv) > 1 else 200)) + "\n")
