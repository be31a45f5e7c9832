"""How long a new sandbox with its first turn takes on every tier, how long closing it, and what it holds.

The work: from nothing to the finished first Python turn (json state in, json action out); then close. Ours in
two ways: `create`, all of it made now, and `warm_slot`, a slot that waits is claimed (its making is not in
the time; `acquire` and `claim` are the parts of these before the turn). Beside us: docker-py doing create +
start + exec + remove of the same image; llm-sandbox and SWE-ReX where `make bench-peers` was run. They have
one way only, to which both of ours are compared.

What bounds a claim: two dozen system calls on the state directory's file system (a rename, a link, one
record), a thread that enters the namespace to mount /data, one request to the runner, all of a tenth of a
millisecond to one; and the first turn, which is a warm one. The owner of what is in /data changes with the
sandbox's uid: some microseconds for each file there, of which there are few here.

Memory is the proportional set size (PSS) of every process that a sandbox has, its shims included, while it
idles after its first turn.

    python -m benchmarks.acquire [N]
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
from sandboxes import Limits, Sandbox, SlotSpec

WARM_UP: Final = 2
IDLE: Final = 5  # sandboxes whose memory is measured
DATA_FILES: Final = 5  # in the agent's /data
ACQUIRE, CREATE, CLOSE = "acquire", "create", "close"
CLAIM, WARM_SLOT = "claim", "warm_slot"
Times = dict[str, list[float]]
Row = dict[str, float]


def bench_acquire(n: int = 30) -> dict[str, Any]:
    """Return medians and 99th percentiles in ms over `n` sandboxes, and MiB per idle one."""
    with places() as (found, absent), _docker() as peer:
        absent |= asyncio.run(_without_slots(found))
        ours, theirs = asyncio.run(_measured(found, peer, n))
        memory = {place.tier.name: asyncio.run(_memory(place)) for place in found}
        if peer is not None:
            memory["docker_py"] = _docker_memory(peer)
    peers = ({"docker_py": theirs} if theirs else {}) | peers_apart("acquire", n, absent)
    for rows in peers.values():
        rows[WARM_SLOT] = rows[CREATE]  # the same work; they have no other way to it
    return report("acquire", ours, peers, absent, memory_mib=memory)


async def _without_slots(found: list[Place]) -> dict[str, str]:
    """Why tiers that work here keep no warm slots."""
    why = {f"{place.tier.name}.{WARM_SLOT}": await place.tier.can_warm() for place in found}
    return {case: reason for case, reason in why.items() if reason is not None}


async def _measured(
    found: list[Place], peer: "DockerPy | None", n: int
) -> tuple[dict[str, Row], dict[str, Row]]:
    """Ours and docker-py's, one sandbox of each in turn: what else the machine does meets all alike."""
    times: dict[str, Times] = {place.tier.name: {} for place in found}
    theirs: Times = {}
    for number in range(-WARM_UP, n):
        for place in found:
            name = f"bench-{number + WARM_UP}"
            _note(times[place.tier.name], number, await _created(place, name))
            if await place.tier.can_warm() is None:
                _note(times[place.tier.name], number, await _claimed(place, name))
        if peer is not None:
            _note(theirs, number, peer.once())
    ours = {
        place.case(case): summary(seconds)
        for place in found
        for case, seconds in times[place.tier.name].items()
    }
    return ours, {case: summary(seconds) for case, seconds in theirs.items()}


def _note(times: Times, number: int, took: Row) -> None:
    if number >= 0:
        for case, seconds in took.items():
            times.setdefault(case, []).append(seconds)


async def _created(place: Place, name: str) -> Row:
    """Seconds until it is there, until its first turn is done, and for closing it."""
    begun = time.perf_counter()
    sandbox = await place.tier.create(place.spec(name, _data(place, name)))
    made = time.perf_counter()
    await _turn(sandbox)
    turned = time.perf_counter()
    await sandbox.close()
    await place.tier.destroy(name)
    return {ACQUIRE: made - begun, CREATE: turned - begun, CLOSE: time.perf_counter() - turned}


