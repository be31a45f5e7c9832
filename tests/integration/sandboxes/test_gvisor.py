"""What only the gVisor tier promises: its own kernel inside, helpers of little power outside, and sandboxes
that are saved with their processes.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import (
    ImageSpec,
    InvalidSpec,
    Limits,
    Sandbox,
    SandboxBusy,
    SandboxFailed,
    SandboxNotFound,
    SandboxSpec,
    SandboxState,
    StaleEpoch,
)
from sandboxes.process import Process
from sandboxes.tiers.gvisor import GvisorTier

TURN = "import json, sys\nstate = json.load(sys.stdin)\nprint(json.dumps({'seen': state}))\n"
COUNT = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.05; done"
Spec = Callable[..., SandboxSpec]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def tier(root: Path) -> Iterator[GvisorTier]:
    tier = GvisorTier(root)
    probe = asyncio.run(tier.probe())
    if not probe.ok:
        pytest.skip(f"gvisor: {probe.lacks[0].why}")
    yield tier

    async def destroy_all() -> None:
        for info in await tier.list():
            await tier.destroy(info.name)

    asyncio.run(destroy_all())
    assert set(os.listdir(root)) <= {".lock", ".trash", ".disks"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    image = tmp_path_factory.mktemp("image")
    (image / "take_turn.py").write_text(TURN)
    image.chmod(0o755)

    def make(name: str, epoch: int = 1, **limits: float) -> SandboxSpec:
        found = Limits(**limits)  # type: ignore[arg-type]
        return SandboxSpec(name=name, epoch=epoch, image=ImageSpec(name="x", root=image), limits=found)

    return make


@pytest.fixture(scope="module")
def living(tier: GvisorTier, spec: Spec) -> Sandbox:
    """A sandbox that tests share which neither end nor freeze it."""
    return asyncio.run(tier.create(spec("living")))


@pytest.fixture
async def name(tier: GvisorTier) -> AsyncIterator[str]:
    yield "saved"
    await tier.destroy("saved")
    assert (await tier.inspect("saved")).leftovers == ()


async def pid_of(tier: GvisorTier, name: str) -> int:
    pid = (await tier.inspect(name)).pid
    assert pid is not None
    return pid


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}


async def test_the_kernel_inside_is_not_the_hosts(living: Sandbox) -> None:
    inside = (await living.exec(["uname", "-rv"])).text.split()
    assert inside[0] != os.uname().release
    assert "gvisor" in (await living.exec(["dmesg"])).text.lower()


async def test_its_helpers_are_nobody_on_the_host(tier: GvisorTier, living: Sandbox) -> None:
    pids = tier._processes("living", tier._records.load("living"))
    assert len(pids) >= 3
    assert await pid_of(tier, "living") in pids
    for pid in pids:
        status = status_of(pid)
        assert set(status["Uid"].split()) == {"65534"}, status["Name"]
        assert status["NoNewPrivs"] == "1"
        assert Path(f"/proc/{pid}/uid_map").read_text().split()[-3:] != [
            "0",
            "0",
            "4294967295",
        ]  # own namespace


async def test_what_it_writes_belongs_to_its_own_uid(tier: GvisorTier, living: Sandbox) -> None:
    await living.exec("mkdir -p mine && touch mine/file")
    await living.write_file("by-runner", b"x")
    uid = (await tier.inspect("living")).uid
    record = tier._records.load("living")
    assert record is not None
    for path in ("mine", "mine/file", "by-runner"):
        assert (tier._workspace("living", record) / path).stat().st_uid == uid


async def test_the_agent_is_not_the_runner(living: Sandbox) -> None:
    code = (
        "import os, signal\n"
        "def attempt(what, *args):\n"
        "    try: what(*args)\n"
        "    except OSError as error: return error.strerror\n"
        "    return 'done'\n"
        "print(os.getresuid(), attempt(os.kill, 1, 9), attempt(os.setuid, 0), attempt(os.seteuid, 0),\n"
        "      attempt(os.listdir, '/run/skylease'), attempt(open, '/proc/1/mem'), attempt(os.setgroups, []))"
    )
    said = (await living.exec(["python3", "-c", code])).text.strip()
    refused, denied = "Operation not permitted", "Permission denied"
    assert said == f"(1000, 1000, 1000) {refused} {refused} {refused} {denied} {denied} {refused}"
    assert (await living.exec("echo alive")).text == "alive\n"


async def test_an_orphan_dies_with_its_own_command_and_not_with_another(living: Sandbox) -> None:
    """gVisor has no subreapers: whose child an orphan was is known by its group."""
    await living.exec("rm -f orphan; mkfifo orphan")
    running = asyncio.ensure_future(
        living.exec("(setsid sh -c 'cat orphan; echo survived > proof' &); sleep 60")
    )
    while (await living.exec("pgrep -c cat; true")).text != "1\n":
        await asyncio.sleep(0.02)
    assert (await living.exec("echo other")).text == "other\n"  # its end is when strays are hunted
    await living.exec("echo go > orphan")
    async with asyncio.timeout(60):
        while not await living.exists("proof"):
            await asyncio.sleep(0.02)
    running.cancel()
    leaving = await living.exec("(setsid sleep 98765407 &); sleep 0.1")
    assert leaving.exit_code == 0
    assert (await living.exec("pgrep -f 9876540[7] | wc -l")).text.strip() == "0"


async def test_a_killed_kernel_leaves_nothing_after_destroy(tier: GvisorTier, name: str, spec: Spec) -> None:
    await tier.create(spec(name))
    before = tier._processes(name, tier._records.load(name))
    os.kill(await pid_of(tier, name), signal.SIGKILL)
    async with asyncio.timeout(30):
        while (await tier.inspect(name)).state is not SandboxState.FAILED:
            await asyncio.sleep(0.01)
    await tier.destroy(name)
    assert not [pid for pid in before if os.path.exists(f"/proc/{pid}/exe")]  # a zombie has none


# saving


async def test_a_sandbox_is_saved_with_its_processes(
    tier: GvisorTier, name: str, spec: Spec, tmp_path: Path
) -> None:
    sandbox = await tier.create(spec(name))
    process = await sandbox.start_process(COUNT)
    await sandbox.exec("echo kept > /tmp/kept; mkdir deep; chmod 700 deep; echo x > deep/file")
    session = await sandbox.create_session(session="one", env={"NAME": "value"})
    await sandbox.close()
    saved = tmp_path / "saved"
    await tier.checkpoint(name, saved)
    assert (await tier.inspect(name)).state is SandboxState.DELETED
    assert (await tier.inspect(name)).leftovers == ()
    again = await tier.restore(spec(name, epoch=2), saved)
    assert not saved.exists()
    assert (
        await again.exec("cat /tmp/kept deep/file; echo $NAME", session=session)
    ).text == "kept\nx\nvalue\n"
    counted = await again.read_file("count")
    async with asyncio.timeout(60):
        while await again.read_file("count") == counted:  # its process goes on
            await asyncio.sleep(0.02)
    assert (await Process(again._ask, process.id).logs()).stderr == b""
    assert (await again.turn({"n": 1}, turn=1)).action == {"seen": {"n": 1}}
    with pytest.raises(StaleEpoch):
        await sandbox.exec("true")
    await tier.checkpoint(name, tmp_path / "twice", epoch=2)
    third = await tier.restore(spec(name, epoch=2), tmp_path / "twice")
    assert (await third.exec("cat /tmp/kept")).text == "kept\n"


async def test_a_sandbox_in_use_is_not_saved(tier: GvisorTier, name: str, spec: Spec, tmp_path: Path) -> None:
    sandbox = await tier.create(spec(name))
    line = "touch begun; until [ -e go ]; do sleep 0.02; done; echo done"
    running = asyncio.ensure_future(sandbox.exec(line))
    while not await sandbox.exists("begun"):
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxBusy):
        await tier.checkpoint(name, tmp_path / "saved")
    await sandbox.write_file("go", b"")
    assert (await running).text == "done\n"
    for directory in (tier._records.root / "saved-here", tmp_path):
        with pytest.raises(InvalidSpec):
            await tier.checkpoint(name, directory)
    assert tmp_path.exists()
    with pytest.raises(StaleEpoch):
        await tier.checkpoint(name, tmp_path / "saved", epoch=0)
    assert not (tmp_path / "saved").exists()
    listener = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('here')\ns.listen()\ninput()"
    process = await sandbox.start_process(["python3", "-c", listener])
    async with asyncio.timeout(60):
        while not await sandbox.exists("here"):
            await asyncio.sleep(0.02)
    await sandbox.close()
    with pytest.raises(SandboxBusy, match="a socket at here"):  # gVisor would end it
        await tier.checkpoint(name, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    await process.kill()
    with pytest.raises(SandboxNotFound):
        await tier.checkpoint("nobody", tmp_path / "saved")


async def test_what_cannot_be_restored_is_kept(
    tier: GvisorTier, name: str, spec: Spec, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSpec, match="no saved sandbox"):
        await tier.restore(spec(name), tmp_path)
    sandbox = await tier.create(spec(name, epoch=3))
    await sandbox.write_file("kept", b"1")
    await sandbox.close()
    saved = tmp_path / "saved"
    await tier.checkpoint(name, saved)
    with pytest.raises(InvalidSpec, match="saved with name"):
        await tier.restore(replace(spec(name), name="other"), saved)
    image = saved / "processes" / "checkpoint.img"
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SandboxFailed):
        await tier.restore(spec(name, epoch=3), saved)
    assert (saved / "checkpoint.json").exists()
    image.write_bytes(whole)
    again = await tier.restore(spec(name, epoch=3), saved)
    assert await again.read_file("kept") == b"1"
