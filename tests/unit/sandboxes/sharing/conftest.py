"""A Redis of our own on a unix socket; where holders meet, and where states are stored, in every variant."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from leases.guard import LedgerLatch
from sandboxes.sharing import Latch, MemoryLatch, SqliteStates, StateStore
from sandboxes.sharing.redis_states import RedisLatch, RedisStates


class Server:
    """A redis-server; what it has stored survives its `kill`, as `appendonly yes` promises."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.url = directory, f"unix://{directory}/redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        where = [
            "--port",
            "0",
            "--unixsocket",
            str(self.directory / "redis.sock"),
            "--dir",
            str(self.directory),
        ]
        kept = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(["redis-server", *where, *kept], stdout=log, stderr=log)
        client, deadline = redis.Redis.from_url(self.url), time.monotonic() + 10
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(10)
            self._process = None
        (self.directory / "redis.sock").unlink(missing_ok=True)

    def hang(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server (apt-get install redis-server)")
    server = Server(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """One that a test may end."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server (apt-get install redis-server)")
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "ledger", "redis"])
def make_latch(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Latch]:
    """A function that gives another object for the same latch."""
    if request.param == "memory":
        return lambda: MemoryLatch(str(tmp_path))
    if request.param == "ledger":
        return lambda: LedgerLatch(tmp_path / "ledger.db")
    server: Server = request.getfixturevalue("redis_server")
    return lambda: RedisLatch(server.url, prefix=f"{tmp_path}:")


@pytest.fixture(params=["sqlite", "redis"])
def make_states(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StateStore]:
    """A function that gives another object for the same store."""
    if request.param == "sqlite":
        return lambda: SqliteStates(tmp_path / "states.db")
    server: Server = request.getfixturevalue("redis_server")
    return lambda: RedisStates(server.url, prefix=f"{tmp_path}:")


@pytest.fixture
def states(make_states: Callable[[], StateStore]) -> Iterator[StateStore]:
    store = make_states()
    yield store
    store.close()
