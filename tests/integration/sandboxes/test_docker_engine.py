"""An engine of our own, to be killed, restarted and reached over the network; the machine's is left alone."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import sandboxes
from sandboxes import (
    ImageSpec,
    InvalidSpec,
    SandboxFailed,
    SandboxSpec,
    SandboxState,
    TierUnavailable,
    connect_sandbox,
)
from sandboxes.tiers.docker_engine import Engine, EngineDown
from sandboxes.tiers.docker_tier import DockerTier

BASE = "skylease/debian-python:bookworm"
REFERENCE = "skylease-test/base:dev"
START_DEADLINE_S = 60.0
PROJECT = Path(sandboxes.__file__).parent.parent


@dataclass
class OwnEngine:
    """A dockerd with a data root, sockets, bridge and containerd of its own."""

    home: Path
    port: int
    child: "subprocess.Popen[bytes] | None" = None
    bridge: str = field(default_factory=lambda: f"sklt{os.getpid()}"[:15])

    @property
    def host(self) -> str:
        return f"unix://{self.home}/sock"

    def start(self) -> None:
        if subprocess.run(["ip", "link", "show", self.bridge], capture_output=True, check=False).returncode:
            subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], check=True)
        options = f"""--data-root {self.home}/data --exec-root {self.home}/exec --pidfile {self.home}/pid
            --host {self.host} --host tcp://127.0.0.1:{self.port} --tls=false --bridge {self.bridge}
            --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false --userland-proxy=false
            --log-level error"""
        with open(self.home / "log", "ab") as log:
            self.child = subprocess.Popen(["dockerd", *options.split()], stdout=log, stderr=log)
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                Engine(self.host).version()
                break
            except EngineDown:
                assert time.monotonic() < deadline, (self.home / "log").read_text()[-2000:]
                if self.child.poll() is not None:  # its containerd gets 15 s from it, whatever the load
                    self.start()
                    break
                time.sleep(0.05)

    def stop(self, *, hard: bool = False) -> None:
        """End it: in order, and its containers with it, or hard, and they go on."""
        if self.child is not None:
            (self.child.kill if hard else self.child.terminate)()
            self.child.wait(30)
            self.child = None
        if hard:  # its containerd may hold its database for a while, and the next one believes in its pid
            with contextlib.suppress(OSError, ValueError):
                number = self.home / "exec/containerd/containerd.pid"
                pid = int(number.read_text())
                number.unlink()
                os.kill(pid, signal.SIGKILL)

    def clear(self) -> None:
        """End what is left of it and its containers, should a test have failed half-way."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{self.home}/exec/" in Path(f"/proc/{pid}/cmdline").read_text():
                    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                        os.kill(int(child), signal.SIGKILL)
                    os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in reversed(mounted):  # a killed engine leaves its data directory bound to itself
            if path.startswith(str(self.home)):
                subprocess.run(["umount", "-l", path], check=False)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine of our own needs root and dockerd")
    if Engine().image(BASE) is None:
        pytest.skip(f"the image {BASE} is not built (images/base/offline.sh)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = OwnEngine(tmp_path_factory.mktemp("dockerd"), port)
    try:
        engine.start()
        save = subprocess.Popen(["docker", "save", BASE], stdout=subprocess.PIPE)
        docker = ["docker", "-H", engine.host]
        subprocess.run(
            [*docker, "load", "-q"], stdin=save.stdout, check=True, timeout=60, capture_output=True
        )
        save.wait(10)
        turn = "RUN mkdir /image && echo 'print(\"{}\")' > /image/take_turn.py\n"
        subprocess.run(
            [*docker, "build", "-q", "--network=none", "-t", REFERENCE, "-"],
            input=f"FROM {BASE}\n{turn}".encode(),
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            check=True,
            timeout=60,
            capture_output=True,
        )
        yield engine
    finally:
        engine.stop()
        engine.clear()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")
    (root / "take_turn.py").write_text("print('{}')\n")
    return ImageSpec(name="test", root=root, reference=REFERENCE)


async def test_an_engine_that_dies_and_comes_back(own: OwnEngine, image: ImageSpec, tmp_path: Path) -> None:
    tier = DockerTier(tmp_path / "state", host=own.host)
    assert (await tier.probe()).ok
    kept = await tier.create(SandboxSpec(name="kept", epoch=1, image=image))
    await tier.create(SandboxSpec(name="gone", epoch=1, image=image))
    await kept.write_file("file", b"1")
    await asyncio.to_thread(own.stop, hard=True)
    assert (await kept.turn({}, turn=1)).action == {}  # the engine is not on the way of a turn
    with pytest.raises(TierUnavailable, match="no Docker Engine answers"):
        await tier.create(SandboxSpec(name="new", epoch=1, image=image))
    with pytest.raises(SandboxFailed, match="cannot be removed: no Docker Engine answers"):
        await tier.destroy("gone")
    assert [info.name for info in await tier.list()] == ["gone", "kept"]
    assert await tier.sweep() == ()
    await asyncio.to_thread(own.start)  # and by that ends what its predecessor had started
    async with asyncio.timeout(60):
        while (await tier.inspect("kept")).state is not SandboxState.FAILED:
            await asyncio.sleep(0.05)
    again = await tier.connect("kept")
    assert await again.read_file("file") == b"1"
    assert set(await tier.sweep()) == {"gone"}
    await tier.destroy("kept")
    for name in ("kept", "gone", "new"):
        assert (await tier.inspect(name)).leftovers == ()
    assert Engine(own.host).labels(f"skylease.root={tmp_path / 'state'}") == {}


async def test_an_engine_over_the_network(own: OwnEngine, image: ImageSpec, tmp_path: Path) -> None:
    tier = DockerTier(tmp_path / "state", host=f"tcp://127.0.0.1:{own.port}")
    probe = await tier.probe()
    assert "over the network" in next(lack.why for lack in probe.lacks if lack.what == "shared directories")
    with pytest.raises(InvalidSpec, match="shares no directory"):
        await tier.create(SandboxSpec(name="remote", epoch=1, image=image))
    inside = ImageSpec(name="test", root=image.root, reference=REFERENCE, bind_root=False)
    sandbox = await tier.create(SandboxSpec(name="remote", epoch=1, image=inside))
    await sandbox.write_file("file", b"x" * 5_000_000)
    assert (await sandbox.exec("wc -c < file")).text == "5000000\n"
    assert (await connect_sandbox(sandbox.directory, epoch=1).turn({}, turn=1)).action == {}
    await tier.freeze("remote")
    assert (await sandbox.exec("echo thawed")).text == "thawed\n"
    await tier.destroy("remote")
    assert (await tier.inspect("remote")).leftovers == ()


def test_a_socket_that_we_may_not_use_is_one_line(own: OwnEngine) -> None:
    code = (
        "import asyncio, os, sys\nfrom pathlib import Path\n"
        "from sandboxes.tiers.docker_tier import DockerTier\n"
        "def probe(host): return asyncio.run(DockerTier(Path('/x'), host=host).probe()).lacks[0].why\n"
        "probe('unix:///nonexistent')\n"  # imports what another user could not read
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(probe(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, own.host],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr[-500:]) == ("permission denied on the Docker socket\n", "")
