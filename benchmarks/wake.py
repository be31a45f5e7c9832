"""How long a sandbox takes to be put to rest, and from rest to a finished Python turn, on every tier.

`nap` freezes it, `doze` also pages its memory out (where there is swap), `sleep` keeps its files in a
snapshot and ends it; `…_wake` is what its next turn then takes. A sleeping one wakes from nothing
(`sleep_wake`), from a warm slot (`slot_wake`; making the slot is not in the time), or with its files in the
shared store alone (`cold_wake`; that store is a directory here: no network is in the time). Beside us
docker-py: pause and unpause, stop and start (which keeps the files on that machine only), each with an exec.

    python -m benchmarks.wake [N]
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.places import ENV, SCRIPT, STATE, Place, docker_container, places, report, summary
from sandboxes import Sandbox, SlotSpec
from sandboxes.pool.pageout import page_out, why_no_doze
from sandboxes.sleep import resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.snapshots.two_level_store import TwoLevelStore

WARM_UP: Final = 2
NAME: Final = "bench-sleeper"
SLOT: Final = "slot-00000000000be4c4"
CASES: Final = ("nap", "nap_wake", "sleep", "sleep_wake")
PEER_CASES: Final = {"slot_wake": "sleep_wake", "cold_wake": "sleep_wake"}  # ours → what a peer has for it
Times = dict[str, list[float]]


def bench_wake(n: int = 30) -> dict[str, Any]:
    """Return medians and 99th percentiles in ms over `n` rounds of nap, wake, sleep, wake."""
    ours: dict[str, dict[str, float]] = {}
    with places() as (found, absent):
        for place in found:
            with tempfile.TemporaryDirectory(prefix="skylease-bench-") as directory:
                store = Path(directory)
                two = TwoLevelStore(LocalStore(store / "near"), LocalStore(store / "far"))
                snapshots = Snapshots(two, store / "scratch")
                times = asyncio.run(_ours(place, snapshots, n))
                times |= asyncio.run(_deeper(place, snapshots, n, absent))
            ours |= {place.case(case): summary(seconds) for case, seconds in times.items()}
    docker = _docker(n)
    peers: dict[str, dict[str, dict[str, float]]] = {}
    if docker is not None:
        peers["docker_py"] = {case: summary(times) for case, times in docker.items()}
        peers["docker_py"] |= {case: peers["docker_py"][theirs] for case, theirs in PEER_CASES.items()}
    return report("wake", ours, peers, absent)


async def _ours(place: Place, snapshots: Snapshots, n: int) -> Times:
    times: Times = {case: [] for case in CASES}
    tier, spec = place.tier, place.spec(NAME)
    sandbox, _ = await resume(tier, spec, snapshots)
    await _turn(sandbox)
    for number in range(-WARM_UP, n):
        marks = [time.perf_counter()]
        await tier.freeze(NAME)
        marks.append(time.perf_counter())
        await _turn(sandbox)
        marks.append(time.perf_counter())
        await sandbox.close()
        await suspend(tier, NAME, snapshots)
        marks.append(time.perf_counter())
        sandbox, _ = await resume(tier, spec, snapshots)
        await _turn(sandbox)
        marks.append(time.perf_counter())
        _note(times, number, marks)
    await sandbox.close()
    await tier.destroy(NAME)
    return times


async def _deeper(place: Place, snapshots: Snapshots, n: int, absent: dict[str, str]) -> Times:
    """Waking from a slot, from the shared store alone, and from a doze; in `absent` what cannot be here."""
    ways: dict[str, Callable[[], Awaitable[Sandbox]]] = {"cold_wake": partial(_from_far, place, snapshots)}
    if (why := await place.tier.can_warm()) is None:
        ways["slot_wake"] = partial(_from_slot, place, snapshots)
    else:
        absent[place.case("slot_wake")] = why
    times: Times = {}
    sandbox, _ = await resume(place.tier, place.spec(NAME), snapshots)
    for case, way in ways.items():
        times[case] = []
        for number in range(-WARM_UP, n):
            await _turn(sandbox)
            await sandbox.close()
            await suspend(place.tier, NAME, snapshots)
            took, sandbox = await _timed(place, case, snapshots, way)
            if number >= 0:
                times[case].append(took)
    if why_not := why_no_doze():
        absent[place.case("doze_wake")] = why_not
    else:
        times["doze_wake"] = [await _from_doze(place, sandbox) for _ in range(n)]
    await sandbox.close()
    await place.tier.destroy(NAME)
    return times


async def _timed(
    place: Place, case: str, snapshots: Snapshots, way: Callable[[], Awaitable[Sandbox]]
) -> tuple[float, Sandbox]:
    if case == "cold_wake":
        snapshots.cool(NAME)
    else:
        spec = place.spec(NAME)
        await place.tier.warm(SlotSpec(name=SLOT, image=spec.image, limits=spec.limits))
    begun = time.perf_counter()
    sandbox = await way()
    await _turn(sandbox)
    return time.perf_counter() - begun, sandbox


async def _from_slot(place: Place, snapshots: Snapshots) -> Sandbox:
    spec = place.spec(NAME)
    sandbox, _ = await resume(place.tier, spec, snapshots, make=partial(place.tier.claim, SLOT, spec))
    return sandbox


async def _from_far(place: Place, snapshots: Snapshots) -> Sandbox:
    sandbox, _ = await resume(place.tier, place.spec(NAME), snapshots)
    return sandbox


async def _from_doze(place: Place, sandbox: Sandbox) -> float:
    await place.tier.freeze(NAME)
    info = await place.tier.inspect(NAME)
    assert info.pid is not None
    await asyncio.to_thread(page_out, info.pid)
    begun = time.perf_counter()
    await _turn(sandbox)
    return time.perf_counter() - begun


async def _turn(sandbox: Sandbox) -> None:
    result = await sandbox.turn(STATE, turn=1, env=ENV)
    if result.action is None:
        raise RuntimeError(f"a turn failed: {result.skip}")


def _note(times: Times, number: int, marks: list[float]) -> None:
    if number >= 0:
        for case, begun, ended in zip(CASES, marks, marks[1:], strict=False):
            times[case].append(ended - begun)


def _docker(n: int) -> Times | None:
    """docker-py's times; None where no daemon answers or the image is not there."""
    script = SCRIPT.replace("sys.stdin", "__import__('io').StringIO(sys.argv[1])")
    argv = ["python3", "-c", script, json.dumps(STATE)]
    with docker_container(init=True) as container:
        if container is None:
            return None
        times: Times = {case: [] for case in CASES}
        for number in range(-WARM_UP, n):
            marks = [time.perf_counter()]
            for rest, wake in ((container.pause, container.unpause), (_stop(container), container.start)):
                rest()
                marks.append(time.perf_counter())
                wake()
                if container.exec_run(argv).exit_code:
                    raise RuntimeError("docker-py's turn failed")
                marks.append(time.perf_counter())
            _note(times, number, marks)
        return times


def _stop(container: Any) -> Any:
    return lambda: container.stop(timeout=0)


if __name__ == "__main__":
    json.dump(bench_wake(int(sys.argv[1]) if len(sys.argv) > 1 else 30), sys.stdout, indent=1)
