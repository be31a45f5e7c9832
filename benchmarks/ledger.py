"""What a lease costs: acquire, renew and expire in the ledger, against bare sqlite3 with the same durability.

The peer writes one row with one statement and one commit, no history, no usage, no checks: the floor of any
ledger on SQLite. A ratio of 0.5 says that ours takes twice the floor. The two take turns, call by call, so
that whatever else the disk has to do weighs on both.
"""

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, Final

from leases import Ledger

GM: Final = "did:plc:gamemaster"
Call = Callable[[int], object]


def bench_ledger(n: int) -> dict[str, Any]:
    """Time `n` leases through their lives; the object of `skylease bench ledger --json`, in microseconds."""
    ours: dict[str, dict[str, float]] = {}
    peer: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="skylease-bench-") as folder, Ledger(Path(folder) / "ledger.db") as ledger:
        bare = _bare_file(Path(folder) / "bare.db")
        for case, (our_call, their_call) in _cases(ledger, bare).items():
            ours[case], peer[case] = _time_in_turns(n, our_call, their_call)
        bare.close()
        ledger.check_invariants()
    return {
        "bench": "ledger",
        "unit": "us",
        "ours": ours,
        "peers": {"sqlite3": peer},
        "ratios": {"sqlite3": {case: round(peer[case]["p50"] / ours[case]["p50"], 3) for case in ours}},
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }


def _cases(ledger: Ledger, bare: sqlite3.Connection) -> dict[str, tuple[Call, Call]]:
    insert = "INSERT INTO leases VALUES (?, ?, 'catan-7', 1, 'active')"
    renew = "UPDATE leases SET expires_at = ? WHERE id = ?"
    expire = "UPDATE leases SET status = 'expired' WHERE id = ?"

    def agent(i: int) -> str:
        return f"did:plc:agent{i}"

    def lease(i: int) -> str:
        return f"did:plc:agent{i}::catan-7"

    return {
        "acquire": (
            lambda i: ledger.acquire(agent(i), "catan-7", "catan", authority_did=GM),
            lambda i: bare.execute(insert, (lease(i), agent(i))),
        ),
        "renew": (
            lambda i: ledger.renew(lease(i), 1, last_turn=i, cursor=("agent", i)),
            lambda i: bare.execute(renew, (i, lease(i))),
        ),
        "expire": (lambda i: ledger.expire(lease(i), "ttl"), lambda i: bare.execute(expire, (lease(i),))),
    }


def _bare_file(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.execute("CREATE TABLE leases (id TEXT PRIMARY KEY, agent_did, environment_id, expires_at, status)")
    return file


def _time_in_turns(n: int, *calls: Call) -> list[dict[str, float]]:
    took: list[list[int]] = [[] for _ in calls]
    for number in range(n):
        for times, call in zip(took, calls, strict=True):
            start = perf_counter_ns()
            call(number)
            times.append(perf_counter_ns() - start)
    return [
        {"p50": times[n // 2] / 1000, "p99": times[n * 99 // 100] / 1000, "n": n}
        for times in map(sorted, took)
    ]


if __name__ == "__main__":
    answer = bench_ledger(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
