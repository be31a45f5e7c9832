"""The parts of the gVisor tier that need no gVisor."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import InvalidSpec, Probe, SandboxBusy
from sandboxes.runner import identity, memory
from sandboxes.runner.files import PathRefused, _walk
from sandboxes.runner.loop import Loop
from sandboxes.tiers import gvisor_checkpoint as saving
from sandboxes.tiers import stage
from sandboxes.tiers.gvisor import GvisorTier
from sandboxes.tiers.gvisor_bundle import Bind, Scratch, configuration, write_skeleton
from sandboxes.tiers.gvisor_machine import stage_for
from sandboxes.tiers.gvisor_runsc import Runsc, RunscFailed
from sandboxes.tiers.launch import StartFailed


def test_the_configuration_gives_little() -> None:
    config = configuration(
        root="/mnt/rootfs",
        argv=["python3"],
        env={"A": "b"},
        binds=[
            Bind(source="/mnt/x", target="/image"),
            Bind(source="/w", target="/workspace", read_only=False),
        ],
        scratch=[Scratch(target="/tmp", size_bytes=4096)],
        host_uid=20_001,
        file_bytes=77,
    )
    assert config["root"]["readonly"] is True
    process = config["process"]
    assert process["noNewPrivileges"] is True
    assert {word for words in process["capabilities"].values() for word in words} <= {
        "CAP_SETUID",
        "CAP_SETGID",
    }
    assert process["rlimits"] == [{"type": "RLIMIT_FSIZE", "hard": 77, "soft": 77}]
    mapped = {entry["containerID"]: entry["hostID"] for entry in config["linux"]["uidMappings"]}
    assert mapped == {0: 65_534, 1000: 20_001}
    assert {"user", "network", "pid"} <= {entry["type"] for entry in config["linux"]["namespaces"]}
    options = {mount["destination"]: mount.get("options", []) for mount in config["mounts"]}
    assert "ro" in options["/image"]
    assert "rw" in options["/workspace"]
    assert "size=4096" in options["/tmp"]


def test_the_skeleton_has_what_is_mounted_and_nothing_of_the_hosts_accounts(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    points = {"/models/small": True, "/opt/one.txt": False}
    binds = write_skeleton(root, b"runner", ("/opt/python",), points)
    assert binds["usr"] == "/usr"
    assert binds["opt/python"] == "/opt/python"
    assert all(
        (root / name).is_dir() for name in (*binds, "workspace", "image", "run/skylease", "models/small")
    )
    assert (root / "opt/one.txt").is_file()
    assert (root / "run/runner.pyz").read_bytes() == b"runner"
    accounts = [line.split(":")[0] for line in (root / "etc/passwd").read_text().splitlines()]
    assert accounts == ["root", "sandbox"]
    assert not (root / "etc/shadow").exists()


def test_the_stage_never_covers_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tmp_path.is_relative_to(stage_for(tmp_path))
    assert stage_for(Path("/mnt/state")) != "/mnt"
    monkeypatch.setattr(stage, "STAGES", ("/",))
    with pytest.raises(StartFailed, match="beneath all"):
        stage_for(tmp_path)


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'no such container' >&2; exit 1", "no such container"), ("exit 3", "runsc ended with 3")],
)
def test_what_runsc_says_is_in_the_error(tmp_path: Path, script: str, said: str) -> None:
    executable = tmp_path / "runsc"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    with pytest.raises(RunscFailed, match=said):
        Runsc(executable=executable).call(tmp_path, "state", "x")


@pytest.mark.parametrize(
    ("script", "why"),
    [(None, "not installed"), ("echo 'cannot start: no ptrace' >&2; exit 1", "no ptrace")],
    ids=["absent", "broken"],
)
def test_the_probe_says_what_is_missing(tmp_path: Path, script: str | None, why: str) -> None:
    if os.geteuid() != 0:
        why = "only root" if script else why
    executable = tmp_path / "runsc"
    if script:
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
    find: Callable[[], Runsc | None] = lambda: Runsc(executable=executable) if script else None  # noqa: E731
    probe: Probe = asyncio.run(GvisorTier(tmp_path / "state", find=find).probe())
    assert not probe.ok
    assert why in probe.lacks[0].why
    assert probe.lacks[0].effect


# what the runner makes up for


def test_links_are_resolved_beneath_the_root_without_openat2(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("inside")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("outside")
    root = tmp_path / "inner"
    for name, target in {
        "up": "..",
        "chain": "up/inner/file",
        "loop": "loop",
        "absolute": str(outside),
    }.items():
        (root / name).symlink_to(target)
    (root / "deep").mkdir()
    (root / "deep" / "back").symlink_to("../file")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def read(path: str) -> bytes:
        found = _walk(fd, path, os.O_RDONLY)
        try:
            return os.read(found, 100)
        finally:
            os.close(found)

    before = len(os.listdir("/proc/self/fd"))
    assert (read("file"), read("deep/back"), read("./deep//../file")) == (b"inside",) * 3
    for path in ("up/x", "chain", "loop", "absolute", "../x"):
        with pytest.raises(PathRefused):
            read(path)
    with pytest.raises(NotADirectoryError):
        _walk(fd, "file", os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(FileNotFoundError):
        read("absent")
    with pytest.raises(OSError, match="too long"):
        read("/".join(["d"] * 4096))
    directory = _walk(fd, ".", os.O_RDONLY | os.O_DIRECTORY)
    assert stat.S_ISDIR(os.fstat(directory).st_mode)
    os.close(directory)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


def test_an_orphan_is_given_back_to_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {20: identity.FIRST_MARK, 21: identity.FIRST_MARK + 1, 22: -1}
    monkeypatch.setattr(identity, "_mark_of", marks.__getitem__)
    monkeypatch.setattr(identity, "_unit_of", {identity.FIRST_MARK: 10})
    table = {10: (1, "S", 5), 20: (1, "S", 6), 21: (1, "S", 7), 22: (1, "S", 8), 30: (20, "S", 9)}
    found = identity.orphans_returned(dict(table))
    assert found == {**table, 20: (10, "S", 6)}  # 21's unit has ended, 22 never had one
    identity.forget(10)
    assert identity.orphans_returned(dict(table)) == table


def test_memory_is_read_as_the_kernel_tells_it(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  400 kB\nHugePages_Total:  0\n")
    assert memory.used_bytes(str(tmp_path / "meminfo")) == 600 << 10


def test_the_largest_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; block = bytearray(int(sys.argv[1]) << 20); print('up', flush=True); input()"
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen([sys.executable, "-c", code, size], stdin=pipe, stdout=pipe) for size in ("8", "64")
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        pids = [worker.pid for worker in workers]
        assert memory.largest(pids) == workers[1].pid
        assert memory.largest([]) is None
        used = iter([2000, 500])
        monkeypatch.setattr(memory, "used_bytes", lambda: next(used))
        ended: list[tuple[int, int]] = []
        loop = Loop(lambda pid, status: ended.append((pid, status)))
        alive = iter([pids, []])
        guard = memory.Guard(loop, 1000, lambda: next(alive))
        guard.wake()
        loop.later(0.5, loop.stop)
        loop.run()
        assert ended == [(workers[1].pid, 9)]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


# saved sandboxes


MANIFEST = saving.Manifest(name="a", epoch=1, uid=20_000, runsc="1", python="3.11.7")


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    saving.save(tmp_path, MANIFEST)
    assert saving.load(tmp_path) == MANIFEST
    (tmp_path / saving.MANIFEST).write_text('{"name": "a"}')
    with pytest.raises(InvalidSpec, match="no saved sandbox"):
        saving.load(tmp_path)


@pytest.mark.parametrize("change", [{"name": "b"}, {"runsc": "2"}, {"python": "3.12.0"}])
def test_what_was_saved_by_others_is_refused(change: dict[str, str]) -> None:
    saving.check(replace(MANIFEST, epoch=5, uid=7), MANIFEST)
    with pytest.raises(InvalidSpec, match=next(iter(change))):
        saving.check(replace(MANIFEST, **change), MANIFEST)  # type: ignore[arg-type]


def test_a_socket_in_a_directory_of_the_host_is_found(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    annotations = {"dev.skylease.writable": json.dumps(["/shared"])}
    (tmp_path / "config.json").write_text(json.dumps({"annotations": annotations}))
    saving.check_no_socket(tmp_path, tmp_path, "a")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "deep" / "s"))
        with pytest.raises(SandboxBusy, match="deep/s"):
            saving.check_no_socket(tmp_path, tmp_path, "a")


def test_a_tree_moves_whole(tmp_path: Path) -> None:
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "link").symlink_to("/nowhere")
    saving.move_tree(tmp_path / "from", tmp_path / "to")
    assert os.readlink(tmp_path / "to" / "deep" / "link") == "/nowhere"
    assert not (tmp_path / "from").exists()
