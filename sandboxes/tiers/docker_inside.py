"""What a docker sandbox sees of this node, and what its runner is told."""

import base64
import os
from pathlib import Path
from typing import Any, Final

from sandboxes.egress import seen_inside
from sandboxes.spec import SandboxSpec
from sandboxes.tiers.archive import runner_archive
from sandboxes.tiers.docker_container import HOSTNAME, Bind
from sandboxes.tiers.docker_disk import WorkspaceDisks
from sandboxes.tiers.image import readable_image
from sandboxes.tiers.inside import environment, rlimits
from sandboxes.tiers.seccomp import build_filter

BOOT_DIRECTORY: Final = "boot"
BOOT_INSIDE: Final = "/run/skylease/boot"
RUNNER_FILE: Final = "runner.pyz"
ETC: Final = ("passwd", "group", "hosts")
USER_SITE: Final = "/workspace/.local/lib/{python}/site-packages"  # the runner knows its version


def furnish(boot: Path, uid: int) -> None:
    """Make the directory that a starting runner sees; `uid` is that of the sandbox's processes."""
    files = {
        RUNNER_FILE: runner_archive(),
        "passwd": f"root:x:0:0::/:/bin/false\nsandbox:x:{uid}:{uid}::/workspace:/bin/sh\n".encode(),
        "group": f"root:x:0:\nsandbox:x:{uid}:\n".encode(),
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n".encode(),
    }
    boot.mkdir()
    boot.chmod(0o755)  # whatever the umask: the sandbox's uid must get through
    for name, content in files.items():
        (boot / name).write_bytes(content)
        (boot / name).chmod(0o644)


def binds(spec: SandboxSpec, directory: Path) -> tuple[Bind, ...]:
    """Return what of this node appears inside."""
    boot = directory / BOOT_DIRECTORY
    workspace = WorkspaceDisks.source(directory)
    found = [Bind(source=str(workspace), target="/workspace", read_only=False)]
    found.append(Bind(source=str(boot), target=BOOT_INSIDE))
    found += [Bind(source=str(boot / name), target=f"/etc/{name}") for name in ETC]
    way_out = seen_inside(directory, spec.egress)
    if way_out is not None:
        found.append(Bind(source=str(way_out.source), target=way_out.target))
    if spec.data_dir is not None:
        found.append(Bind(source=str(spec.data_dir.absolute()), target="/data", read_only=False))
    if spec.image.bind_root:
        image = readable_image(spec.image.root.absolute(), directory / "image")
        found.append(Bind(source=str(image), target="/image"))
    for mount in spec.mounts:
        source = os.path.realpath(mount.source)
        found.append(Bind(source=source, target=mount.target, read_only=mount.read_only))
    return tuple(found)


def boot_config(spec: SandboxSpec, directory: Path, machine: str) -> dict[str, Any]:
    """Return the tier's part of the boot object; `machine` is what the engine runs on."""
    roots = {"/workspace": "/workspace", "/tmp": "/tmp"}
    if spec.data_dir is not None:
        roots["/data"] = "/data"
    roots.update({mount.target: mount.target for mount in spec.mounts if mount.source.is_dir()})
    program = build_filter(machine)
    way_out = seen_inside(directory, spec.egress)
    return {
        **(way_out.boot if way_out else {}),
        "detach": False,
        "roots": roots,
        "home": "/workspace",
        "tmp": "/tmp",
        "swept": ["/tmp", "/dev/shm"],
        "script": f"/image/{spec.image.script}",
        "python_path": ["/image"],
        "user_site": [USER_SITE],
        "env": {**environment("/workspace"), **(way_out.env if way_out else {}), **spec.env},
        "rlimits": rlimits(spec.limits, memory_by_cgroup=True, pids=False),
        "seccomp": base64.b64encode(program).decode() if program else "",
    }
