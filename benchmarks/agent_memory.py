"""What an idle agent actor costs: memory of its own (USS) and processor time, against a bare Ray actor.

python -m benchmarks.agent_memory
"""

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from actors.agent import AgentActor, AgentConfig
from actors.loop import LoopActor
from actors.resources import shipped
from actors.settings import load_settings
from actors.system import System, running_system
from firehose import XrpcClient

IDLE_S: Final = 10.0


class BareActor(LoopActor):
    """An actor of ours that does nothing."""

    async def main(self) -> None:
        """Wait for ever."""
        self.set_ready()
        await asyncio.Event().wait()


def memory_mib(pid: int) -> float:
    """Unique set size in MiB: what ending the process gives back."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def cpu_s(pid: int) -> float:
    """Processor seconds used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(system: System, name: str, actor_class: type[LoopActor], *args: Any) -> dict[str, float]:
    """Start an actor, let it idle, and tell what it costs."""
    actor = await system.stage.start(name, actor_class, *args, node=system.nodes[0])
    pid = (await actor.call("ping"))["pid"]
    await asyncio.sleep(1.0)
    before, started = cpu_s(pid), time.monotonic()
    await asyncio.sleep(IDLE_S)
    percent = (cpu_s(pid) - before) / (time.monotonic() - started) * 100
    return {"uss_mib": round(memory_mib(pid), 1), "cpu_percent": round(percent, 2)}


async def bench_agent_memory() -> dict[str, dict[str, float]]:
    """USS in MiB and per cent of a core while idle, of a bare actor and of an agent."""
    with tempfile.TemporaryDirectory(prefix="skylease-bench-") as folder:
        settings = load_settings(flags={"data_dir": folder})
        async with running_system(settings, actors=2) as system:
            async with XrpcClient(system.endpoints.pds_url) as xrpc:
                account = await system.accounts.account(xrpc, "alice.test")
            config = AgentConfig(
                account=account,
                endpoints=system.endpoints,
                supervisor_did=system.supervisor_did,
                authorities=(system.supervisor_did,),
                environment_types=("catan",),
                node_id=system.nodes[0].node_id,
                start_cursor=0,
                seed=0,
                turn_timeout_s=60.0,
                lexicons=shipped("config/lexicons"),
            )
            return {
                "bare_actor": await measure(system, "bare", BareActor),
                "agent": await measure(system, f"agent:{account.did}", AgentActor, config),
            }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(bench_agent_memory()), indent=2))
