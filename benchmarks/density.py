"""How much memory a lease costs: awake and idle, napping, sleeping; and how many sleeping ones cost.

Memory is what the processes of the sandboxes hold (PSS: what they share is counted once), and for sleeping
ones also what the pool that knows them grows by. Beside us a container of docker with nothing but `sleep`.
Each of those that sleep was a sandbox of its own; ten are made, and put to sleep, at a time. Of gVisor, whose
every sandbox starts a kernel, a tenth of them: `leases` says how many of each.

    python -m benchmarks.density [N]
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.places import Place, docker_container, places, report
from sandboxes import SandboxInfo
from sandboxes.pool.book import Book
from sandboxes.pool.ground import Ground
from sandboxes.pool.policy import PoolPolicy
from sandboxes.pool.pool import Pool
from sandboxes.pool.tally import Tally
from sandboxes.runner.tree import descendants
from sandboxes.snapshots import LocalStore, Snapshots

MIB: Final = 2**20
AT_ONCE: Final = 10  # live ones whose memory is taken together
SLEEPING: Final = 200
ONE_IN: Final = {"gvisor": 10}  # of so many leases one is made, where making one takes that much longer
TOLD_EVERY: Final = 50  # sandboxes


def bench_density(n: int = SLEEPING) -> dict[str, Any]:
    """Return MiB for each lease: idle, napping, and `n` of them asleep (of gVisor fewer: see the module)."""
    memory: dict[str, float] = {}
    asleep: dict[str, int] = {}
    with places() as (found, absent):
        for place in found:
            name = place.tier.name
            asleep[name] = max(AT_ONCE, n // ONE_IN.get(name, 1))
            with tempfile.TemporaryDirectory(prefix="skylease-bench-") as directory:
                measured = asyncio.run(_ours(place, Path(directory), asleep[name]))
            memory |= {place.case(case): mib for case, mib in measured.items()}
    docker = _docker()
    if docker is None:
        absent["docker_py"] = "no engine answers, or the image is not there"
    else:
        memory["docker_py idle"] = docker
    leases = {"asleep": asleep, "live": AT_ONCE}
    return report("density", {}, {}, absent, unit="MiB", memory_mib=memory, leases=leases)


async def _ours(place: Place, root: Path, n: int) -> dict[str, float]:
    with _pool(place, root) as pool:
        names = [f"bench-{number}" for number in range(n)]
        batches = [names[first : first + AT_ONCE] for first in range(0, n, AT_ONCE)]
        await _each(batches[0], lambda name: pool.acquire(place.spec(name)))
        found = {"idle": await _held(place, AT_ONCE)}
        await _each(batches[0], pool.pause)
        found["napping"] = await _held(place, AT_ONCE)
        before = _resident()
        await _each(batches[0], pool.stop)
        for done, batch in enumerate(batches[1:], start=1):
            _tell(place, done * AT_ONCE, n)
            await _each(batch, lambda name: pool.acquire(place.spec(name)))
            await _each(batch, pool.stop)
        _tell(place, n, n)
        if (asleep := pool.stats()["cold"]) != n:
            raise RuntimeError(f"{asleep} of {n} sandboxes of the tier {place.tier.name} sleep")
        held = await _held(place, 1)
        grown = max(0.0, _resident() - before)
        found[f"asleep (of {n})"] = round((held + grown) / n, 4)
        for batch in batches:
            await _each(batch, pool.destroy)
        return found


async def _each(names: list[str], act: Callable[[str], Coroutine[Any, Any, Any]]) -> None:
    """Do it with all of them at once; the first failure ends the others."""
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(act(name))


def _tell(place: Place, done: int, n: int) -> None:
    """Say how far it is."""
    if done % TOLD_EVERY == 0 or done == n:
        print(f"{place.tier.name}: {done} of {n} asleep", file=sys.stderr, flush=True)


@contextmanager
def _pool(place: Place, root: Path) -> Iterator[Pool]:
    book = Book(root / "pool.db")
    ground = Ground(
        tier=place.tier,
        snapshots=Snapshots(LocalStore(root / "store"), root / "scratch"),
        book=book,
        policy=PoolPolicy(capacity=AT_ONCE, evict_idle_s=0.0),
        tally=Tally(),
    )
    try:
        yield Pool(ground)
    finally:
        book.close()


async def _held(place: Place, leases: int) -> float:
    """Return the MiB of all sandboxes together, for each lease."""
    infos = await place.tier.list({})
    return round(sum(_pss(info) for info in infos) / MIB / leases, 2)


def _pss(info: SandboxInfo) -> int:
    pids = [] if info.pid is None else [info.pid, *descendants(info.pid)]
    return sum(_pss_of(pid) for pid in pids)


def _pss_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def _resident() -> float:
    """Return the MiB that we hold ourselves."""
    return _pss_of(os.getpid()) / MIB


def _docker() -> float | None:
    """Return the MiB of an idle container: its process and the engine's own beside it; None: no engine."""
    with docker_container() as container:
        if container is None:
            return None
        pid = int(container.client.api.inspect_container(container.id)["State"]["Pid"])
        shim = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return round((_pss_of(pid) + _pss_of(shim)) / MIB, 2)


if __name__ == "__main__":
    json.dump(bench_density(int(sys.argv[1]) if len(sys.argv) > 1 else SLEEPING), sys.stdout, indent=1)
