"""Attacks, by code that means it. After each of them the node is as it was, a neighbour lives on unharmed,
and the sandbox itself takes its next turn.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxes import FileError, Limits, NoSpace, Sandbox, SandboxGone, SandboxState, SandboxTimeoutError

MIB = 1 << 20
LIMITS = Limits(memory_bytes=128 * MIB, pids=48, disk_bytes=16 * MIB)
OVERHEAD_PIDS = 16  # what a tier needs inside besides, at most
PLACES = "/tmp /run /var /dev /data /workspace /image /home /root /srv /mnt /media /opt"  # all but the system
FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
ALIVE = {"code": "print(json.dumps({'alive': sum(range(10))}))"}
CountMarked = Callable[[str], Awaitable[int]]


@pytest.fixture
async def sandbox(bench: Any) -> AsyncIterator[Sandbox]:
    """The one that attacks; the same for all tests, unless one of them was its end."""
    bench.need("isolation")
    if (await bench.tier.inspect("attacker")).state is not SandboxState.WARM:
        await bench.tier.create(bench.spec("attacker", limits=LIMITS, env={"GIVEN": "1"}))
    async with await bench.tier.connect("attacker") as sandbox:
        yield sandbox


@pytest.fixture
async def bomber(bench: Any) -> AsyncIterator[Sandbox]:
    """One of its own, for what may end a sandbox of a tier with its own kernel: to the node that is one
    process, which runs out of memory as a whole.
    """
    async with await bench.tier.create(bench.spec("bomber", limits=LIMITS)) as bomber:
        yield bomber
    await bench.tier.destroy("bomber")


@pytest.fixture(scope="module")
def neighbour(bench: Any) -> Sandbox:
    """The one that must not notice."""
    bench.need("isolation")

    async def furnish() -> Sandbox:
        made: Sandbox = await bench.tier.create(bench.spec("victim", limits=LIMITS))
        await made.write_file("secret.txt", b"hidden")
        process = await made.start_process("echo up; exec sleep 98760000")
        await process.wait_for_log("up", timeout=20)
        await made.close()
        return made

    return asyncio.run(furnish())


@pytest.fixture(autouse=True)
async def unharmed(sandbox: Sandbox, neighbour: Sandbox) -> AsyncIterator[None]:
    """Look at both afterwards."""
    yield
    assert (await sandbox.turn(ALIVE, turn=1)).action == {"alive": 45}
    assert (await sandbox.exec("echo alive > alive && cat alive; rm alive")).text == "alive\n"
    assert (await neighbour.turn(ALIVE, turn=1)).action == {"alive": 45}
    assert await neighbour.read_file("secret.txt") == b"hidden"
    assert [process["running"] for process in await neighbour.list_processes()] == [True]


async def python(sandbox: Sandbox, code: str, *words: str, timeout: float = 60.0) -> str:
    result = await sandbox.exec(["python3", "-c", code, *words], timeout=timeout)
    return result.text + result.stderr_text


def own_kernel(bench: Any) -> bool:
    """Whether the sandbox's system calls reach another kernel than the node's."""
    return "own" in str(bench.probe.features.get("kernel", ""))


# processes


async def test_a_fork_bomb_stops_at_the_limit_and_dies_with_its_command(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nn = 0\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "        n += 1\n    except OSError: break\nprint(n)"
    )
    assert 10 < int(await python(sandbox, code)) < LIMITS.pids + OVERHEAD_PIDS
    assert (await sandbox.stats())["processes"] <= 4


async def test_a_fork_bomb_in_every_process_ends_by_the_timeout(bench: Any, bomber: Sandbox) -> None:
    begun = time.monotonic()
    try:
        with contextlib.suppress(SandboxTimeoutError):
            ended = await bomber.exec(["python3", "-c", FORK_BOMB], timeout=1.5)
            assert ended.exit_code == 137  # so many interpreters can meet the limit of memory first
        assert time.monotonic() - begun < 15
        assert (await bomber.stats())["processes"] <= 4
        assert (await bomber.turn(ALIVE, turn=1)).action == {"alive": 45}
    except SandboxGone:
        assert own_kernel(bench)


async def test_processes_that_are_never_the_same_are_hunted_down(sandbox: Sandbox) -> None:
    code = "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass"
    begun = time.monotonic()
    await sandbox.exec(["python3", "-c", code], timeout=20)  # the first exits at once
    assert time.monotonic() - begun < 15
    assert (await sandbox.stats())["processes"] <= 4


async def test_daemons_that_ignore_everything_die_with_their_command(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    code = (
        "import ctypes, os, signal, time\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)\n"  # no longer the one to whom orphans go
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.closerange(0, 64)\n"
        "            os.execvp('sleep', ['sleep', '98760001'])\n"
        "        os._exit(0)\n"
        "time.sleep(0.2)"
    )
    await python(sandbox, code)
    assert await count_marked("98760001") == 0
    with pytest.raises(SandboxTimeoutError):
        await python(sandbox, code.replace("sleep(0.2)", "sleep(60)"), timeout=1.0)
    assert await count_marked("98760001") == 0


@pytest.mark.parametrize("target", ["-1", "1"])
async def test_killing_everybody_kills_only_itself(sandbox: Sandbox, target: str) -> None:
    for name in ("KILL", "STOP", "TERM"):
        code = f"import os, signal\nos.kill({target}, signal.SIG{name})"
        with_timeout = sandbox.exec(["python3", "-c", code], timeout=3)
        await asyncio.gather(with_timeout, return_exceptions=True)


async def test_killing_what_waits_for_the_next_turn(sandbox: Sandbox) -> None:
    line = "for i in 1 2 3 4 5; do for p in /proc/[0-9]*; do kill -9 ${p#/proc/} 2>/dev/null; done; done"
    helper = await sandbox.start_process(line)
    await helper.wait(20)


@pytest.mark.parametrize("signal_name", ["KILL", "STOP"])
async def test_a_turn_that_ends_or_stops_its_parent_harms_only_itself(
    sandbox: Sandbox, signal_name: str
) -> None:
    await sandbox.turn(ALIVE, turn=1)
    code = f"import signal\nos.kill(os.getppid(), signal.SIG{signal_name})\nprint(json.dumps({{}}))"
    await sandbox.turn({"code": code}, turn=1, timeout=2)  # then `unharmed` looks


# memory, disk, output


BOMBS = {
    "one-process": "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))",
    "many-processes": (  # each of them below any limit of one process
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n"
        "        block = bytearray(30 << 20); time.sleep(30); os._exit(0)\n"
        "ended = 0\nwhile ended < 10:\n    ended += os.wait()[1] == 9\nprint('MemoryError')"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_memory_bomb_ends_alone(bench: Any, bomber: Sandbox, bomb: str) -> None:
    if bomb == BOMBS["many-processes"]:
        bench.need("cgroups")  # by rlimits, memory is limited per process only
    try:
        result = await bomber.exec(["python3", "-c", bomb], timeout=40)
        assert result.exit_code == 137 or "MemoryError" in result.text + result.stderr_text
        assert (await bomber.turn(ALIVE, turn=1)).action == {"alive": 45}
    except SandboxGone:
        assert own_kernel(bench)


FILL = """
import errno, os, sys
wrote, said = 0, ''
for number in range(200):
    try:
        fd = os.open(f'{sys.argv[1]}/fill-{number}', os.O_WRONLY | os.O_CREAT)
        for _ in range(4):
            wrote += os.write(fd, b'x' * (1 << 20))
        os.close(fd)
    except OSError as error:
        said = errno.errorcode[error.errno]
        break