async def _claimed(place: Place, name: str) -> Row:
    """Seconds until a slot that waits is a sandbox, and until its first turn is done."""
    slot = f"slot-{os.urandom(8).hex()}"
    spec = place.spec(name, _data(place, name))
    await place.tier.warm(SlotSpec(name=slot, image=place.image, limits=Limits()))
    begun = time.perf_counter()
    sandbox = await place.tier.claim(slot, spec)
    made = time.perf_counter()
    await _turn(sandbox)
    turned = time.perf_counter()
    await sandbox.close()
    await place.tier.destroy(name)
    return {CLAIM: made - begun, WARM_SLOT: turned - begun}


def _data(place: Place, name: str) -> Path:
    """The agent's directory, made before anybody waits."""
    data = place.image.root.parent / "data" / place.tier.name / name
    data.mkdir(parents=True, exist_ok=True)
    for number in range(DATA_FILES):
        (data / str(number)).write_text("{}")
    return data


async def _turn(sandbox: Sandbox) -> None:
    result = await sandbox.turn(STATE, turn=1, env=ENV)
    if result.action is None:
        raise RuntimeError(f"a turn failed: {result.skip}")


async def _memory(place: Place) -> float:
    """MiB of one idle sandbox."""
    before, names = set(_parents()), [f"bench-idle-{number}" for number in range(IDLE)]
    try:
        pids = []
        for name in names:
            async with await place.tier.create(place.spec(name)) as sandbox:
                await sandbox.turn(STATE, turn=1, env=ENV)
            pids.append((await place.tier.inspect(name)).pid)
        return _mib_each(before, [pid for pid in pids if pid], names)
    finally:
        for name in names:
            await place.tier.destroy(name)


class DockerPy:
    """The same by docker-py: create + start + exec + remove."""

    # docker-py's exec has no stdin: the state goes as an argument, which is less work than ours
    ARGV: Final = (
        "python3",
        "-c",
        SCRIPT.replace("sys.stdin", "__import__('io').StringIO(sys.argv[1])"),
        json.dumps(STATE),
    )

    def __init__(self, client: Any) -> None:
        self._client = client

    def make(self) -> Any:
        """Return a running container."""
        container = self._client.containers.create(
            DOCKER_IMAGE, ["sleep", "3600"], network_mode="none", init=True, labels={"skylease.bench": "peer"}
        )
        container.start()
        return container

    def once(self) -> Row:
        """Return the seconds until it is there, until its first turn is done, and for removing it."""
        begun = time.perf_counter()
        container = self.make()
        made = time.perf_counter()
        code = container.exec_run(list(self.ARGV)).exit_code
        turned = time.perf_counter()
        container.remove(force=True)
        closed = time.perf_counter()
        if code:
            raise RuntimeError("docker-py's turn failed")
        return {ACQUIRE: made - begun, CREATE: turned - begun, CLOSE: closed - turned}


@contextmanager
def _docker() -> Iterator[DockerPy | None]:
    """docker-py; None where no daemon answers or the image is not there."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=60)
        client.images.get(DOCKER_IMAGE)
    except DockerException:
        yield None
        return
    try:
        yield DockerPy(client)
    finally:
        client.close()


def _docker_memory(peer: DockerPy) -> float:
    before, idle = set(_parents()), [peer.make() for _ in range(IDLE)]
    try:
        pids = []
        for container in idle:
            container.reload()
            pids.append(int(container.attrs["State"]["Pid"]))
        return _mib_each(before, pids, [container.id for container in idle])
    finally:
        for container in idle:
            container.remove(force=True)


def _mib_each(before: set[int], pids: list[int], words: list[str]) -> float:
    """The MiB that each of these sandboxes holds: all new processes that belong to its tree or name it."""
    parents = _parents()
    tops = set()
    for pid in pids:
        while parents.get(pid, 0) > 1 and parents[pid] not in before:
            pid = parents[pid]
        tops.add(pid)
    total = 0
    for pid in set(parents) - before:
        if _descends(pid, tops, parents) or any(word in _command(pid) for word in words):
            total += _pss_kib(pid)
    return round(total / 1024 / max(1, len(pids)), 2)


def _descends(pid: int, tops: set[int], parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid in tops:
            return True
        pid = parents.get(pid, 0)
    return False


def _parents() -> dict[int, int]:
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bench_acquire(int(sys.argv[1]) if len(sys.argv) > 1 else 30)) + "\n")
