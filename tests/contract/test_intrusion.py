"""Attempts to see, reach and trick what is not the sandbox's own, and what the kernel is asked meanwhile:
after each of them the node is as it was and a neighbour lives on unharmed.
"""

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sandboxes import FileError, Sandbox
from tests.attacks import own_kernel, python

pytestmark = pytest.mark.usefixtures("unharmed")

PLACES = "/tmp /run /var /dev /data /workspace /image /home /root /srv /mnt /media /opt"  # all but the system


@pytest.fixture
def sandbox(attacker: Sandbox) -> Sandbox:
    """The one that attacks."""
    return attacker


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