print(wrote >> 20, said)
"""


async def test_the_workspace_fills_up_to_its_limit_and_no_further(bench: Any, sandbox: Sandbox) -> None:
    bench.need("disk quota")
    before = _used(bench.root)
    wrote, said = (await python(sandbox, FILL, ".")).split()
    assert said in ("ENOSPC", "EDQUOT")
    assert LIMITS.disk_bytes // MIB * 0.7 <= int(wrote) <= LIMITS.disk_bytes // MIB * 1.1
    assert _used(bench.root) - before < 2 * LIMITS.disk_bytes
    with pytest.raises(NoSpace):
        await sandbox.write_file("more", b"x" * 5 * MIB)
    assert (await sandbox.turn(ALIVE, turn=1)).action == {"alive": 45}  # a full disk is the turn's own affair
    await sandbox.exec("rm -f fill-*")


def _used(root: Path) -> int:
    """Return how many bytes a state directory takes on the node's disk."""
    found = [Path(base) / name for base, _, names in os.walk(root) for name in names]
    return sum(path.lstat().st_blocks * 512 for path in found)


async def test_a_file_has_a_largest_size(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 30000000 /dev/zero > large")
    assert result.exit_code != 0
    assert (await sandbox.exec("stat -c %s large; rm large")).text.strip() <= str(LIMITS.disk_bytes)
    with pytest.raises(FileError):
        await sandbox.write_file("large", b"x" * 20 * MIB)
    assert not await sandbox.exists("large")


EMPTY_FILES = """
import errno, os, sys
made, said = 0, ''
os.mkdir(sys.argv[1] + '/many')
try:
    for made in range(20_000):
        os.close(os.open(f'{sys.argv[1]}/many/{made}', os.O_WRONLY | os.O_CREAT))
except OSError as error:
    said = errno.errorcode[error.errno]
print(made, said)
"""


async def test_the_workspace_holds_only_so_many_files(bench: Any, sandbox: Sandbox) -> None:
    bench.need("disk quota")
    made, said = (await python(sandbox, EMPTY_FILES, ".")).split()
    assert said in ("ENOSPC", "EDQUOT")
    assert int(made) < 10_000
    await sandbox.delete("many", recursive=True)


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
async def test_scratch_space_is_limited_too(bench: Any, sandbox: Sandbox, path: str) -> None:
    if (await sandbox.exec(["test", "-w", path])).exit_code != 0:
        return  # there is none: nothing to fill
    result = await sandbox.exec(["python3", "-c", FILL, path])
    wrote, _, said = result.text.strip().partition(" ")
    assert result.exit_code == 137 or said == "ENOSPC"
    assert not wrote or int(wrote) <= LIMITS.memory_bytes // MIB
    assert (await sandbox.turn(ALIVE, turn=1)).action is not None or path == "/tmp"
    await sandbox.exec(f"rm -f {path}/fill-*")
    made = await sandbox.exec(["python3", "-c", EMPTY_FILES, path])
    assert made.exit_code in (0, 137)
    await sandbox.exec(f"rm -rf {path}/many")


async def test_gigabytes_of_output_take_bounded_time_and_memory(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandbox.exec("head -c 10G /dev/zero; sleep 60", timeout=2.0, max_output_bytes=1000)
    assert time.monotonic() - begun < 12
    assert (len(caught.value.result.stdout), caught.value.result.truncated) == (1000, True)
    turn = await sandbox.turn({"code": "os.system('head -c 200M /dev/zero')"}, turn=1, timeout=30)
    assert turn.skip is not None
    process = await sandbox.start_process("head -c 200M /dev/zero; sleep 60")
    await process.wait_for_log("\0", timeout=20)
    await process.kill()
    await process.wait(20)
    assert len((await process.logs()).stdout) <= 1 << 20


async def test_output_that_is_no_text_breaks_nothing(sandbox: Sandbox) -> None:
    result = await sandbox.exec(r"printf '\377\376\300\200\n' >&2; printf '\355\240\200'; exit 3")
    assert (result.exit_code, result.stdout) == (3, b"\xed\xa0\x80")
    assert "\ufffd" in result.text + result.stderr_text
    turn = await sandbox.turn({"code": 'sys.stdout.buffer.write(b\'{"a": "\\xff"}\')'}, turn=1)
    assert (turn.action, turn.skip is None) == (None, False)
    turn = await sandbox.turn({"code": "sys.stderr.buffer.write(b'\\xff' * 1000); sys.exit(1)"}, turn=1)
    assert turn.skip is not None
    assert turn.skip.encode()


# what could be inherited or seen


async def test_nothing_is_inherited(sandbox: Sandbox) -> None:
    code = (
        "import os\nfound = []\nfor fd in os.listdir('/proc/self/fd'):\n"
        "    try: found.append(f'{fd} ' + os.readlink(f'/proc/self/fd/{fd}'))\n"
        "    except OSError: pass\n"
        "print([line for line in found if int(line.split()[0]) > 2 and '/fd' not in line])\n"
        "print([line for line in found if 'socket' in line])"
    )
    assert (await python(sandbox, code)).split("\n")[:2] == ["[]", "[]"]
    turn = await sandbox.turn(
        {
            "code": "held = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
            "print(json.dumps({'fds': held}))"
        },
        turn=1,
    )
    assert turn.action == {"fds": []}


async def test_the_environment_and_secrets_of_the_node_are_not_there(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_NODE", "s3cret-of-the-node")
    seen = await python(
        sandbox,
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
        "  try: print(open(p).read())\n  except OSError: pass",
    )
    assert "s3cret-of-the-node" not in seen
    names = {line.partition("=")[0] for line in (await sandbox.exec("env")).text.splitlines()}
    leaked = [
        name for name in names if name.startswith(("SKYLEASE", "RAY_", "DOCKER_", "AWS_", "SSH_", "PYTEST"))
    ]
    assert "GIVEN" in names
    assert leaked == []


async def test_the_nodes_files_and_sockets_are_not_there(bench: Any, sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="skylease-abuse-") as marker:
        marker.write(b"marker of the node")
        marker.flush()
        script = (
            f"ls {marker.name} {bench.root} /var/run/docker.sock /run/docker.sock /run/containerd "
            "/tmp/ray /root/.ssh /run/skylease/uids 2>/dev/null; cat /etc/shadow 2>/dev/null; "
            f"find {PLACES} -type s -o -name 'skylease-abuse-*' 2>/dev/null"
        )
        assert (await sandbox.exec(script)).text == ""


async def test_services_of_the_node_and_of_the_cloud_are_out_of_reach(sandbox: Sandbox) -> None:
    name = f"\0skylease-abuse-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("0.0.0.0", 0)) as everywhere,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(name)
        abstract.listen()
        ports = [server.getsockname()[1], everywhere.getsockname()[1], 6379, 2375, 10001]
        code = f"""
import socket
def reach(family, address):
    try:
        with socket.socket(family) as s:
            s.settimeout(1.0)
            s.connect(address)
        print('reached', address)
    except OSError:
        pass
for port in {ports}:
    reach(socket.AF_INET, ('127.0.0.1', port))
    reach(socket.AF_INET6, ('::1', port))
for host in ('169.254.169.254', '169.254.170.2', '192.0.2.1', '10.0.0.1', '172.17.0.1'):
    reach(socket.AF_INET, (host, 80))
    reach(socket.AF_INET, (host, {everywhere.getsockname()[1]}))
for host in ('fd00:ec2::254', '2001:db8::1'):
    reach(socket.AF_INET6, (host, 80))
reach(socket.AF_UNIX, {name!r})
try: print('resolved', socket.getaddrinfo('example.org', 80))
except OSError: pass
print('done')
"""
        assert (await python(sandbox, code)).strip() == "done"


async def test_the_neighbour_cannot_be_seen_read_or_signalled(
    bench: Any, sandbox: Sandbox, neighbour: Sandbox
) -> None:
    seen = await python(
        sandbox,
        "import glob\nfor p in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "  try: print(open(p).read())\n  except OSError: pass",
    )
    assert "98760000" not in seen
    assert "victim" not in seen
    assert (await sandbox.exec(f"find {PLACES} -name secret.txt 2>/dev/null")).text == ""
    pid = (await bench.tier.inspect("victim")).pid
    directory = bench.root / "victim"
    line = f"kill -9 {pid} 2>/dev/null; cat {directory}/* /proc/{pid}/root/workspace/* 2>/dev/null; true"
    if f"/proc/{pid}" != "/proc/1":
        assert b"hidden" not in (await sandbox.exec(line)).stdout


# the kernel

SETTINGS = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger",
    "/proc/1/mem",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/power/state",
)


async def test_the_kernel_cannot_be_set(sandbox: Sandbox) -> None:
    before = [Path(path).read_text() for path in SETTINGS[:3]]
    code = (
        "import sys\nfor path in sys.argv[1:]:\n"
        "    try:\n        open(path, 'w').write('1')\n        print(path)\n    except OSError: pass"
    )
    assert await python(sandbox, code, *SETTINGS) == ""
    assert [Path(path).read_text() for path in SETTINGS[:3]] == before


CALLS = {
    "mount": "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "umount2(b'/workspace', 2)",
    "chroot": "chroot(b'/tmp')",
    "setuid": "setuid(0)",
    "setgid": "setgid(0)",
    "reboot": "reboot(0x89ABCDEF)",
    "swapon": "swapon(b'/workspace/x', 0)",
    "init_module": "syscall(175, b'x', 1, b'')",
    "bpf": "syscall(321, 0, 0, 0)",
    "open_by_handle_at": "syscall(304, -100, b'x' * 128, 0)",
    "ptrace-attach-1": "ptrace(16, 1, 0, 0)",
    "raw-socket": "socket(2, 3, 1)",
    "packet-socket": "socket(17, 3, 768)",
    "mknod": "mknod(b'/workspace/disk', 0o60600, 0x700)",
}
SHARED_KERNEL = {  # a kernel of its own may allow these: they stay in there
    "unshare-user": "unshare(0x10000000)",
    "unshare-mount": "unshare(0x00020000)",
    "unshare-net": "unshare(0x40000000)",
    "clone-user": "syscall(56, 0x10000011, 0, 0, 0, 0)",
    "keyctl": "syscall(250, 1, 0)",
    "add_key": "syscall(248, b'user', b'x', b'y', 1, -3)",
    "userfaultfd": "syscall(323, 0)",
    "perf_event_open": "syscall(298, b'\\0' * 128, 0, -1, -1, 0)",
    "io_uring": "syscall(425, 8, b'\\0' * 120)",
    "process_vm_readv": "syscall(310, 1, 0, 0, 0, 0, 0)",
    "tiocsti": "ioctl(0, 0x5412, b'x')",
}


async def test_dangerous_calls_fail(bench: Any, sandbox: Sandbox) -> None:
    calls = CALLS if own_kernel(bench) else {**CALLS, **SHARED_KERNEL}
    if os.uname().machine != "x86_64":
        calls = {name: call for name, call in calls.items() if not call.startswith("syscall")}
    lines = [f"print({name!r}, libc.{call})" for name, call in calls.items()]
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n" + "\n".join(lines)
    said = dict(line.split() for line in (await python(sandbox, code)).splitlines())
    assert {name: said.get(name) for name in calls} == dict.fromkeys(calls, "-1")


async def test_the_runner_cannot_be_read_or_spoken_to(bench: Any, sandbox: Sandbox) -> None:
    code = """
import os
for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/maps'):
    try:
        with open(path, 'rb') as file: file.read(1); print('read', path)
    except OSError: pass
for number in range(1024):
    try: print('opened', os.open(f'/proc/1/fd/{number}', os.O_RDWR | os.O_NONBLOCK), number)
    except OSError: pass
try:
    for name in os.listdir('/proc/1/fd'): print('seen', os.readlink('/proc/1/fd/' + name))
except OSError: pass
"""
    said = (await python(sandbox, code)).splitlines()
    if own_kernel(bench):  # gVisor's /proc is less careful with names, and with pipes
        said = [line for line in said if line == "read /proc/1/mem"]
    assert said == []


# file operations by the holder, while the agent plays tricks


async def test_swapping_a_directory_for_a_link_under_the_holders_feet(sandbox: Sandbox) -> None:
    flip = (
        "import os\nos.makedirs('real', exist_ok=True)\nopen('real/hosts', 'w').write('mine')\n"
        "os.symlink('/etc', 'link')\nos.rename('real', 'swap')\nprint('up', flush=True)\n"
        "while True:\n"
        "    os.rename('swap', 'real'); os.rename('link', 'swap')\n"
        "    os.rename('swap', 'link'); os.rename('real', 'swap')\n"
    )
    process = await sandbox.start_process(["python3", "-c", flip])
    await process.wait_for_log("up", timeout=20)
    read: set[bytes] = set()
    for _ in range(150):
        for operation in (
            sandbox.read_file("swap/hosts"),
            sandbox.write_file("swap/hosts", b"mine"),
            sandbox.delete("swap/hosts"),
        ):
            try:
                read.add(await operation or b"mine")
            except FileError:
                continue
    await process.kill()
    await process.wait(20)
    assert read <= {b"mine"}
    await sandbox.exec("rm -rf swap link real")


async def test_links_and_devices_in_place_of_files(sandbox: Sandbox) -> None:
    await sandbox.exec(
        "ln -s /proc/self/environ a; ln -s ../run b; ln -s /proc/1/root c; mkfifo d; ln -s d e; ln -s f f; "
        "ln -s /dev/zero g; mkdir -p h && ln -s /etc/passwd h/i"
    )
    for path in ("a", "b/runner.sock", "c/etc/passwd", "d", "e", "f", "g", "h/i", "/proc/1/root/etc/passwd"):
        with pytest.raises(FileError):
            async with asyncio.timeout(20):  # a pipe nobody writes to must not block
                await sandbox.read_file(path)
    entries = {entry.path: entry.kind for entry in await sandbox.list_files(recursive=True)}
    assert entries["h/i"] == "link"
    await sandbox.exec("rm -rf a b c d e f g h")
