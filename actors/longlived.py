"""The system that outlives the command that starts it: up, down, status."""

import asyncio
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from actors.cluster import OwnCluster, attach, find_address, own_cluster, own_cluster_file
from actors.errors import ClusterUnavailable, NotThere
from actors.faces import Report
from actors.remote import RemoteActor, host_name
from actors.settings import Settings
from actors.sharing import check_distributed
from actors.sharing import report as sharing_report
from actors.stage import Stage
from actors.system import found_system, free_port, is_up, start_core

LOCAL_IP: Final = (
    "127.0.0.2"  # Ray rewrites 127.0.0.1 to the machine's outer address, which nothing listens on
)
DRAIN_TIMEOUT_S: Final = 60.0
RAY_STOP_TIMEOUT_S: Final = 20.0


async def up(settings: Settings) -> Report:
    """Start the system, on the cluster at hand or on a local one; one that is up already is left as it is."""
    check_distributed(settings)
    if find_address(settings) is None:
        await _start_ray(settings)
    async with attach(settings, slots=settings.sandbox.slots, actors=0) as cluster:
        stage = Stage(cluster, settings.ray.start_timeout_s)
        if is_up():
            system = await found_system(settings, cluster, stage)
        else:
            system = await start_core(settings, cluster, stage)
        return {
            "cluster": cluster.address,
            "nodes": len(system.nodes),
            "pds_url": system.endpoints.pds_url,
            "tap_url": system.endpoints.tap_url,
            "supervisor": system.supervisor_did,
            "data_dir": str(system.data_path),
        }


async def down(settings: Settings) -> Report:
    """End every lease and stop every actor of ours; stop the cluster too if `up` started it.

    Raises:
        NotThere: nothing is up.
    """
    _require_cluster(settings)
    async with attach(settings, slots=settings.sandbox.slots, actors=0) as cluster:
        _require_up()
        import ray
        from ray.util import list_named_actors

        drained: Report = await RemoteActor("supervisor").call(
            "drain", DRAIN_TIMEOUT_S, timeout_s=DRAIN_TIMEOUT_S + 5
        )
        names = await asyncio.to_thread(list_named_actors)
        last = ["supervisor", *[name for name in names if name.startswith("host:")], "tap", "network"]
        stage = Stage(cluster, settings.ray.start_timeout_s)
        for name in [*(name for name in names if name not in last), *last]:
            await stage.stop(name)
        assert ray.is_initialized()
    await _stop_ray(settings)
    return {**drained, "stopped": len(names)}


async def status(settings: Settings) -> Report:
    """What the supervisor, the tap, the network and the hosts say.

    Raises:
        NotThere: nothing is up.
    """
    _require_cluster(settings)
    async with attach(settings, slots=settings.sandbox.slots, actors=0) as cluster:
        _require_up()
        system = await found_system(settings, cluster, Stage(cluster, settings.ray.start_timeout_s))
        return {
            "cluster": cluster.address,
            "pds_url": system.endpoints.pds_url,
            "tap_url": system.endpoints.tap_url,
            "supervisor": await system.supervisor.call("status"),
            "tap": await system.tap.call("stats"),
            "sharing": sharing_report(settings),
            "hosts": [await RemoteActor(host_name(node.node_id)).call("report") for node in system.nodes],
        }


async def ask_supervisor(
    settings: Settings, method: str, *arguments: object, timeout_s: float | None = None
) -> object:
    """What the supervisor of the running system answers to `method(*arguments)`; in seconds by when.

    Raises:
        NotThere: nothing is up.
    """
    _require_cluster(settings)
    async with attach(settings, slots=settings.sandbox.slots, actors=0):
        _require_up()
        return await RemoteActor("supervisor").call(method, *arguments, timeout_s=timeout_s)


def _require_cluster(settings: Settings) -> None:
    if find_address(settings) is None:
        raise NotThere("nothing is up: start the system with `skylease up`, or play with `skylease simulate`")


def _require_up() -> None:
    if not is_up():
        raise NotThere("a Ray cluster runs, but no skylease on it: start it with `skylease up`")


async def _start_ray(settings: Settings) -> None:
    """`ray start --head` on the loopback, with a session folder of its own so that only it is stopped."""
    port = free_port(LOCAL_IP)
    temp_dir = f"/tmp/skylease-ray-{os.getuid()}-{port}"  # short: Ray's unix sockets live under it
    ray = Path(sys.executable).with_name("ray")
    command = [
        str(ray) if ray.exists() else (shutil.which("ray") or "ray"),
        *("start", "--head", f"--node-ip-address={LOCAL_IP}", f"--port={port}", f"--temp-dir={temp_dir}"),
        *("--include-dashboard=false", "--dashboard-agent-listen-port=0", "--disable-usage-stats"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--num-cpus={max(os.cpu_count() or 1, 2)}"),
        "--resources=" + json.dumps({"sandbox": settings.sandbox.slots}),
    ]
    settings.data_path.mkdir(parents=True, exist_ok=True)
    own = OwnCluster(address=f"{LOCAL_IP}:{port}", temp_dir=temp_dir)
    own_cluster_file(settings).write_text(json.dumps(asdict(own)))  # before there is anything to stop
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(settings.ray.start_timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        await _stop_ray(settings)  # or the half of it that did start would stay
        raise ClusterUnavailable(
            f"`ray start` did not finish within {settings.ray.start_timeout_s:g} s: try again, "
            "or raise ray.start_timeout_s"
        ) from None
    if process.returncode != 0:
        await _stop_ray(settings)
        told = output.decode(errors="replace").strip().splitlines()
        raise ClusterUnavailable(f"`ray start` failed ({told[-1] if told else process.returncode})")


async def _stop_ray(settings: Settings) -> None:
    """End the cluster that `up` started, by its session folder; `ray stop` would end every one."""
    own = own_cluster(settings)
    if own is None:
        return
    marker = own.temp_dir.encode()
    for sent in (signal.SIGTERM, signal.SIGKILL):
        deadline = asyncio.get_running_loop().time() + RAY_STOP_TIMEOUT_S / 2
        for pid in _processes_of(marker):
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        while _processes_of(marker) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
    shutil.rmtree(own.temp_dir, ignore_errors=True)
    own_cluster_file(settings).unlink()


def _processes_of(marker: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if any(marker in word for word in words) and b"ray" in words[0] + b"".join(words[:3]):
                found.append(int(folder.name))
    return found
