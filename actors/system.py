"""Bringing the system up: network, tap, supervisor and a host per node, on the cluster at hand."""

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from actors.accounts import AccountBook
from actors.budgets import AtLimit
from actors.cluster import Cluster, Node, attach, find_address
from actors.egress import way_out
from actors.errors import Refused
from actors.faces import Endpoints, Report
from actors.host import HostActor, HostConfig, settle_tier
from actors.network import NetworkActor, NetworkConfig
from actors.remote import RemoteActor, host_name
from actors.resources import shipped
from actors.settings import Settings, given_workspaces
from actors.sharing import check_distributed
from actors.stage import Stage
from actors.supervisor import SupervisorActor, SupervisorConfig
from actors.tap import TapActor, TapConfig
from firehose import XrpcClient
from firehose.kept_window import SEGMENT_BYTES
from firehose.segments import TraceLimits
from sandboxes import Limits
from sandboxes.pool.policy import PoolPolicy

CORE_ACTORS: Final = 4  # network, tap, supervisor, host
MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The running system. `owned`: this process started it, and ends it."""

    settings: Settings
    cluster: Cluster
    stage: Stage
    nodes: list[Node]
    endpoints: Endpoints
    supervisor_did: str
    owned: bool

    @property
    def supervisor(self) -> RemoteActor:
        """The supervisor actor."""
        return RemoteActor("supervisor")

    @property
    def tap(self) -> RemoteActor:
        """The tap actor."""
        return RemoteActor("tap")

    def host(self, node: Node) -> RemoteActor:
        """The host actor of a node."""
        return RemoteActor(host_name(node.node_id))

    @property
    def data_path(self) -> Path:
        """Where the ledger, the network and the tap's window are (on the node they run on)."""
        return self.settings.data_path

    @property
    def accounts(self) -> AccountBook:
        """The identities that are ours."""
        return AccountBook(self.data_path / "accounts.json")

    async def sandboxes_left(self) -> int:
        """Sandboxes on all nodes, live or dead, as the hosts see them."""
        return sum([len(await self.host(node).call("list")) for node in self.nodes])


@asynccontextmanager
async def running_system(settings: Settings, *, actors: int) -> AsyncIterator[System]:
    """The system that is up on the cluster, or one that lives as long as this block.

    Args:
        settings: see config/skylease.toml.
        actors: how many more actors the caller is going to start.
    """
    check_distributed(settings)
    async with AsyncExitStack() as stack:
        if find_address(settings) is None:  # said before Ray is started for nothing
            stack.enter_context(_data_lock(settings.data_path))
        cluster = await stack.enter_async_context(
            attach(settings, slots=settings.sandbox.slots, actors=actors + CORE_ACTORS)
        )
        stage = Stage(cluster, settings.ray.start_timeout_s)
        if not cluster.embedded:
            if is_up():
                yield await found_system(settings, cluster, stage)
                return
            stack.enter_context(_data_lock(settings.data_path))
        try:
            yield await start_core(settings, cluster, stage)
        finally:
            await stage.stop_all()


def is_up() -> bool:
    """Whether a supervisor lives on the cluster we are attached to."""
    import ray

    try:
        ray.get_actor("supervisor")
    except ValueError:
        return False
    return True


async def found_system(settings: Settings, cluster: Cluster, stage: Stage) -> System:
    described: Report = await RemoteActor("supervisor").call("describe")
    return System(
        settings=settings.model_copy(update={"data_dir": described["data_dir"]}),
        cluster=cluster,
        stage=stage,
        nodes=[node for node in cluster.nodes() if node.node_id in described["nodes"]],
        endpoints=described["endpoints"],
        supervisor_did=described["did"],
        owned=False,
    )


