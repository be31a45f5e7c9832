"""The ledgers that `skylease bench ledger` measures are ledgers: what they are filled with holds together."""

from pathlib import Path

from benchmarks.ledger import IN_USE, bench_ledger, fill
from leases import Ledger


def test_a_filled_ledger_keeps_every_invariant(path: Path) -> None:
    fill(path, 3 * IN_USE)
    with Ledger(path) as ledger:
        ledger.check_invariants()
        assert ledger.counts() == {"active": 3, "sleeping": 3, "expired": 0, "destroyed": 3 * (IN_USE - 2)}
        assert ledger.expired() == ledger.idle() == []


def test_the_benchmark_measures_every_call_at_every_size() -> None:
    result = bench_ledger(3, {"few": 50, "more": 100})
    assert {"acquire", "acquire@few", "sweep@more", "expire@more"} <= set(result["ours"])
    assert set(result["ratios"]["sqlite3"]) == {"acquire", "renew", "expire"}
    assert set(result["flat"]) == {"acquire", "renew", "sleep", "wake", "sweep", "page", "expire"}
