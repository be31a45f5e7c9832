"""What the network costs: a putRecord, the way of an event through a tap, and the import of a client.

Network, tap and client run in three processes, as they do in a simulation. `python benchmarks/network.py`
prints one JSON object.
"""

import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from firehose.errors import FirehoseError
from firehose.http import HttpSession
from firehose.listen import listening_socket
from firehose.subscribe import Subscriber
from firehose.xrpc import XrpcClient

NOTE = "dev.example.note"
DEADLINE_S = 30.0
NETWORK = """
import asyncio, sys
from pathlib import Path
from firehose.network import Network

async def main(state, port):
    async with Network(Path(state), port=int(port)):
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
TAP = """
import asyncio, sys
from pathlib import Path
from firehose.identity import DidDirectory
from firehose.tap import Tap

async def main(upstream, state, port):
    async with DidDirectory(upstream) as directory:
        async with Tap(upstream, directory, Path(state), port=int(port), cursor=0) as tap:
            await tap.run()

asyncio.run(main(*sys.argv[1:]))
"""
IMPORT = """
import asyncio, importlib, sys, time

def own_kb():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))

before, start = own_kb(), time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
print((time.perf_counter() - start) * 1e3, (own_kb() - before) / 1e3)
"""


def bench_network(n: int = 500) -> dict[str, Any]:
    """Measure with `n` records; milliseconds, and megabytes for the imports."""
    ours = asyncio.run(_measure(n))
    ours["import firehose.xrpc"] = import_cost("firehose.xrpc")
    ours["import firehose.subscribe"] = import_cost("firehose.subscribe")
    ours["import both"] = import_cost("firehose.xrpc", "firehose.subscribe")
    peers = {}
    for peer in ("aiohttp", "httpx"):
        try:
            peers[peer] = {"import firehose.xrpc": import_cost(peer)}
        except subprocess.CalledProcessError:
            continue  # not installed: absent, never invented
    ratios = {
        peer: {case: cases[case]["p50"] / ours[case]["p50"] for case in cases}
        for peer, cases in peers.items()
    }
    machine = f"{platform.machine()} {platform.python_version()}"
    return {
        "bench": "network",
        "unit": "ms",
        "ours": ours,
        "peers": peers,
        "ratios": ratios,
        "machine": machine,
    }


def import_cost(*modules: str, runs: int = 5) -> dict[str, float]:
    """What importing takes in a fresh interpreter that has asyncio: milliseconds, private megabytes."""
    found = []
    for _ in range(runs):
        command = [sys.executable, "-c", IMPORT, *modules]
        output = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=DEADLINE_S
        ).stdout
        found.append([float(part) for part in output.split()])
    times = sorted(ms for ms, _ in found)
    return {
        "p50": statistics.median(times),
        "p99": times[-1],
        "n": runs,
        "mb": statistics.median(mb for _, mb in found),
    }


async def _measure(n: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        async with (
            _process(NETWORK, str(state / "network")) as pds,
            _process(TAP, f"http://127.0.0.1:{pds}", str(state / "tap")) as tap,
            XrpcClient(f"http://127.0.0.1:{pds}") as client,
            Subscriber(f"ws://127.0.0.1:{pds}") as at_pds,
            Subscriber(f"ws://127.0.0.1:{tap}") as at_tap,
        ):
            await client.create_account("alice.test", "benchmark")
            watching = [asyncio.ensure_future(_arrivals(subscriber)) for subscriber in (at_pds, at_tap)]
            await asyncio.sleep(1.0)  # both connected, the account's own events gone by
            for task in watching:
                task.cancel()
            puts = await _timed(n, lambda k: client.put_record(NOTE, f"a{k}", {"text": "x" * 300, "n": k}))
            noops = await _timed(n, lambda k: client.put_record(NOTE, "a0", {"text": "x" * 300, "n": 0}))
            gets = await _timed(n, lambda k: client.get_record("alice.test", NOTE, "a0"))
            await _drain(at_pds, at_tap)
            to_tap, added = [], []
            for number in range(n):
                start = time.perf_counter()
                put = asyncio.ensure_future(client.put_record(NOTE, f"b{number}", {"n": number}))
                pds_time, tap_time = await asyncio.gather(_arrival(at_pds), _arrival(at_tap))
                await put
                to_tap.append(tap_time - start)
                added.append(tap_time - pds_time)
    return {
        "putRecord": _summary(puts),
        "putRecord that changes nothing": _summary(noops),
        "getRecord": _summary(gets),
        "putRecord called, frame at a tap's client": _summary(to_tap),
        "frame at the PDS's client, frame at a tap's client": _summary(added),
    }


async def _timed(n: int, call: Callable[[int], Awaitable[object]]) -> list[float]:
    times = []
    for number in range(n):
        start = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - start)
    return times


async def _arrival(subscriber: Subscriber) -> float:
    async with asyncio.timeout(DEADLINE_S):
        await subscriber.receive()
    return time.perf_counter()


async def _arrivals(subscriber: Subscriber) -> None:
    async for _ in subscriber.frames():
        pass


async def _drain(*subscribers: Subscriber) -> None:
    for subscriber in subscribers:
        try:
            while True:
                async with asyncio.timeout(1.0):
                    await subscriber.receive()
        except TimeoutError:
            continue


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(second * 1e3 for second in seconds)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)], "n": len(ordered)}


@asynccontextmanager
async def _process(program: str, *arguments: str) -> AsyncIterator[int]:
    """The port of a server in a process of its own, once it answers."""
    with listening_socket("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments, str(port))
    try:
        async with asyncio.timeout(DEADLINE_S), HttpSession(f"http://127.0.0.1:{port}") as http:
            while True:
                try:
                    await http.request("GET", "/")
                    break
                except FirehoseError:
                    await asyncio.sleep(0.05)
        yield port
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bench_network(), indent=2) + "\n")
