"""The container that is asked for: everything is taken away that can be, and the limits are the spec's."""

from dataclasses import replace
from typing import Any

import pytest

from sandboxes import Limits
from sandboxes.tiers.docker_container import Bind, Plan, container_config

MIB = 1 << 20
PLAN = Plan(
    image="skylease/base:dev",
    command=("python3", "runner.pyz"),
    user="20123:20123",
    limits=Limits(memory_bytes=256 * MIB, pids=64, cpu=0.5, disk_bytes=1024 * MIB),
    labels={"skylease.name": "x"},
    binds=(
        Bind(source="/state/x/workspace", target="/workspace", read_only=False),
        Bind(source="/i", target="/image"),
    ),
)

HARDENED: list[Any] = [
    ("CapDrop", ["ALL"]),
    ("SecurityOpt", ["no-new-privileges"]),
    ("Privileged", False),
    ("ReadonlyRootfs", True),
    ("NetworkMode", "none"),
    ("IpcMode", "private"),
    ("CgroupnsMode", "private"),
    ("Memory", 256 * MIB),
    ("MemorySwap", 256 * MIB),
    ("PidsLimit", 72),
    ("NanoCpus", 500_000_000),
    ("RestartPolicy", {"Name": "no"}),
]


@pytest.mark.parametrize(("field", "value"), HARDENED, ids=[field for field, _ in HARDENED])
def test_what_is_taken_away(field: str, value: object) -> None:
    assert container_config(PLAN)["HostConfig"][field] == value


def test_nobody_inside_is_root_and_nothing_is_added() -> None:
    config = container_config(PLAN)
    assert config["User"] == "20123:20123"
    assert config["NetworkDisabled"] is True
    assert config["Labels"] == {"skylease.name": "x"}
    assert not {"CapAdd", "Devices", "PidMode", "UTSMode", "GroupAdd"} & config["HostConfig"].keys()
    assert "Runtime" not in config["HostConfig"]


def test_only_what_is_bound_is_seen_and_the_image_cannot_be_written() -> None:
    mounts = container_config(PLAN)["HostConfig"]["Mounts"]
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in mounts] == [
        ("/state/x/workspace", "/workspace", False),
        ("/i", "/image", True),
    ]
    assert {mount["BindOptions"]["Propagation"] for mount in mounts} == {"rprivate"}


def test_what_lies_in_memory_leaves_room_for_processes() -> None:
    config = container_config(replace(PLAN, workspace_in_memory=True))["HostConfig"]
    sizes = {
        path: int(options.partition("size=")[2].partition(",")[0])
        for path, options in config["Tmpfs"].items()
    }
    assert sizes == {"/tmp": 64 * MIB, "/workspace": 128 * MIB, "/run": MIB}
    assert config["ShmSize"] + sum(sizes.values()) < config["Memory"]
    assert all({"nosuid", "nodev"} <= set(options.split(",")) for options in config["Tmpfs"].values())


def test_a_small_disk_limit_holds_in_memory_too() -> None:
    small = replace(PLAN, workspace_in_memory=True, limits=replace(PLAN.limits, disk_bytes=8 * MIB))
    tmpfs = container_config(small)["HostConfig"]["Tmpfs"]
    assert f"size={8 * MIB}," in tmpfs["/workspace"]
    assert "uid=20123,gid=20123" in tmpfs["/workspace"]


def test_a_runtime_can_be_asked_for() -> None:
    assert container_config(replace(PLAN, runtime="runsc"))["HostConfig"]["Runtime"] == "runsc"
