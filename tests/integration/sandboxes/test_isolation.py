"""What the process tier keeps apart: every line here is an attempt from inside, or a look from outside."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes import ImageSpec, Limits, ProcessTier, Sandbox, SandboxSpec
from sandboxes.tiers.cgroup import OVERHEAD_PIDS
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
    "path",
    [
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
        "/proc/1/mem",
        "/sys/x",
    ],
)
async def test_the_kernel_cannot_be_set(sandbox: Sandbox, path: str) -> None:
    assert (await sandbox.exec(["sh", "-c", 'echo 1 > "$0"', path])).exit_code != 0


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


async def test_other_sandboxes_cannot_be_seen_or_touched(
    sandbox: Sandbox, neighbour: Sandbox, tier: ProcessTier
) -> None:
    await neighbour.write_file("secret", b"hidden")
    running = await neighbour.start_process("sleep 98765701")
    seen = await python(
        sandbox, "import glob\nfor p in glob.glob('/proc/[0-9]*/cmdline'): print(open(p).read())"
    )
    assert "98765701" not in seen
    assert "neighbour" not in seen
    found = await sandbox.exec("find / -name secret -not -path '/proc/*' 2>/dev/null")
    assert found.text == ""
    await sandbox.exec("kill -9 -1")  # everybody that it can reach: itself
    assert (await neighbour.list_processes())[0]["running"]
    await running.kill()
    if is_root:
        directory = tier._records.directory("neighbour")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == 0


async def test_there_is_no_network(sandbox: Sandbox) -> None:
    code = (
        "import socket\n"
        "for family, address in ((socket.AF_INET, ('192.0.2.1', 80)),"
        " (socket.AF_INET, ('169.254.169.254', 80)),"
        " (socket.AF_INET6, ('2001:db8::1', 80))):\n"
        "    try: socket.socket(family).connect(address); print('open')\n"
        "    except OSError as error: print(error.errno)\n"
        "try: socket.getaddrinfo('example.org', 80); print('resolved')\n"
        "except OSError: print('no name')\n"
    )
    assert set((await python(sandbox, code)).split("\n")) == {"101", "no name", ""}
    assert (await sandbox.exec("tail -n +3 /proc/net/dev")).text.split(":")[0].strip() == "lo"


async def test_a_service_of_the_host_is_not_reachable(sandbox: Sandbox) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"import socket\nprint(socket.socket().connect_ex(('127.0.0.1', {port})))"
    assert (await python(sandbox, code)).strip() == "111"
    server.close()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("unshare(0x10000000)", id="user-namespace"),
        pytest.param("unshare(0x00020000)", id="mount-namespace"),
        pytest.param("mount(b'none', b'/tmp', b'tmpfs', 0, None)", id="mount"),
        pytest.param("ptrace(16, 1, 0, 0)", id="ptrace"),
        pytest.param("chroot(b'/tmp')", id="chroot"),
        pytest.param("syscall(425, 8, 0)", id="io_uring"),
        pytest.param("setuid(0)", id="setuid"),
        pytest.param("kill(1, 9) or open(b'/proc/1/environ', 0)", id="runner-memory"),
        pytest.param("ioctl(0, 0x5412, b'x')", id="tiocsti"),
    ],
)
async def test_dangerous_calls_fail(sandbox: Sandbox, call: str) -> None:
    code = (
        f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.{call.replace(' or ', ' or libc.')})"
    )
    assert (await python(sandbox, code)).strip() == "-1"
    assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_new_namespaces_by_clone_are_refused(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("unshare -Ur id -u")).exit_code != 0
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(56, 0x10000011, 0, 0, 0, 0))"
    )
    if os.uname().machine == "x86_64":
        assert (await python(sandbox, code)).strip() == "-1"


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


async def test_a_turn_cannot_poison_the_spare_for_the_next(sandbox: Sandbox) -> None:
    helper = await sandbox.start_process(
        "while true; do for p in /proc/[0-9]*; do kill -9 ${p#/proc/} 2>/dev/null; done; done"
    )
    await asyncio.sleep(0.5)  # it has killed itself, and every idle unit
    await helper.wait(10)
    assert (await sandbox.turn({}, turn=1)).action == {}


async def test_a_process_that_disowns_its_children_is_found_out(sandbox: Sandbox) -> None:
    code = (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(36, 0, 0, 0, 0)\n"  # no longer a subreaper
        "if os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: os.execvp('sleep', ['sleep', '98765702'])\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)"
    )
    await sandbox.exec(["python3", "-c", code])
    assert "98765702" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text


def limit_is_enforced(tier: ProcessTier, controller: str) -> None:
    if controller not in tier._cgroups.controllers:
        probe = asyncio.run(tier.probe())
        pytest.skip(next(lack.why for lack in probe.lacks if lack.what == "cgroups"))


async def test_a_memory_bomb_ends_alone(sandbox: Sandbox, neighbour: Sandbox) -> None:
    code = "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))"
    result = await sandbox.exec(["python3", "-c", code], timeout=60)
    assert result.exit_code == 137 or b"MemoryError" in result.stderr
    assert (await sandbox.exec("echo alive")).text == "alive\n"
    assert (await neighbour.exec("echo alive")).text == "alive\n"


async def test_a_fork_bomb_stops_at_the_limit_and_dies_with_its_command(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nn = 0\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "        n += 1\n    except OSError: break\nprint(n)"
    )
    result = await sandbox.exec(["python3", "-c", code], timeout=60)
    assert 10 < int(result.text) < 48 + OVERHEAD_PIDS
    assert (await sandbox.stats())["processes"] <= 2
    assert (await sandbox.turn({}, turn=1)).action == {}


async def test_a_wild_fork_bomb_is_ended_by_the_timeout(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    code = (  # never the same pid
        "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass"
    )
    result = await sandbox.exec(["python3", "-c", code], timeout=20)
    assert (
        result.exit_code == 0
    )  # the first one exits at once; its children are hunted down before the answer
    assert time.monotonic() - begun < 15
    assert (await sandbox.exec("echo alive")).text == "alive\n"
    assert (await sandbox.stats())["processes"] <= 2


@pytest.mark.parametrize("path", ["/tmp/fill", "/dev/shm/fill", "/workspace/fill"])
async def test_disk_limits(sandbox: Sandbox, path: str) -> None:
    result = await sandbox.exec(["sh", "-c", 'head -c 20000000 /dev/zero > "$0"', path])
    assert result.exit_code != 0
    await sandbox.exec(["rm", "-f", path])


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
    async with asyncio.timeout(5):
        while len(tier._cgroups.processes("inside")) <= len(held):
            await asyncio.sleep(0.01)
    await inner.kill()
    assert any("/inside" in line for line in info.leftovers if line.startswith("cgroup"))
