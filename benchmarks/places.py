"""Where ours are measured: every tier that works on this host, each over an empty state directory."""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandboxes import ImageSpec, SandboxError, SandboxSpec, Tier, open_tier
from sandboxes.tiers.registry import NEVER_CHOSEN, TIERS

SCRIPT: Final = (
    "import json, sys\n"
    "state = json.load(sys.stdin)\n"
    "print(json.dumps({'move': max(state['legal']), 'turn': state['turn']}))\n"
)
STATE: Final = {"turn": 1, "legal": list(range(50)), "board": {str(n): [n, n * 2] for n in range(100)}}
ENV: Final = {"AGENT_DID": "did:plc:bench", "GAME_ID": "bench"}
PRELOAD: Final = ("json", "random", "math", "collections")
DOCKER_IMAGE: Final = os.environ.get("SKYLEASE_BENCH_IMAGE", "skylease/base:dev")
FIRST: Final = "process"  # its cases have plain names; those of the others begin with the tier's
PEERS: Final = Path(__file__).resolve().parent / "peers/measure.py"
PEERS_PYTHON: Final = Path(__file__).resolve().parents[1] / ".venv-peers/bin/python"
PEERS_DEADLINE_S: Final = 1800.0
MEASURED_PEERS: Final = ("llm_sandbox", "swe_rex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tier, and what sandboxes of it are made from."""

    tier: Tier
    image: ImageSpec

    def case(self, name: str) -> str:
        """Return what this place calls a case."""
        return name if self.tier.name == FIRST else f"{self.tier.name}.{name}"

    def spec(self, name: str, data_dir: Path | None = None) -> SandboxSpec:
        """Return what a sandbox for measuring is made from."""
        return SandboxSpec(name=name, epoch=1, image=self.image, data_dir=data_dir)


@contextmanager
def docker_container(*, init: bool = False) -> Iterator[Any | None]:
    """Give docker-py's idle container; None where no engine answers or the image is not there."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=60)
        client.images.get(DOCKER_IMAGE)
    except DockerException:
        yield None
        return
    container = client.containers.run(
        DOCKER_IMAGE,
        ["sleep", "3600"],
        detach=True,
        network_mode="none",
        init=init,
        labels={"skylease.bench": "peer"},
    )
    try:
        yield container
    finally:
        container.remove(force=True)
        client.close()


@contextmanager
def places() -> Iterator[tuple[list[Place], dict[str, str]]]:
    """Give the tiers that work here, and why the others do not."""
    with tempfile.TemporaryDirectory(prefix="skylease-bench-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "image").mkdir()
        (root / "image/take_turn.py").write_text(SCRIPT)
        image = ImageSpec(name="bench", root=root / "image", preload=PRELOAD, reference=DOCKER_IMAGE)
        found, absent = [], {}
        for name in (name for name in TIERS if name not in NEVER_CHOSEN):
            place = Place(tier=open_tier(name, root / name), image=image)
            why = asyncio.run(_lack(place))
            if why:
                absent[name] = why
            else:
                found.append(place)
        yield found, absent


async def _lack(place: Place) -> str:
    probe = await place.tier.probe()
    if not probe.ok:
        return f"{probe.lacks[0].what}: {probe.lacks[0].why}"
    try:
        built = await place.tier.has_image(place.image)
    except SandboxError as error:
        return str(error)
    return "" if built else f"the image {DOCKER_IMAGE} is not built (make images)"


def peers_apart(bench: str, n: int, absent: dict[str, str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what the peers in .venv-peers take, measured there; in `absent`, why one could not be."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    if not PEERS_PYTHON.exists():
        absent |= dict.fromkeys(MEASURED_PEERS, "not installed (make bench-peers)")
        return found
    for peer in MEASURED_PEERS:
        done = subprocess.run(
            [str(PEERS_PYTHON), str(PEERS), peer, bench, str(n), DOCKER_IMAGE],
            input=json.dumps({"script": SCRIPT, "state": STATE}),
            capture_output=True,
            text=True,
            timeout=PEERS_DEADLINE_S,
            check=False,
        )
        if done.returncode == 0:
            times: Mapping[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
            found[peer] = {case: summary(seconds) for case, seconds in times.items()}
        else:
            absent[peer] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return found


def report(
    bench: str,
    ours: dict[str, dict[str, float]],
    peers: dict[str, dict[str, dict[str, float]]],
    absent: dict[str, str],
    **rest: Any,
) -> dict[str, Any]:
    """Return the answer of a benchmark: `ratios` says how many times longer a peer takes, by our cases."""
    ratios = {
        peer: {
            case: round(cases[plain]["p50"] / row["p50"], 1)
            for case, row in ours.items()
            if (plain := case.rpartition(".")[2]) in cases and row["p50"] > 0
        }
        for peer, cases in peers.items()
    }
    host = f"{os.cpu_count()} x {platform.machine()}, Linux {platform.release()}"
    machine = f"{host}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    answer = {"bench": bench, "unit": "ms", "ours": ours, "peers": peers, "ratios": ratios}
    return {**answer, **rest, "absent": absent, "machine": machine}


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds, and how many times were measured."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered) * 1e3, 2), "p99": round(p99 * 1e3, 2), "n": len(ordered)}
