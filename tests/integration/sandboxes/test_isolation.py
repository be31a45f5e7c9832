"""What is the process tier's own in keeping sandboxes apart; what every tier keeps is in tests/contract."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes import ImageSpec, Limits, ProcessTier, Sandbox, SandboxSpec
from sandboxes.tiers.seccomp import build_filter

is_root = os.geteuid() == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")  # mode 0700: the sandbox's uid could not read it as it is
    (root / "take_turn.py").write_text("print('{}')")
    (root / "skills").mkdir(mode=0o700)
    (root / "skills" / "one.md").write_text("text")
    os.chmod(root / "skills" / "one.md", 0o600)
    return ImageSpec(name="test", root=root)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> ProcessTier:
    tier = ProcessTier(tmp_path_factory.mktemp("state"))
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(probe.lacks[0].why)
    return tier


@pytest.fixture(scope="module")
def sandbox(tier: ProcessTier, image: ImageSpec) -> Iterator[Sandbox]:
    env = {"MODEL_NAME": "given"}
    limits = Limits(memory_bytes=128 << 20, pids=48, disk_bytes=8 << 20)
    yield asyncio.run(tier.create(SandboxSpec(name="inside", epoch=1, image=image, env=env, limits=limits)))
    asyncio.run(tier.destroy("inside"))


@pytest.fixture
async def neighbour(tier: ProcessTier, image: ImageSpec) -> AsyncIterator[Sandbox]:
    yield await tier.create(SandboxSpec(name="neighbour", epoch=1, image=image))
    await tier.destroy("neighbour")


async def python(sandbox: Sandbox, code: str, timeout: float = 30.0) -> str:
    result = await sandbox.exec(["python3", "-c", code], timeout=timeout)
    return result.text + result.stderr_text


async def test_the_environment_is_the_allow_list(sandbox: Sandbox) -> None:
    os.environ["SECRET_OF_THE_HOST"] = "hidden"
    names = {line.partition("=")[0] for line in (await sandbox.exec("env")).text.splitlines()}
    basics = {"PATH", "HOME", "LANG", "TERM", "PYTHONUSERBASE", "NPM_CONFIG_PREFIX", "TMPDIR", "PWD"}
    assert names == basics | {"MODEL_NAME"}
    everything = await python(
        sandbox,
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n  try: print(open(p).read())\n"
        "  except OSError: pass",
    )
    assert "SECRET_OF_THE_HOST" not in everything


async def test_nobody_inside_is_root_or_has_capabilities(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("id -u")).text == "1000\n"
    statuses = await python(
        sandbox, "import glob\nfor p in glob.glob('/proc/[0-9]*/status'): print(open(p).read())"
    )
    for line in statuses.splitlines():
        if line.startswith(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")):
            assert int(line.split()[1], 16) == 0, line
        if line.startswith("NoNewPrivs"):
            assert line.split()[1] == "1"
        if line.startswith("Uid:"):
            assert set(line.split()[1:]) == {"1000"}
        if line.startswith("Seccomp:") and build_filter():
            assert line.split()[1] == "2"


@pytest.mark.skipif(not is_root, reason="only root gives sandboxes uids of their own")
async def test_outside_every_process_runs_as_the_uid_of_the_sandbox(
    tier: ProcessTier, sandbox: Sandbox, neighbour: Sandbox
) -> None:
    infos = {info.name: info for info in await tier.list()}
    assert infos["inside"].uid != infos["neighbour"].uid
    for info in infos.values():
        assert info.uid is not None
        assert 20_000 <= info.uid < 50_000
        assert os.stat(f"/proc/{info.pid}").st_uid in (info.uid, 0)  # 0: it is not dumpable
        assert f"\nUid:\t{info.uid}\t{info.uid}\t" in Path(f"/proc/{info.pid}/status").read_text()


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/usr/bin", "/image", "/etc", "/dev", "/run", "/run/skylease", "/proc"]
)
async def test_only_workspace_and_scratch_can_be_written(sandbox: Sandbox, path: str) -> None:
    assert (await sandbox.exec(["touch", f"{path}/x"])).exit_code != 0
    for writable in ("/workspace", "/tmp", "/dev/shm", "/var/tmp"):
        assert (await sandbox.exec(["touch", f"{writable}/x"])).exit_code == 0


async def test_the_host_is_not_there(sandbox: Sandbox, tier: ProcessTier) -> None:
    listing = (await sandbox.exec("ls -a / /home /root /var /etc /run 2>/dev/null")).text.split()
    assert not {"home", "boot", "srv", "mnt", "shadow", "passwd-", "ssh", "lib.lock", "docker.sock"} & set(
        listing
    )
    assert (await sandbox.exec(["ls", str(tier._records.root)])).exit_code != 0
    assert (await sandbox.exec(["cat", "/etc/shadow"])).exit_code != 0


async def test_the_image_is_readable_whatever_its_modes_are(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat /image/skills/one.md")).text == "text"
    assert (await sandbox.turn({}, turn=1)).action == {}


@pytest.mark.skipif(not is_root, reason="an ordinary user's sandboxes are all his own")
async def test_the_directory_of_a_sandbox_is_for_its_owner_alone(
    tier: ProcessTier, neighbour: Sandbox
) -> None:
    directory = tier._records.directory(neighbour.name)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert directory.stat().st_uid == 0


async def test_processes_cannot_talk_to_their_runner(sandbox: Sandbox) -> None:
    code = (
        "import os, socket\n"
        "print(os.path.exists('/workspace/../run/runner.sock'), [n for n in os.listdir('/run/skylease')])\n"
        "for fd in range(3, 64):\n"
        "    try: print(os.readlink(f'/proc/self/fd/{fd}'))\n"
        "    except OSError: pass\n"
        "try: print(os.listdir('/proc/1/fd'))\n"
        "except OSError as error: print(error.errno)"
    )
    said = await python(sandbox, code)
    assert "False ['runner.pyz']" in said
    assert "socket:" not in said
    assert said.split()[-1] == "13"


@pytest.mark.skipif(not is_root, reason="cgroups need root here")
async def test_the_cgroup_is_named_after_the_sandbox_and_holds_all(
    tier: ProcessTier, sandbox: Sandbox
) -> None:
    held = tier._cgroups.processes("inside")
    if not held:
        pytest.skip("no writable cgroup")
    info = await tier.inspect("inside")
    assert info.pid in held
    inner = await sandbox.start_process("setsid sleep 98765703")
    async with asyncio.timeout(30):
        while len(tier._cgroups.processes("inside")) <= len(held):
            await asyncio.sleep(0.01)
    await inner.kill()
    assert any("/inside" in line for line in info.leftovers if line.startswith("cgroup"))
