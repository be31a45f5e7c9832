"""What clients that want nothing cost: a stream through the tap's server to one reader, with and without.

The reader and the idle clients live in processes of their own, as they would. The idle ones filter for what
does not occur, half by account, half by collection; the reader wants everything. Rounds with and without
them take turns, so that whatever else the machine does weighs on both.

By itself: `python -m benchmarks.fanout`, in the checkout.
"""

import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from firehose.frames import encode_identity
from firehose.serve import SUBSCRIBE_PATH, FrameServer
from firehose.window import Entry

IDLE_CLIENTS: Final = 500
FRAMES: Final = 4000  # of one round
FRAME_BYTES: Final = 5400  # the median of a public relay's frames
BURST_FRAMES: Final = 64  # published between two turns of the event loop
CONNECT_AT_ONCE: Final = 25
DEADLINE_S: Final = 120.0
DID: Final = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"


def bench_fanout(n: int = 15) -> dict[str, Any]:
    """Publish a stream `n` times with and without idle clients; µs a frame until the reader has them all."""
    return asyncio.run(_bench(n))


async def _bench(n: int) -> dict[str, Any]:
    crowd = f"idle_{IDLE_CLIENTS}"
    wall: dict[str, list[float]] = {"idle_0": [], crowd: []}
    cpu: dict[str, list[float]] = {"idle_0": [], crowd: []}
    async with _audience(0) as bare, _audience(IDLE_CLIENTS) as crowded:
        for _ in range(n + 1):
            for case, (server, reader) in (("idle_0", bare), (crowd, crowded)):
                wall_us, cpu_us = await _round(server, reader)
                wall[case].append(wall_us)
                cpu[case].append(cpu_us)
    ours = {case: _summary(times[1:]) for case, times in wall.items()}  # the first round warms up
    ours |= {f"{case}_server_cpu": _summary(times[1:]) for case, times in cpu.items()}
    return {
        "bench": "fanout",
        "unit": "us",
        "idle_clients": IDLE_CLIENTS,
        "frames": FRAMES,
        "frame_bytes": FRAME_BYTES,
        "ours": ours,
        "peers": {},
        "ratios": {},
        "throughput_with_idle": round(ours["idle_0"]["p50"] / ours[crowd]["p50"], 3),
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }


@asynccontextmanager
async def _audience(idle: int) -> AsyncIterator[tuple[FrameServer, Process]]:
    """A server with a reader and `idle` clients that want nothing."""
    async with FrameServer() as server, _process(server, idle), _process(server, None) as reader:
        yield server, reader


@asynccontextmanager
async def _process(server: FrameServer, idle: int | None) -> AsyncIterator[Process]:
    """A process with `idle` clients of the server, or with the one reader; all are connected."""
    expected = server.stats()["clients"] + (1 if idle is None else idle)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.fanout", server.url, "reader" if idle is None else str(idle)),
        cwd=Path(__file__).parents[1],
        stdout=PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            while server.stats()["clients"] < expected:
                await asyncio.sleep(0.01)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _round(server: FrameServer, reader: Process) -> tuple[float, float]:
    """µs per frame until the reader has said that it has all of them, and µs of our own CPU."""
    assert reader.stdout is not None
    first = (server.window.last_seq or 0) + 1
    frame = encode_identity(seq=first, did=DID, time="", handle="a" * FRAME_BYTES)
    start_ns, start_cpu_ns = perf_counter_ns(), process_time_ns()
    for seq in range(first, first + FRAMES):
        server.append(Entry(seq, frame, DID, ("app.bsky.feed.like",)))
        if seq % BURST_FRAMES == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await reader.stdout.readline()
    wall_ns, cpu_ns = perf_counter_ns() - start_ns, process_time_ns() - start_cpu_ns
    return wall_ns / 1000 / FRAMES, cpu_ns / 1000 / FRAMES


async def _clients(url: str, role: str) -> None:
    """The other processes. The reader writes a line for every FRAMES frames that it got."""
    async with contextlib.AsyncExitStack() as stack:

        async def join(query: str) -> ClientConnection:
            address = f"{url}{SUBSCRIBE_PATH}{query}"
            return await stack.enter_async_context(connect(address, max_size=None, open_timeout=60))

        if role != "reader":
            for start in range(0, int(role), CONNECT_AT_ONCE):
                numbers = range(start, min(int(role), start + CONNECT_AT_ONCE))
                await asyncio.gather(*(join(_filter(number)) for number in numbers))
            await asyncio.Event().wait()
        reader = await join("")
        while True:
            for _ in range(FRAMES):
                await reader.recv(decode=False)
            sys.stdout.write("all\n")
            sys.stdout.flush()


def _filter(number: int) -> str:
    if number % 2:
        return f"?wantedDids=did:plc:{number:024}"
    return f"?wantedCollections=dev.example.c{number}&wantedCollections=org.example.p{number}.*"


def _summary(times: list[float]) -> dict[str, Any]:
    return {
        "p50": round(statistics.median(times), 1),
        "p99": round(sorted(times)[len(times) * 99 // 100], 1),
        "per_second": round(1e6 / statistics.median(times)),
        "n": len(times),
    }


if __name__ == "__main__":
    if len(sys.argv) > 2:
        with contextlib.suppress(KeyboardInterrupt, ConnectionError):
            asyncio.run(_clients(sys.argv[1], sys.argv[2]))
    else:
        answer = bench_fanout(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
