"""What a lease costs: each call of the ledger with a durable commit, in ledgers of up to a million leases.

In a new ledger it is set against bare sqlite3 with the same durability. That peer writes one row with one
statement and one commit, no history, no usage, no checks: the floor of any ledger on SQLite. A ratio of 0.5
says that ours takes twice the floor. All take turns, call by call, so that whatever else the disk has to do
weighs on all. `flat` says how many times a call takes in the largest ledger what it takes in the smallest.
"""

import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, Final

from leases import Ledger

GM: Final = "did:plc:gamemaster"
SIZES: Final = {"1k": 1_000, "100k": 100_000, "1m": 1_000_000}
SETTLED_AT: Final = 1_763_726_400_000  # 2025-11-21T12:00:00Z: the leases there are, a millisecond each
TTL_MS: Final = 300 * 86_400_000
IN_USE: Final = 50  # of the leases there are, one in so many is awake, and one sleeps; the others are over
Call = Callable[[int], object]


def bench_ledger(n: int, sizes: dict[str, int] | None = None) -> dict[str, Any]:
    """Time `n` of each call in ledgers of each size; the object of `skylease bench ledger --json`."""
    sizes = SIZES if sizes is None else sizes
    with TemporaryDirectory(prefix="skylease-bench-") as folder:
        root = Path(folder)
        for name, size in sizes.items():
            fill(root / f"{name}.db", size)
        ledgers = {name: Ledger(root / f"{name}.db") for name in ("new", *sizes)}
        bare = _bare_file(root / "bare.db")
        calls: dict[str, dict[str, Call]] = {name: _calls(ledger) for name, ledger in ledgers.items()}
        calls["bare"] = _bare_calls(bare)
        took = {case: _time_in_turns(n, _of(case, calls)) for case in calls["new"]}
        ledgers["new"].check_invariants()
        bare.close()
        for ledger in ledgers.values():
            ledger.close()
    return _result(took, list(sizes))


def _result(took: dict[str, dict[str, dict[str, float]]], sizes: list[str]) -> dict[str, Any]:
    ours = {case: times["new"] for case, times in took.items()}
    ours |= {f"{case}@{size}": times[size] for case, times in took.items() for size in sizes}
    peer = {case: times["bare"] for case, times in took.items() if "bare" in times}
    return {
        "bench": "ledger",
        "unit": "us",
        "ours": ours,
        "peers": {"sqlite3": peer},
        "ratios": {"sqlite3": {case: round(peer[case]["p50"] / ours[case]["p50"], 3) for case in peer}},
        "per_second": {case: round(1e6 / row["p50"]) for case, row in ours.items()},
        "flat": {
            case: round(times[sizes[-1]]["p50"] / times[sizes[0]]["p50"], 2)
            for case, times in took.items()
            if len(sizes) > 1
        },
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }


def _of(case: str, calls: dict[str, dict[str, Call]]) -> dict[str, Call]:
    return {name: table[case] for name, table in calls.items() if case in table}


def _agent(i: int) -> str:
    return f"did:plc:agent{i}"


def _lease(i: int) -> str:
    return f"did:plc:agent{i}::catan-7"


def _calls(ledger: Ledger) -> dict[str, Call]:
    return {
        "acquire": lambda i: ledger.acquire(_agent(i), "catan-7", "catan", authority_did=GM),
        "renew": lambda i: ledger.renew(_lease(i), 1, last_turn=i, cursor=("agent", i)),
        "sleep": lambda i: ledger.sleep(_lease(i), 1),
        "wake": lambda i: ledger.wake(_lease(i), 1),
        "sweep": lambda i: (ledger.expired(), ledger.idle(), ledger.sweep_budgets()),
        "page": lambda i: ledger.list(limit=50, after=_lease(0)),
        "expire": lambda i: ledger.expire(_lease(i), "ttl"),
    }


def _bare_calls(bare: sqlite3.Connection) -> dict[str, Call]:
    insert = "INSERT INTO leases VALUES (?, ?, 'catan-7', 1, 'active')"
    renew = "UPDATE leases SET expires_at = ? WHERE id = ?"
    expire = "UPDATE leases SET status = 'expired' WHERE id = ?"
    return {
        "acquire": lambda i: bare.execute(insert, (_lease(i), _agent(i))),
        "renew": lambda i: bare.execute(renew, (i, _lease(i))),
        "expire": lambda i: bare.execute(expire, (_lease(i),)),
    }


