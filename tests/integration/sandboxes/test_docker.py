"""The docker tier on a real engine: what the engine and the kernel say of a container, and what happens when
others meddle with it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sandboxes
from sandboxes import (
    AllowedHost,
    Egress,
    ImageNotBuilt,
    ImageSpec,
    InvalidSpec,
    Limits,
    Sandbox,
    SandboxGone,
    SandboxNotFound,
    SandboxSpec,
    SandboxState,
    SlotSpec,
    connect_sandbox,
)
from sandboxes.tiers.docker_container import Plan, container_config
from sandboxes.tiers.docker_engine import Container, Engine
from sandboxes.tiers.docker_probe import Reach
from sandboxes.tiers.docker_tier import DockerTier

REFERENCE = "skylease/base:dev"
NAME = f"docker-{os.getpid()}"
PROJECT = Path(sandboxes.__file__).parent.parent
ORDINARY_UID = 19_989  # below the range of sandboxes, no account
is_root = os.geteuid() == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    root = tmp_path_factory.mktemp("image")
    (root / "take_turn.py").write_text(
        "import json, sys\nprint(json.dumps({'seen': json.load(sys.stdin)}))\n"
    )
    return ImageSpec(name="test", root=root, reference=REFERENCE)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def tier(root: Path, image: ImageSpec) -> DockerTier:
    tier = DockerTier(root)
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"docker: {probe.lacks[0].why}")
    if not asyncio.run(tier.has_image(image)):
        pytest.skip(f"the image {REFERENCE} is not built (skylease images build base)")
    return tier


@pytest.fixture(scope="module")
def engine(tier: DockerTier) -> Iterator[Engine]:
    engine = Engine()
    yield engine
    assert engine.labels(f"skylease.root={tier._records.root}") == {}  # every test cleans up
    engine.close()


@pytest.fixture
async def held(tier: DockerTier, engine: Engine, image: ImageSpec) -> AsyncIterator[Sandbox]:
    """A sandbox, and afterwards none."""
    limits = Limits(memory_bytes=128 << 20, pids=40)
    labels = {"skylease.lease": "did:plc:a::catan-7", "skylease.owner": "did:plc:a"}
    yield await tier.create(
        SandboxSpec(name=NAME, epoch=3, image=image, limits=limits, labels=labels, env={"GIVEN": "yes"})
    )
    await tier.destroy(NAME)
    assert (await tier.inspect(NAME)).leftovers == ()


def container_of(tier: DockerTier, engine: Engine) -> Container:
    found = engine.inspect(tier._container(NAME))
    assert found is not None
    return found


async def until_dead(tier: DockerTier) -> None:
    async with asyncio.timeout(30):
        while (await tier.inspect(NAME)).state is not SandboxState.FAILED:
            await asyncio.sleep(0.01)


async def test_what_the_kernel_says_of_process_one(held: Sandbox, tier: DockerTier) -> None:
    info = await tier.inspect(NAME)
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{info.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["Seccomp_filters"]) == 2  # Docker's default and ours
    assert status["NSpid"].split()[-1] == "1"
    uid = info.uid if is_root else os.geteuid()
    assert set(status["Uid"].split()) == {str(uid)}
    for kind in ("net", "pid", "mnt", "ipc", "uts", "cgroup"):
        assert os.readlink(f"/proc/{info.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")


async def test_labels_say_whose_it_is(held: Sandbox, tier: DockerTier, engine: Engine, root: Path) -> None:
    labels = container_of(tier, engine).labels
    wanted = {
        "skylease.name": NAME,
        "skylease.root": str(root),
        "skylease.epoch": "3",
        "skylease.tier": "docker",
        "skylease.lease": "did:plc:a::catan-7",
        "skylease.owner": "did:plc:a",
    }
    assert wanted.items() <= labels.items()  # beside those of the image


FORBIDDEN = {
    "root-file-system": "open('/usr/bin/x', 'w')",
    "proc-sys": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "sysrq": "open('/proc/sysrq-trigger', 'w').write('h')",
    "cgroup": "open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w').write('-1')",
    "own-code": "open('/run/skylease/boot/runner.pyz', 'r+b')",
    "image": "open('/image/take_turn.py', 'a')",
    "passwd": "open('/etc/passwd', 'a')",
    "memory-of-process-one": "open('/proc/1/mem', 'rb')",
    "environment-of-process-one": "open('/proc/1/environ', 'rb').read()",
    "descriptors-of-process-one": "os.listdir('/proc/1/fd')",
    "raw-socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "network": "socket.create_connection(('192.0.2.1', 80), 1)",
    "root": "os.setuid(0)",
    "mount": "check(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))",
    "unshare": "check(libc.unshare(0x10000000))",
    "ptrace": "check(libc.ptrace(0, 0, 0, 0))",
    "keyctl": "check(libc.syscall(250, 0, -3, 0))",
    "boot-socket": "socket.socket(socket.AF_UNIX).connect('/run/skylease/boot/boot.sock')",
}


async def test_what_is_forbidden_inside_fails(held: Sandbox) -> None:
    script = (
        "import ctypes, json, os, socket, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def check(code):\n    if code < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
        "done = {}\n"
        "for name, code in json.load(sys.stdin).items():\n"
        "    try: exec(code); done[name] = 'DONE'\n"
        "    except OSError as error: done[name] = error.errno\n"
        "print(json.dumps([name for name in done if done[name] == 'DONE']))\n"
    )
    result = await held.exec(["python3", "-c", script], stdin=json.dumps(FORBIDDEN).encode())
    assert (result.text, result.stderr_text) == ("[]\n", "")


async def test_nothing_inside_can_end_process_one(held: Sandbox) -> None:
    await held.exec("kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1; kill -9 -1")
    result = await held.turn({"n": 1}, turn=1)
    assert result.action == {"seen": {"n": 1}}


async def test_only_the_spec_and_the_basics_are_in_the_environment(held: Sandbox) -> None:
    names = {line.partition("=")[0] for line in (await held.exec("env")).text.splitlines()}
    basics = {"PATH", "HOME", "LANG", "TERM", "PYTHONUSERBASE", "NPM_CONFIG_PREFIX", "TMPDIR", "PWD"}
    assert names - {"_", "OLDPWD", "SHLVL"} == basics | {"GIVEN"}


async def test_a_memory_bomb_ends_alone(held: Sandbox) -> None:
    bomb = ["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]
    assert (await held.exec(bomb)).exit_code in (137, 1)
    assert (await held.exec("head -c 200M /dev/zero > /tmp/fill")).exit_code != 0
    assert (await held.exec("head -c 200M /dev/zero > /dev/shm/fill")).exit_code != 0
    assert (await held.turn({"n": 2}, turn=2)).action == {"seen": {"n": 2}}


async def test_a_fork_bomb_meets_the_limit_and_the_next_turn_works(held: Sandbox) -> None:
    code = (
        "import os, time\nn = 0\ntry:\n    while os.fork(): n += 1\n    time.sleep(9)\n"
        "except OSError: print(n)"
    )
    assert int((await held.exec(["python3", "-c", code])).text) <= 48
    assert (await held.turn({"n": 3}, turn=3)).action == {"seen": {"n": 3}}


async def test_a_container_killed_behind_our_back_is_dead_at_once_and_comes_back(
    held: Sandbox, tier: DockerTier, engine: Engine
) -> None:
    await held.write_file("kept", b"1")
    await held.write_file("/tmp/lost", b"1")
    running = asyncio.ensure_future(held.exec("touch begun; sleep 600", timeout=600))
    while not await held.exists("begun"):
        await asyncio.sleep(0.01)
    engine.kill(container_of(tier, engine).id)
    with pytest.raises(SandboxGone):
        await running
    await until_dead(tier)
    again = await tier.connect(NAME, epoch=7)
    assert await again.read_file("kept") == b"1"
    assert not await again.exists("/tmp/lost")
    assert (await again.exec("echo $GIVEN")).text == "yes\n"
    assert (await tier.inspect(NAME)).epoch == 7
    assert (await connect_sandbox(held.directory, epoch=7).turn({}, turn=1)).action == {"seen": {}}


async def test_a_container_stopped_or_restarted_by_hand_comes_back(
    held: Sandbox, tier: DockerTier, engine: Engine
) -> None:
    container = container_of(tier, engine)
    begun = time.monotonic()
    await asyncio.to_thread(subprocess.run, ["docker", "restart", container.id], check=True, timeout=120)
    assert time.monotonic() - begun < 9.5  # not the ten seconds of a process 1 that ignores TERM
    await until_dead(tier)  # its new runner was told nothing, and ends
    assert (await (await tier.connect(NAME)).exec("echo back")).text == "back\n"


async def test_a_container_removed_behind_our_back_is_not_found(
    held: Sandbox, tier: DockerTier, engine: Engine
) -> None:
    engine.remove(container_of(tier, engine).id)
    await until_dead(tier)
    with pytest.raises(SandboxNotFound, match="its container was removed"):
        await tier.connect(NAME)
    assert await tier.sweep() == (NAME,)


async def test_its_time_is_over_even_if_it_was_stopped_meanwhile(
    tier: DockerTier, engine: Engine, image: ImageSpec
) -> None:
    spec = SandboxSpec(name=NAME, epoch=1, image=image, limits=Limits(wall_deadline_s=3600))
    await tier.create(spec)
    engine.kill(container_of(tier, engine).id)
    late = DockerTier(tier._records.root, clock=lambda: time.time_ns() // 1_000_000 + 3_601_000)
    with pytest.raises(SandboxNotFound, match="its time is over"):
        await late.connect(NAME)
    await tier.destroy(NAME)


@pytest.mark.skipif(not is_root, reason="slots need root")
async def test_what_was_a_slot_comes_back_with_all_that_came_with_its_claim(
    tier: DockerTier, engine: Engine, image: ImageSpec, tmp_path: Path
) -> None:
    slot = f"slot-{os.getpid():016x}"
    await tier.warm(SlotSpec(name=slot, image=image, limits=Limits()))
    (tmp_path / "kept").write_text("of the agent")
    env, egress = {"GIVEN": "yes"}, Egress(hosts=(AllowedHost(host="example.com"),))
    spec = SandboxSpec(name=NAME, epoch=3, image=image, data_dir=tmp_path, env=env, egress=egress)
    held = await tier.claim(slot, spec)
    await held.write_file("work", b"1")
    assert container_of(tier, engine).labels["skylease.name"] == slot  # an engine changes no labels
    engine.kill(container_of(tier, engine).id)
    await until_dead(tier)
    again = await tier.connect(NAME, epoch=4)
    look = "cat work /data/kept; echo $GIVEN $HTTPS_PROXY; ls /run/skylease"
    text = (await again.exec(look)).text
    assert text.startswith("1of the agentyes http://127.0.0.1:3128\nboot\negress\n")
    assert (await again.exec("echo more > /data/more; rm /run/skylease/egress")).exit_code != 0
    assert (tmp_path / "more").read_text() == "more\n"
    await tier.destroy(NAME)
    assert (await tier.inspect(NAME)).leftovers == ()


def left_behind(tier: DockerTier) -> dict[str, Any]:
    """A container such as a creator leaves that dies before it is started."""
    labels = {"skylease.name": NAME, "skylease.root": str(tier._records.root)}
    plan = Plan(image=REFERENCE, command=("true",), user="20001:20001", limits=Limits(), labels=labels)
    return container_config(plan)


async def test_a_container_without_a_directory_is_swept(tier: DockerTier, engine: Engine) -> None:
    engine.create(tier._container(NAME), left_behind(tier))
    assert (await tier.inspect(NAME)).leftovers == (f"container {tier._container(NAME)}",)
    other = DockerTier(tier._records.root.parent / "other")
    assert await other.sweep() == ()  # another root's containers are not its own
    assert await tier.sweep() == (NAME,)
    assert (await tier.inspect(NAME)).state is SandboxState.DELETED


async def test_a_name_left_by_a_dead_creator_does_not_block(
    tier: DockerTier, engine: Engine, image: ImageSpec
) -> None:
    engine.create(tier._container(NAME), left_behind(tier))
    sandbox = await tier.create(SandboxSpec(name=NAME, epoch=1, image=image))
    assert (await sandbox.exec("echo new")).text == "new\n"
    await tier.destroy(NAME)


async def test_an_image_that_is_not_built_is_said_with_the_command_that_builds_it(
    tier: DockerTier, image: ImageSpec
) -> None:
    missing = replace(image, name="chess", reference="skylease/chess:dev")
    with pytest.raises(ImageNotBuilt) as caught:
        await tier.create(SandboxSpec(name=NAME, epoch=1, image=missing))
    assert str(caught.value) == (
        "the image skylease/chess:dev is not built: run `skylease images build chess`"
    )
    assert (await tier.inspect(NAME)).leftovers == ()
    assert not await tier.has_image(missing)
    with pytest.raises(InvalidSpec, match="names no OCI image"):
        await tier.create(SandboxSpec(name=NAME, epoch=1, image=replace(image, reference=None)))


async def test_destroy_never_waits_for_a_process(held: Sandbox, tier: DockerTier) -> None:
    await held.start_process("trap '' TERM INT HUP; while :; do sleep 1; done")
    begun = time.monotonic()
    await tier.destroy(NAME)
    assert time.monotonic() - begun < 9  # 0.1 s alone; Docker's own stop would take ten


BRIDGED = [Reach.FILES, Reach.NOTHING]


@pytest.fixture(scope="module", params=BRIDGED)
def bridged(
    request: pytest.FixtureRequest, root: Path, tier: DockerTier, image: ImageSpec
) -> Iterator[tuple[DockerTier, ImageSpec]]:
    """A tier that may not share its sockets, or nothing at all, and an image for it."""
    other = DockerTier(root.parent / f"bridged-{request.param}", reach=request.param)
    assert asyncio.run(other.probe()).ok
    if request.param is Reach.FILES:
        yield other, image
        return
    tag = f"skylease-test-{os.getpid()}:bridged"
    subprocess.run(
        ["docker", "build", "-q", "-t", tag, "-f", "-", str(image.root)],
        input=f"FROM {REFERENCE}\nCOPY take_turn.py /image/take_turn.py\n",
        text=True,
        check=True,
        timeout=250,
        capture_output=True,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    yield other, replace(image, reference=tag, bind_root=False)
    subprocess.run(["docker", "rmi", "-f", tag], check=True, timeout=250, capture_output=True)


async def test_a_bridged_sandbox_is_like_any_other(bridged: tuple[DockerTier, ImageSpec]) -> None:
    tier, image = bridged
    sandbox = await tier.create(SandboxSpec(name=NAME, epoch=1, image=image, labels={"node": "n"}))
    try:
        assert (await sandbox.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}}
        content = os.urandom(6 << 20)
        await sandbox.write_file("large", content)
        assert await sandbox.read_file("large") == content
        results = await asyncio.gather(*(sandbox.exec(f"sleep 0.1; echo {n}") for n in range(8)))
        assert [result.text for result in results] == [f"{n}\n" for n in range(8)]
        other = connect_sandbox(sandbox.directory, epoch=2)
        assert (await other.exec("echo second connection")).text == "second connection\n"
        command = asyncio.ensure_future(other.exec("touch begun; sleep 60"))
        while not await other.exists("begun"):
            await asyncio.sleep(0.01)
        await other.close()
        await asyncio.gather(command, return_exceptions=True)
        again = await tier.connect(NAME, epoch=2)
        assert (await again.exec("ps -e -o args= | grep -c '^sleep 60'")).text == "0\n"
        # the runner's socket can be seen inside, and answers to nobody there
        script = (
            "import socket\ns = socket.socket(socket.AF_UNIX)\n"
            "s.connect('\\0skylease-runner')\ns.sendall(b'x' * 64)\n"
            "try: print(s.recv(1))\nexcept ConnectionError: print(b'')"
        )
        assert "b''" in (await again.exec(["python3", "-c", script])).text
    finally:
        await tier.destroy(NAME)
    assert (await tier.inspect(NAME)).leftovers == ()


async def test_a_bridge_that_is_killed_is_replaced(bridged: tuple[DockerTier, ImageSpec]) -> None:
    tier, image = bridged
    sandbox = await tier.create(SandboxSpec(name=NAME, epoch=1, image=image))
    try:
        await sandbox.exec("echo 1 > kept")
        pid = (await tier.inspect(NAME)).pid
        assert pid is not None
        os.kill(pid, 9)
        await until_dead(tier)
        again = await tier.connect(NAME)
        assert (await again.exec("cat kept")).text == "1\n"
        await tier.freeze(NAME)
        assert (await tier.inspect(NAME)).state is SandboxState.WAITING
        assert (await again.exec("echo thawed")).text == "thawed\n"
        await asyncio.to_thread(tier._engine.kill, tier._container(NAME))
        await until_dead(tier)  # its bridge ends with it
    finally:
        await tier.destroy(NAME)
    assert (await tier.inspect(NAME)).leftovers == ()


def test_the_shadow_of_a_removed_container_is_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = {"Names": [], "Labels": {"skylease.name": "bomber"}, "State": "removing"}
    real = {"Names": ["/skylease-x"], "Labels": {"skylease.name": "x"}, "State": "exited"}
    engine.version()
    monkeypatch.setattr(engine._client, "containers", lambda **_: [shadow, real])
    assert engine.labels("skylease.root=/x") == {"skylease-x": {"skylease.name": "x"}}


def test_a_member_of_the_group_docker_needs_no_root(engine: Engine) -> None:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    if not is_root:
        pytest.skip("only root can become another user (the suite has just run as an ordinary one)")
    kind, _, socket = engine.host.partition("://")
    if kind != "unix":
        pytest.skip("a remote engine asks for keys, not for a group")
    version = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, check=False).stdout
    if f" {sys.version_info[0]}.{sys.version_info[1]}." not in version:
        pytest.skip("/usr/bin/python3 is another Python, so our packages do not fit")
    home = Path("/var/tmp") / f"skylease-docker-{os.getpid()}"  # pytest's own directory is for root alone
    home.mkdir(mode=0o700)
    os.chown(home, ORDINARY_UID, ORDINARY_UID)
    chosen = "docker and (adopts_it or wakes_with_its_next or however_busy or frozen_sandbox_can_be)"
    try:
        done = subprocess.run(
            [
                *("/usr/bin/python3", "-m", "pytest", "tests/contract/test_life.py", "-q", "-k", chosen),
                *("-p", "no:cacheprovider", f"--basetemp={home}/tests"),
            ],
            cwd=PROJECT,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "PYTHONPATH": ":".join([str(PROJECT), *packages]),
                "DOCKER_HOST": engine.host,
            },
            user=ORDINARY_UID,
            group=ORDINARY_UID,
            extra_groups=[Path(socket).stat().st_gid],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
