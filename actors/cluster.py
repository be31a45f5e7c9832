"""Finding a Ray cluster to live on, or embedding one in this process.

Embedded: bound to the loopback, no dashboard, a small object store, actors owned by this process. On a
cluster that `ray start` made: attach to it, actors are named and detached. The traps are Ray's: an explicit
address does not pick up the auth token, a stale `ray_current_cluster` file makes `ray.init()` hang,
resources are refused when connecting.
"""

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.errors import ClusterUnavailable
from actors.settings import Settings

NAMESPACE: Final = "skylease"
OBJECT_STORE_BYTES: Final = 100 * 2**20  # nothing of ours goes through it; Ray's default is 30 % of memory
PROBE_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster; `host_ip` is how its processes are reached, `offers`: the resource "sandbox"."""

    node_id: str
    host_ip: str
    offers: bool

    @property
    def pin(self) -> dict[str, float]:
        """Resources that place an actor on this node and no other (every Ray node offers its own)."""
        return {f"node:{self.host_ip}": 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster we are on. `embedded`: it dies with this process, so its actors are not detached."""

    embedded: bool
    address: str

    @property
    def lifetime(self) -> str | None:
        """Ray's `lifetime` option for every actor of ours."""
        return None if self.embedded else "detached"

    def nodes(self) -> list[Node]:
        """The nodes that are alive, this process's own first."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        alive = [
            Node(
                node_id=node["NodeID"],
                host_ip=node["NodeManagerAddress"],
                offers="sandbox" in node["Resources"],
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return sorted(alive, key=lambda node: (node.node_id != here, node.host_ip))


def find_address(settings: Settings) -> str | None:
    """The address of a running cluster, or None when there is none at hand.

    Looks at the setting and RAY_ADDRESS, then for the cluster that `skylease up` started, then for one that
    `ray start` made on this machine.

    Raises:
        ClusterUnavailable: a cluster was named but nothing answers there.
    """
    named = settings.ray.address or os.environ.get("RAY_ADDRESS", "")
    if named and named not in ("auto", "local"):
        if not _answers(named):
            raise ClusterUnavailable(f"no Ray cluster answers at {named}: start one with `ray start --head`")
        return named
    if named != "local":
        own = own_cluster(settings)
        file = ray_folder() / "ray_current_cluster"  # written by `ray start`
        current = file.read_text().strip() if file.exists() else ""
        for address in (own.address if own else "", current):
            if address and _answers(address):  # a killed cluster leaves its file; ray.init() would hang on it
                return address
    if named == "auto":
        raise ClusterUnavailable("no Ray cluster runs on this machine: start one with `ray start --head`")
    return None


def ray_folder() -> Path:
    """Where Ray keeps its sessions unless it is told otherwise: as Ray itself finds it."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """The cluster that `skylease up` started: `temp_dir` is its session folder, by which it is stopped."""

    address: str
    temp_dir: str


def own_cluster(settings: Settings) -> OwnCluster | None:
    """The cluster that `skylease up` has started over this data directory, alive or not."""
    file = own_cluster_file(settings)
    return OwnCluster(**json.loads(file.read_text())) if file.exists() else None


def own_cluster_file(settings: Settings) -> Path:
    """Where `skylease up` notes the cluster it starts."""
    return settings.data_path / "cluster.json"


@asynccontextmanager
async def attach(settings: Settings, *, slots: int, actors: int) -> AsyncIterator[Cluster]:
    """Connect to the cluster at hand, or embed one.

    Args:
        settings: where to look.
        slots: sandboxes that an embedded cluster's node offers.
        actors: actors about to be started; an embedded cluster prestarts a worker for each.
    """
    address = find_address(settings)
    before = dict(os.environ)
    os.environ.update(_variables(address, actors) | before)
    import ray

    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {
            "address": "local",
            "include_dashboard": False,
            "num_cpus": actors,  # how many workers Ray prestarts; our actors ask for no processor
            "resources": {"sandbox": slots},
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        options["address"] = address
    try:
        async with asyncio.timeout(settings.ray.start_timeout_s):
            await asyncio.to_thread(ray.init, **options)
        _take_signal_back()
    except TimeoutError:
        raise ClusterUnavailable(
            f"Ray did not {'answer at ' + address if address else 'start'} "
            f"within {settings.ray.start_timeout_s:g} s: see {ray_folder()}/session_latest/logs"
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClusterUnavailable(f"Ray cannot be used ({reason}): see `ray status`") from error
    try:
        yield Cluster(embedded=address is None, address=address or "embedded")
    finally:
        await asyncio.to_thread(ray.shutdown)
        for name in set(os.environ) - set(before):  # or a later `ray start` would inherit them
            del os.environ[name]


def _variables(address: str | None, actors: int) -> dict[str, str]:
    """What Ray is told by its environment, before it is imported."""
    always = {"RAY_USAGE_STATS_ENABLED": "0"}
    if address is not None:
        has_token = (Path.home() / ".ray/auth_token").exists()
        return always | ({"RAY_AUTH_MODE": "token"} if has_token else {})
    return always | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # binds the loopback only
        # As many workers as there will be actors start while Ray does, instead of one after the other later.
        "RAY_worker_maximum_startup_concurrency": str(actors),
        "RAY_worker_niceness": "0",  # Ray's default is 15: agents would starve
    }


def _take_signal_back() -> None:
    """Give SIGTERM back to Python: Ray's core prints a stack trace and dies of it, uncleaned."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _answers(address: str) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