def _bare_file(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.execute("CREATE TABLE leases (id TEXT PRIMARY KEY, agent_did, environment_id, expires_at, status)")
    return file


def _time_in_turns(n: int, calls: dict[str, Call]) -> dict[str, dict[str, float]]:
    took: dict[str, list[int]] = {name: [] for name in calls}
    for number in range(n):
        for name, call in calls.items():
            start = perf_counter_ns()
            call(number)
            took[name].append(perf_counter_ns() - start)
    return {
        name: {"p50": times[n // 2] / 1000, "p99": times[n * 99 // 100] / 1000, "n": n}
        for name, times in ((name, sorted(times)) for name, times in took.items())
    }


def fill(path: Path, size: int) -> None:
    """Make a ledger with so many leases of a system that has run for long, each with its history.

    Four agents in each environment, every agent with a budget. A bulk load of the rows that the calls would
    have written (a test holds it to the ledger's invariants): a million durable commits take an hour.
    """
    with Ledger(path) as ledger:
        ledger.set_budget(None, 100_000)
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA synchronous = OFF")
    file.execute("BEGIN")
    file.execute("CREATE TEMP TABLE n AS WITH RECURSIVE i(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i"
                 f" WHERE n + 1 < {int(size)}) SELECT n, {SETTLED_AT} + n AS at, 'did:plc:old' || n AS did,"
                 f" 'did:plc:old' || n || '::env-' || (n / 4) AS id, CASE n % {IN_USE} WHEN 0 THEN 'active'"
                 " WHEN 1 THEN 'sleeping' ELSE 'destroyed' END AS status FROM i")  # fmt: skip
    for statement in _FILL:
        file.execute(statement)
    file.execute("COMMIT")
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.close()


_EVENT: Final = "INSERT INTO lease_events (lease_id, seq, epoch, at, cause, from_status, to_status)"
_NOW: Final = int(time.time() * 1000)
_FILL: Final = (
    f"""
    INSERT INTO leases SELECT id, did, 'env-' || (n / 4), 'catan', '{GM}', 'process', NULL, at, {_NOW},
        {_NOW} + {TTL_MS} + n, NULL, {TTL_MS}, {TTL_MS}, '["game.finished"]', status, 1, 'box-' || n,
        iif(status = 'active', 'node', NULL), n % 100, iif(status = 'destroyed', at + 7, NULL),
        iif(status = 'destroyed', 'ttl', NULL) FROM n
    """,
    f"{_EVENT} SELECT id, 1, 1, at, 'acquired', NULL, 'active' FROM n",
    f"{_EVENT} SELECT id, 2, 1, at + 3, 'placed', 'active', 'active' FROM n WHERE status = 'active'",
    f"{_EVENT} SELECT id, 2, 1, at + 7, 'slept', 'active', 'sleeping' FROM n WHERE status = 'sleeping'",
    f"{_EVENT} SELECT id, 2, 1, at + 7, 'ttl', 'active', 'expired' FROM n WHERE status = 'destroyed'",
    f"{_EVENT} SELECT id, 3, 1, at + 9, 'never_placed', 'expired', 'destroyed' FROM n"
    " WHERE status = 'destroyed'",
    "INSERT INTO outbox SELECT id, 'at://told', at FROM lease_events WHERE cause IN ('acquired', 'ttl')",
    "INSERT INTO usage SELECT id, 1, did, 'process', at, iif(status = 'active', NULL, at + 7) FROM n",
    """
    INSERT INTO sandboxes SELECT 'box-' || n, 1, id, 'node', 'process', NULL, 'running', at + 3, at + 3
    FROM n WHERE status = 'active'
    """,
    """
    INSERT INTO usage_months SELECT CAST(strftime('%s', at / 1000, 'unixepoch', 'start of month') AS INTEGER)
        * 1000, did, 'process', 7 FROM n WHERE status <> 'active'
    """,
    "INSERT INTO budget_checks SELECT did, 8000000000000 FROM n WHERE status = 'active'",
)


if __name__ == "__main__":
    answer = bench_ledger(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
