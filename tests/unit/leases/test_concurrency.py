"""Twenty at once: one creates."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

from leases import Acquired, Lease, Ledger

ALICE, GM = "did:plc:alice", "did:plc:gm"
CROWD = 20


def test_of_twenty_threads_one_creates(ledger: Ledger, clock: list[int]) -> None:
    start = Barrier(CROWD)

    def acquire(_: int) -> Acquired:
        start.wait(10)
        return ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM)

    with ThreadPoolExecutor(CROWD) as pool:
        acquired = list(pool.map(acquire, range(CROWD)))
    assert sum(one.is_new for one in acquired) == 1
    assert len({one.lease.sandbox_id for one in acquired}) == 1
    assert {one.lease.leased_at for one in acquired} == {clock[0]}
    assert len(ledger.list()) == 1


def test_threads_that_do_everything_at_once_break_nothing(ledger: Ledger, join: Callable[..., Lease]) -> None:
    lease = join("a0")

    def work(n: int) -> None:
        mine = ledger.acquire(f"did:plc:a{n % 4}", "catan-7", "catan", authority_did=GM).lease
        for turn in range(5):
            ledger.renew(mine.id, 1, last_turn=turn)
            ledger.sleep(mine.id, 1)
            ledger.wake(mine.id, 1)
            ledger.count("turns")
            ledger.get(lease.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert ledger.counters()["turns"] == 80
    assert len(ledger.list(status="active")) == 4


def acquire_alone(path: Path) -> Acquired:
    with Ledger(path, lock_wait_s=60) as ledger:
        return ledger.acquire(ALICE, "catan-7", "catan", authority_did=GM)


def test_of_twenty_processes_one_creates(path: Path) -> None:
    with ProcessPoolExecutor(CROWD, mp_context=get_context("fork")) as pool:
        acquired = list(pool.map(acquire_alone, [path] * CROWD))
    assert sum(one.is_new for one in acquired) == 1
    assert len({one.lease for one in acquired}) == 1
    with Ledger(path) as ledger:
        ledger.check_invariants()
        assert ledger.list() == [acquired[0].lease]
