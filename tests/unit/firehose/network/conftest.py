"""A network on a free port, and two accounts on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firehose.network import Network
from firehose.network import passwords as _passwords
from firehose.xrpc import XrpcClient

START_MS = 1_790_000_000_000


class Clock:
    """Epoch milliseconds that a test moves; every look takes a millisecond."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing is slow on purpose, and not what these tests are about."""
    monkeypatch.setattr(_passwords, "COST_N", 2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def network(tmp_path: Path, clock: Clock) -> AsyncIterator[Network]:
    async with Network(tmp_path / "network", clock=clock) as network:
        yield network


@pytest.fixture
async def alice(network: Network) -> AsyncIterator[XrpcClient]:
    async with XrpcClient(network.url) as client:
        await client.create_account("alice.test", "alice's password")
        yield client


@pytest.fixture
async def bob(network: Network) -> AsyncIterator[XrpcClient]:
    async with XrpcClient(network.url) as client:
        await client.create_account("bob.test", "bob's password")
        yield client
