"""How long a snapshot of a workspace takes, in full and of what has changed, and restoring it.

The workspace has 2,000 files with 100 MB, half of it incompressible, as in a node project. Beside us: GNU tar
with zstd, a plain copy, and docker commit, none of which knows what has changed; and as peer `full` our own
full one. Docker's `restore` is the start of a container from what was committed: it copies nothing.

    python -m benchmarks.snapshot [N]
"""

import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.places import DOCKER_IMAGE, report, summary
from sandboxes.snapshots import LocalStore, Snapshots

FILES: Final = 2_000
FILE_BYTES: Final = 50_000
CHANGED: Final = 20
PEER_ROUNDS: Final = 5  # each takes seconds
CASES: Final = ("full", "unchanged", "changed_20", "restore")
LABELS: Final = {"skylease.bench": "peer"}


def bench_snapshot(n: int = 10) -> dict[str, Any]:
    """Return medians and 99th percentiles in ms over `n` snapshots of each kind."""
    with tempfile.TemporaryDirectory(prefix="skylease-bench-") as directory:
        root = Path(directory)
        tree = root / "workspace"
        rng = random.Random(7)
        _furnish(tree, rng)
        ours: dict[str, list[float]] = {case: [] for case in CASES}
        for number in range(n):
            place = root / f"round-{number}"
            snapshots = Snapshots(LocalStore(place / "store"), place / "scratch")

            def take(snapshots: Snapshots = snapshots, place: Path = place) -> None:
                snapshots.take("bench", tree, epoch=1, index=place / "index.json")

            time.sleep(0.05)  # so that the file system's clock tells what comes later
            ours["full"].append(_timed(take))
            ours["unchanged"].append(_timed(take))
            _change(tree, rng)
            time.sleep(0.05)
            ours["changed_20"].append(_timed(take))
            target, index = place / "restored", place / "restored.json"
            ours["restore"].append(_timed(lambda: snapshots.restore("bench", target, index=index)))  # noqa: B023
            shutil.rmtree(place)
        peers = {"tar_zstd": _tar(tree, root), "copy": _copy(tree, root)}
        committed = _docker(tree, rng)
    if committed is not None:
        peers["docker_commit"] = committed
    shown = {name: {case: summary(times) for case, times in cases.items()} for name, cases in peers.items()}
    shown["full"] = {case: summary(ours["full"]) for case in ("changed_20", "unchanged")}
    absent = {} if committed is not None else {"docker_commit": f"no engine, or no image {DOCKER_IMAGE}"}
    return report("snapshot", {case: summary(times) for case, times in ours.items()}, shown, absent)


def _furnish(tree: Path, rng: random.Random) -> None:
    for number in range(FILES):
        file = tree / f"package-{number % 50}" / f"file-{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(FILE_BYTES // 2) + b"x" * (FILE_BYTES // 2))


def _change(tree: Path, rng: random.Random) -> list[Path]:
    numbers = rng.sample(range(FILES), CHANGED)
    changed = [tree / f"package-{number % 50}" / f"file-{number}" for number in numbers]
    for file in changed:
        file.write_bytes(rng.randbytes(FILE_BYTES))
    return changed


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _tar(tree: Path, root: Path) -> dict[str, list[float]]:
    archive, target = root / "archive.tar.zst", root / "untarred"
    times: dict[str, list[float]] = {"full": [], "restore": []}
    for _ in range(PEER_ROUNDS):
        pack = ["tar", "-C", str(tree), "-I", "zstd -1", "-cf", str(archive), "."]
        times["full"].append(_timed(lambda: subprocess.run(pack, check=True)))  # noqa: B023
        target.mkdir()
        unpack = ["tar", "-C", str(target), "-I", "zstd", "-xf", str(archive)]
        times["restore"].append(_timed(lambda: subprocess.run(unpack, check=True)))  # noqa: B023
        shutil.rmtree(target)
    return {**times, "changed_20": times["full"], "unchanged": times["full"]}


def _docker(tree: Path, rng: random.Random) -> dict[str, list[float]] | None:
    """Commit a container that has the files in its own layer, and start another of what was committed; None
    where no engine answers or the image is not there.
    """
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=120)
        client.images.get(DOCKER_IMAGE)
    except DockerException:
        return None
    times: dict[str, list[float]] = {"full": [], "changed_20": [], "restore": []}
    container = client.containers.create(DOCKER_IMAGE, ["sleep", "3600"], network_mode="none", labels=LABELS)
    made: list[Any] = []
    try:
        _put(container, tree, tree)
        for _ in range(PEER_ROUNDS):
            times["full"].append(_timed(lambda: made.append(container.commit())))
            changed = _change(tree, rng)
            _put(container, tree, *changed)
            times["changed_20"].append(_timed(lambda: made.append(container.commit())))
            times["restore"].append(_timed(lambda: _started_of(client, made[-1])))
    finally:
        container.remove(force=True)
        for image in made:
            client.images.remove(image.id, force=True)
        client.close()
    return {**times, "unchanged": times["full"]}


def _put(container: Any, tree: Path, *paths: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in paths:
            archive.add(path, f"tree/{path.relative_to(tree)}")
    container.put_archive("/", stream.getvalue())


def _started_of(client: Any, image: Any) -> None:
    words = ["sleep", "3600"]
    client.containers.run(image.id, words, detach=True, network_mode="none", labels=LABELS).remove(force=True)


def _copy(tree: Path, root: Path) -> dict[str, list[float]]:
    times = []
    for number in range(PEER_ROUNDS):
        target = root / f"copy-{number}"
        times.append(_timed(lambda: subprocess.run(["cp", "-a", str(tree), str(target)], check=True)))  # noqa: B023
        shutil.rmtree(target)
    return {"full": times, "changed_20": times, "unchanged": times, "restore": times}


if __name__ == "__main__":
    json.dump(bench_snapshot(int(sys.argv[1]) if len(sys.argv) > 1 else 10), sys.stdout, indent=1)