async def start_core(settings: Settings, cluster: Cluster, stage: Stage) -> System:
    """Start network, tap, supervisor and a host per node."""
    everywhere, data = cluster.nodes(), settings.data_path
    data.mkdir(parents=True, exist_ok=True)
    tier, passed_over = await settle_tier(settings.sandbox.tier, data / "probe", shipped("images"))
    sandbox = settings.sandbox.model_copy(update={"tier": tier})
    settings = settings.model_copy(update={"sandbox": sandbox})
    here, lexicons = everywhere[0], shipped("config/lexicons")
    nodes = [node for node in everywhere if node.offers] or everywhere
    # On one node everything stays on the loopback; other nodes must be able to reach the head.
    listen_host = settings.network.host if len(everywhere) == 1 else here.host_ip
    pds_url, plc_url = settings.network.pds_url, settings.network.plc_url
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(
                stage.start(
                    host_name(node.node_id), HostActor, *_host(settings, node, passed_over), node=node
                )
            )
        if not pds_url:
            port = settings.network.port or free_port(listen_host)
            network = NetworkConfig(path=data / "network.db", host=listen_host, port=port, lexicons=lexicons)
            tasks.create_task(stage.start("network", NetworkActor, network, node=here))
            pds_url = plc_url = f"http://{listen_host}:{port}"
    tap_port = settings.tap.port or free_port(listen_host)
    tap = TapConfig(
        upstream_urls=settings.network.relay_urls or (pds_url,),
        upstream_name=None if settings.network.pds_url else "embedded",  # its port changes, its seqs do not
        plc_url=plc_url,
        state_dir=data / "tap",
        host=listen_host,
        port=tap_port,
        from_start=not settings.network.pds_url,
        record=Path(settings.tap.record).absolute() if settings.tap.record else None,
        window_limits=_trace_limits(settings.tap.window_mib, settings.tap.window_hours, SEGMENT_BYTES),
        record_limits=_trace_limits(settings.tap.record_mib, settings.tap.record_hours),
        verify_processes=settings.tap.verify_processes,
    )
    endpoints = Endpoints(pds_url=pds_url, tap_url=f"ws://{listen_host}:{tap_port}")
    async with asyncio.TaskGroup() as tasks, XrpcClient(pds_url) as xrpc:
        book = AccountBook(data / "accounts.json")
        account_task = tasks.create_task(book.account(xrpc, f"supervisor.{settings.network.handle_domain}"))
        await stage.start("tap", TapActor, tap, node=here)
        account = await account_task
    lease, budget = settings.lease, settings.budget
    supervisor = SupervisorConfig(
        account=account,
        endpoints=endpoints,
        ledger=data / "ledger.db",
        nodes=tuple(node.node_id for node in nodes),
        tier=settings.sandbox.tier,
        ttl_ms=lease.ttl_s * 1000,
        max_ttl_ms=lease.max_ttl_s * 1000 or None,
        sleep_after_ms=lease.sleep_after_s * 1000,
        budget_hours=budget.monthly_hours or None,
        usd_per_hour=budget.usd_per_hour,
        at_limit=AtLimit(budget.at_limit),
        unleased_ms=settings.sandbox.unleased_s * 1000,
        start_cursor=int((await RemoteActor("tap").call("stats")).get("seq") or 0),
        lexicons=lexicons,
        jetstream_url=settings.network.jetstream_url or None,
        believes_unverified=settings.network.unverified == "believe",
    )
    await stage.start("supervisor", SupervisorActor, supervisor, node=here)
    return System(
        settings=settings,
        cluster=cluster,
        stage=stage,
        nodes=nodes,
        endpoints=endpoints,
        supervisor_did=account.did,
        owned=True,
    )


def _trace_limits(mib: int, hours: float, segment_bytes: int | None = None) -> TraceLimits:
    """What is kept of a trace on disk; 0 is no limit."""
    limits = TraceLimits(keep_bytes=mib * MIB or None, keep_s=hours * 3600 or None)
    return limits if segment_bytes is None else replace(limits, segment_bytes=segment_bytes)


def _host(settings: Settings, node: Node, passed_over: tuple[str, ...]) -> tuple[HostConfig, str]:
    sandbox = settings.sandbox
    config = HostConfig(
        node_id=node.node_id,
        root=settings.data_path / "nodes" / node.host_ip,
        images=shipped("images"),
        limits=Limits(
            memory_bytes=sandbox.memory_mib * MIB,
            pids=sandbox.pids,
            cpu=sandbox.cpu,
            disk_bytes=sandbox.disk_mib * MIB,
            idle_deadline_s=sandbox.idle_deadline_s,
        ),
        slots=sandbox.slots,
        way_out=way_out(settings),
        nap_after_s=sandbox.nap_after_s,
        snapshots=settings.snapshots.policy,
        workspaces=given_workspaces(settings),
        allow_mounts=sandbox.allowed_mounts,
        pool=PoolPolicy(
            wait_s=sandbox.wait_s,
            warm_slots=sandbox.warm_slots,
            max_asleep=sandbox.max_asleep,
            doze_after_s=sandbox.doze_after_s,
            sleep_after_s=sandbox.sleep_after_s,
            memory_high=sandbox.memory_high_percent / 100,
        ),
        passed_over=passed_over,
    )
    return config, sandbox.tier


def free_port(host: str) -> int:
    """A port that is free on this address now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _data_lock(path: Path) -> Iterator[None]:
    """One system per data directory; the lock is the kernel's, so a killed holder frees it."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / "in-use.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise Refused(
                f"{path} is in use by process {holder}: wait for it, or choose another --data-dir"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
