"""One peer, measured with its own library in its own venv; started by benchmarks/places.py.

    .venv-peers/bin/python benchmarks/peers/measure.py llm_sandbox|swe_rex turn|acquire N IMAGE <work.json

On stdin: the script of a turn and the state. On stdout, as the last line: case → seconds, a list.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

logging.disable(logging.CRITICAL)
SWEREX_IMAGE = "skylease/bench-swerex:dev"  # benchmarks/peers/Dockerfile
WARM_UP = 3
FEW = 5  # of what takes ten seconds each


def turn_code(work: dict[str, Any]) -> str:
    """The same turn as a program without stdin, which neither peer has."""
    return str(work["script"]).replace(
        "sys.stdin", f"__import__('io').StringIO({json.dumps(work['state'])!r})"
    )


def timed(call: Callable[[], object], n: int) -> list[float]:
    """The seconds of n calls, after some that do not count."""
    times = []
    for _ in range(-WARM_UP, n):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times[WARM_UP:]


def llm_sandbox(bench: str, n: int, image: str, work: dict[str, Any]) -> dict[str, list[float]]:
    """llm-sandbox's own docker session, without the package set-up that it would do first."""
    from llm_sandbox import SandboxSession

    def session() -> Any:
        return SandboxSession(lang="python", image=image, keep_template=True, skip_environment_setup=True)

    code = turn_code(work)
    if bench == "turn":
        with session() as opened:
            check(opened.run(code))
            return {
                "warm_python_turn": timed(lambda: opened.run(code), n),
                "warm_command": timed(lambda: opened.execute_command("/bin/true"), n),
            }
    times: dict[str, list[float]] = {"acquire": [], "create": [], "close": []}
    for _ in range(min(n, FEW)):
        begun = time.perf_counter()
        opened = session()
        opened.open()
        made = time.perf_counter()
        check(opened.run(code))
        turned = time.perf_counter()
        opened.close()
        note(times, made - begun, turned - begun, time.perf_counter() - turned)
    return times


def note(times: dict[str, list[float]], acquired: float, turned: float, closed: float) -> None:
    """Keep what one round took."""
    times["acquire"].append(acquired)
    times["create"].append(turned)
    times["close"].append(closed)


def check(result: Any) -> None:
    """Refuse to time what did not work."""
    if result.exit_code:
        raise SystemExit(f"the peer's turn failed: {result.stderr}")


async def swe_rex(bench: str, n: int, work: dict[str, Any]) -> dict[str, list[float]]:
    """SWE-ReX's docker deployment: one stateless command, and one in its shell session."""
    from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

    turn = Command(command=["python3", "-c", turn_code(work)])
    if bench == "turn":
        times: dict[str, list[float]] = {}
        deployment = await started()
        try:
            runtime = deployment.runtime
            times["warm_python_turn"] = await atimed(lambda: runtime.execute(turn), n)
            times["warm_command"] = await atimed(lambda: runtime.execute(Command(command=["/bin/true"])), n)
            await runtime.create_session(CreateBashSessionRequest())
            action = BashAction(command="/bin/true")
            times["warm_session_command"] = await atimed(lambda: runtime.run_in_session(action), n)
        finally:
            await deployment.stop()
        return times
    times = {"acquire": [], "create": [], "close": []}
    for _ in range(min(n, FEW)):
        begun = time.perf_counter()
        deployment = await started()
        made = time.perf_counter()
        check(await deployment.runtime.execute(turn))
        turned = time.perf_counter()
        await deployment.stop()
        note(times, made - begun, turned - begun, time.perf_counter() - turned)
    return times


async def started() -> Any:
    """A deployment that answers."""
    from swerex.deployment.docker import DockerDeployment

    deployment = DockerDeployment(image=SWEREX_IMAGE, pull="never", remove_container=True)
    await deployment.start()
    return deployment


async def atimed(call: Callable[[], Awaitable[object]], n: int) -> list[float]:
    """The seconds of n awaited calls, after some that do not count."""
    times = []
    for _ in range(-WARM_UP, n):
        begun = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begun)
    return times[WARM_UP:]


def main() -> None:
    """Measure and print."""
    peer, bench, n, image = sys.argv[1:5]
    work = json.load(sys.stdin)
    if peer == "llm_sandbox":
        times = llm_sandbox(bench, int(n), image, work)
    else:
        times = asyncio.run(swe_rex(bench, int(n), work))
    sys.stdout.write("\n" + json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
