"""A ledger on a clock that stands still until a test moves it; its invariants are checked afterwards."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from leases import Lease, Ledger

NOON = 1_763_726_400_000  # 2025-11-21T12:00:00Z


@pytest.fixture
def clock() -> list[int]:
    """The time in its only element, in epoch milliseconds."""
    return [NOON]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: kill -9 needs no disk, and a busy one makes tests slow."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="skylease-test-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "ledger.db"


@pytest.fixture
def ledger(path: Path, clock: list[int]) -> Iterator[Ledger]:
    with Ledger(path, clock=lambda: clock[0], lock_wait_s=0) as opened:
        yield opened
        opened.check_invariants()


@pytest.fixture
def join(ledger: Ledger) -> Callable[..., Lease]:
    """Acquire for a short name: join("alice", "catan-7", ttl_ms=…)."""

    def acquire(agent: str = "alice", environment_id: str = "catan-7", **terms: Any) -> Lease:
        terms = {"authority_did": "did:plc:gm", "environment_type": "catan"} | terms
        return ledger.acquire(f"did:plc:{agent}", environment_id, **terms).lease

    return acquire
