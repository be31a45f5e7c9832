"""Warm slots: nobody's until one is claimed, and then a sandbox like any other."""

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    AllowedHost,
    Egress,
    InvalidSpec,
    Limits,
    Mount,
    Sandbox,
    SandboxExists,
    SandboxGone,
    SandboxNotFound,
    SandboxSpec,
    SandboxState,
    SlotGone,
    SlotSpec,
    StaleEpoch,
    TierUnavailable,
    connect_sandbox,
    fitting,
    is_slot_name,
)
from sandboxes.sleep import resume, suspend
from sandboxes.snapshots import LocalStore, Snapshots
from sandboxes.tiers import inlay as inlay_module
from sandboxes.tiers import warm as warm_module
from sandboxes.tiers.record import Records

SLOTLESS = {"gvisor"}  # as conftest has it
Warm = Callable[..., Awaitable[str]]


@pytest.fixture
async def warm(bench: Any) -> AsyncIterator[Warm]:
    """Makes a slot and returns its name; at the end nothing of any may be left."""
    why_not = await bench.tier.can_warm()
    if why_not:
        pytest.skip(f"{bench.tier.name} keeps no slots: {why_not}")
    made = []

    async def make(limits: Limits | None = None) -> str:
        spec = slot_spec(bench, limits)
        made.append(spec.name)
        await bench.tier.warm(spec)
        return spec.name

    yield make
    assert [info.name for info in await bench.tier.list() if is_slot_name(info.name)] == []
    for slot in made:
        await bench.tier.destroy(slot)
    for info in await bench.tier.list():
        await bench.tier.destroy(info.name)
    for slot in made:
        await bench.check_gone(slot)
    assert list(bench.root.glob(".handles/*")) == []
    assert list((bench.root / ".slots").iterdir()) == []


def slot_spec(bench: Any, limits: Limits | None = None) -> SlotSpec:
    return SlotSpec(name=f"slot-{secrets.token_hex(8)}", image=bench.image, limits=limits or Limits())


async def test_where_there_are_no_slots_it_is_said_why(bench: Any) -> None:
    why_not = await bench.tier.can_warm()
    if os.geteuid() == 0:
        assert (why_not is None) == (bench.tier.name not in SLOTLESS)
    if why_not is not None:
        with pytest.raises(TierUnavailable, match=re.escape(why_not)):
            await bench.tier.warm(slot_spec(bench))
    assert list(await bench.tier.slots()) == []
    with pytest.raises(SlotGone):
        await bench.tier.claim("slot-0123456789abcdef", bench.spec("absent"))
    assert (await bench.tier.inspect("absent")).state is SandboxState.DELETED


async def test_a_claimed_slot_is_a_sandbox_of_that_name(bench: Any, warm: Warm, name: str) -> None:
    slot = await warm()
    (found,) = await bench.tier.slots()
    assert (found.name, found.state) == (slot, SandboxState.WARM)
    assert found.fits == fitting(bench.image, Limits())
    assert await bench.tier.list() == []
    spec = bench.spec(name, epoch=3, labels={"lease": "a"}, env={"WHO": "me"})
    made = await bench.again().claim(slot, spec)
    assert (await made.exec("echo $WHO")).text == "me\n"
    assert (await made.turn({"code": "print(json.dumps(dict(os.environ)))"}, turn=1)).action["WHO"] == "me"
    assert await bench.tier.slots() == ()
    (info,) = await bench.tier.list({"lease": "a"})
    assert (info.name, info.state, info.epoch, info.uid) == (name, SandboxState.WARM, 3, found.uid)
    assert info.labels == {"lease": "a"}
    assert (await bench.tier.inspect(slot)).state is SandboxState.DELETED
    assert await bench.tier.sweep() == ()
    await bench.tier.destroy(slot)  # it is nobody's name any more
    assert (await (await bench.again().connect(name)).exec("echo there")).text == "there\n"
    await bench.again().destroy(name)
    await bench.check_gone(name)
    await bench.check_gone(slot)


async def test_nothing_can_be_done_in_a_slot(bench: Any, warm: Warm) -> None:
    slot = await warm()
    for method in (bench.tier.connect, bench.tier.freeze, bench.tier.thaw, bench.tier.workspace):
        with pytest.raises(SandboxNotFound):
            await method(slot)
    inside = connect_sandbox(bench.root / ".slots" / slot, epoch=9)
    with pytest.raises(InvalidSpec, match="warm slot"):
        await inside.exec(["true"])
    with pytest.raises(InvalidSpec, match="warm slot"):
        await inside.write_file("early", b"")
    await inside.close()
    with pytest.raises(InvalidSpec, match="name of a warm slot"):
        await bench.tier.create(bench.spec(slot))
    assert (await bench.tier.sweep(), [info.name for info in await bench.tier.slots()]) == ((), [slot])
    await bench.again().destroy(slot)
    assert await bench.tier.slots() == ()


async def test_a_slot_holds_nobodys_secrets(bench: Any, warm: Warm, name: str) -> None:
    slot, secret = await warm(), secrets.token_hex(16)
    made = await bench.tier.claim(await warm(), bench.spec(name, env={"KEY": secret}, labels={"of": secret}))
    assert (await made.exec("echo $KEY")).text.strip() == secret
    (info,) = await bench.tier.slots()
    assert secret.encode() not in Path(f"/proc/{info.pid}/environ").read_bytes()
    found = 0
    for directory, _, names in os.walk(bench.root / ".slots" / slot):
        for path in (Path(directory) / file for file in names if file != "runner.sock"):
            found += 1
            assert secret.encode() not in path.read_bytes(), path
    assert found
    other = await bench.tier.claim(slot, bench.spec(f"{name}-other"))
    assert (await other.exec("env; cat /proc/*/environ /proc/*/cmdline 2>&1")).stdout.count(
        secret.encode()
    ) == 0


LOOK = r"""
import ctypes, resource
def words(path):
    with open(path) as file:
        return file.read().split("\n")
skipped = ("Pid", "NSpid", "Tgid", "PPid", "Ngid", "NStgid", "NSsid", "NSpgid", "Vm", "Rss", "Hugetlb",
           "SigQ", "voluntary", "nonvoluntary", "Cpus", "Mems", "Threads")
mounts = []
for line in words("/proc/self/mountinfo"):
    left, _, right = line.partition(" - ")
    if left:
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        mounts.append([fields[4], fields[5], kind, "" if kind == "overlay" else options])
print(json.dumps({
    "env": {k: v for k, v in os.environ.items() if k != "TURN_DATA"},
    "cwd": os.getcwd(), "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "limits": {k: resource.getrlimit(v) for k, v in vars(resource).items() if k.startswith("RLIMIT")},
    "status": [line for line in words("/proc/self/status") if not line.startswith(skipped)],
    "oom": words("/proc/self/oom_score_adj"), "host": os.uname().nodename,
    "mounts": sorted(mounts), "top": sorted(os.listdir("/")), "run": sorted(os.listdir("/run")),
    "fds": sorted(os.listdir("/proc/self/fd")), "sys": [sys.argv, sys.path, sys.flags],
    "room": [[v.f_blocks, v.f_files] for v in map(os.statvfs, ["/tmp", "/dev/shm", os.getcwd()])],
    "here": [sorted(os.listdir(path)) for path in [".", os.environ["TMPDIR"], "/tmp/.."]],
    "mine": [os.stat(".").st_uid == os.getuid(), oct(os.stat(".").st_mode)],
    "modules": sorted(sys.modules),
}))
"""


async def test_the_first_turn_sees_what_it_would_in_a_new_sandbox(
    bench: Any, warm: Warm, name: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    seen = []
    for number, owner in enumerate((name, f"{name}-claimed")):
        (tmp_path / str(number)).mkdir()
        (bench.shown / "models").mkdir(exist_ok=True)
        mount = Mount(source=bench.shown / "models", target="/models/small")
        egress = None if bench.lacks("egress") else Egress(hosts=(AllowedHost(host="example.com"),))
        spec = bench.spec(
            owner, data_dir=tmp_path / str(number), env={"A": "b"}, mounts=(mount,), egress=egress
        )
        made: Sandbox = await (bench.tier.claim(await warm(), spec) if number else bench.tier.create(spec))
        turned = await made.turn({"code": LOOK}, turn=1)
        assert turned.action is not None, turned
        if bench.lacks("isolation"):  # it sees the mounts of the machine, which come and go
            del turned.action["mounts"]
        uid = str((await bench.tier.inspect(owner)).uid)
        text = json.dumps(turned.action, indent=1, sort_keys=True)
        text = re.sub(r"turn-\d+-[0-9a-f]+", "TURN", text).replace(str(tmp_path / str(number)), "DATA")
        seen.append(
            re.sub(rf"(?<!\d){uid}(?!\d)", "UID", text.replace(f"/{owner}/", "/NAME/").replace(owner, "NAME"))
        )
        await bench.tier.destroy(owner)
    assert seen[0].splitlines() == seen[1].splitlines()
    await bench.check_gone(f"{name}-claimed")


async def test_data_and_mounts_come_with_the_claim(bench: Any, warm: Warm, name: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "memory").mkdir(parents=True)
    (tmp_path / "data" / "memory" / "note").write_text("kept")
    (bench.shown / "file").write_text("of the host")
    mount = Mount(source=bench.shown / "file", target="/models/deep/file")
    spec = bench.spec(name, data_dir=tmp_path / "data", mounts=(mount,))
    made = await bench.tier.claim(await warm(), spec)
    assert await made.read_file("/data/memory/note") == b"kept"
    await made.write_file("/data/character.json", b"{}")
    assert (await made.exec("cat memory/note; echo more > more", cwd="/data")).text == "kept"
    if not bench.lacks("mounts"):
        assert (await made.exec("cat /models/deep/file /data/more")).text == "of the hostmore\n"
        hostile = (
            "echo x > /models/deep/file; touch /models/x /models/deep/x /data/../x; umount /data; ls /data"
        )
        tried = await made.exec(hostile)
        assert tried.text.split() == ["character.json", "memory", "more"]
    assert (bench.shown / "file").read_text() == "of the host"
    with pytest.raises(InvalidSpec, match="in use"):
        await bench.tier.claim(await warm(), bench.spec("another", data_dir=tmp_path / "data"))
    await bench.tier.destroy(name)
    assert (tmp_path / "data" / "character.json").read_bytes() == b"{}"


async def test_what_cannot_be_shown_costs_the_slot_and_nothing_else(
    bench: Any, warm: Warm, name: str
) -> None:
    bench.need("mounts")
    slot, outer = await warm(), bench.shown / "outer"
    outer.mkdir(exist_ok=True)
    inner = Mount(source=bench.shown, target="/models/small")  # there is no such directory in the outer one
    spec = bench.spec(name, mounts=(Mount(source=outer, target="/models"), inner))
    with pytest.raises(SlotGone, match="move_mount /models/small: No such file"):
        await bench.tier.claim(slot, spec)
    assert list(outer.iterdir()) == []  # nothing was made on the host to make it fit
    assert list(await bench.tier.slots()) == []
    await bench.check_gone(name)
    await bench.check_gone(slot)


async def test_the_epoch_of_the_claim_fences(bench: Any, warm: Warm, name: str) -> None:
    made = await bench.tier.claim(await warm(), bench.spec(name, epoch=4))
    with pytest.raises(StaleEpoch):
        await connect_sandbox(made.directory, epoch=3).exec(["true"])
    assert (await (await bench.tier.connect(name, epoch=5)).exec("echo new")).text == "new\n"
    with pytest.raises(StaleEpoch):
        await made.exec(["true"])


async def test_a_slot_is_claimed_once(bench: Any, warm: Warm, name: str) -> None:
    slot = await warm()
    specs = [bench.spec(f"{name}-{number}") for number in range(4)]
    results = await asyncio.gather(
        *(bench.again().claim(slot, spec) for spec in specs), return_exceptions=True
    )
    (winner,) = (result for result in results if isinstance(result, Sandbox))
    assert sum(isinstance(result, SlotGone) for result in results) == 3
    with pytest.raises(SlotGone):
        await bench.tier.claim(slot, bench.spec(name))
    assert [info.name for info in await bench.tier.list()] == [winner.name]
    assert (await winner.exec("echo mine")).text == "mine\n"


async def test_what_does_not_fit_leaves_the_slot_as_it_was(
    bench: Any, warm: Warm, name: str, tmp_path: Path
) -> None:
    slot = await warm()
    other = replace(bench.image, preload=("json",))
    unfit = (bench.spec(name, limits=Limits(pids=99)), replace(bench.spec(name), image=other))
    for spec in unfit:
        with pytest.raises(SlotGone, match="another image or other limits"):
            await bench.tier.claim(slot, spec)
    with pytest.raises(SlotGone, match="a disk already"):
        await bench.tier.claim(slot, bench.spec(name, parked=tmp_path / "disk"))
    with pytest.raises(InvalidSpec, match="not a directory"):
        await bench.tier.claim(slot, bench.spec(name, data_dir=tmp_path / "nowhere"))
    with pytest.raises(InvalidSpec, match="slot"):
        await bench.tier.claim("../../etc", bench.spec(name))
    await bench.tier.create(bench.spec("taken"))
    with pytest.raises(SandboxExists):
        await bench.tier.claim(slot, bench.spec("taken"))
    await bench.check_gone(name)
    made = await bench.tier.claim(slot, bench.spec(name, limits=Limits(idle_deadline_s=60)))
    assert (await made.exec("echo fits")).text == "fits\n"


async def test_a_dead_slot_is_gone_and_swept(bench: Any, warm: Warm, name: str) -> None:
    slot = await warm()
    (info,) = await bench.tier.slots()
    os.kill(info.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while (await bench.tier.slots())[0].state is SandboxState.WARM:
            await asyncio.sleep(0.01)
    with pytest.raises(SlotGone, match="dead"):
        await bench.tier.claim(slot, bench.spec(name))
    assert await bench.tier.sweep() == (slot,)
    assert await bench.tier.slots() == ()
    await bench.check_gone(slot)


async def test_deadlines_begin_with_the_claim(bench: Any, warm: Warm, name: str) -> None:
    limits = Limits(idle_deadline_s=1.5)
    slot = await warm(limits)
    await asyncio.sleep(2.0)  # more than the deadline
    made = await bench.tier.claim(slot, bench.spec(name, limits=limits))
    assert (await made.stats())["uptime_s"] < 1.5
    async with asyncio.timeout(30):
        while (await bench.tier.inspect(name)).state is SandboxState.WARM:
            await asyncio.sleep(0.02)
    assert await bench.tier.sweep() == (name,)
    await bench.check_gone(slot)


async def test_it_sleeps_and_wakes_like_any_other(bench: Any, warm: Warm, name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    snapshots = Snapshots(LocalStore(tmp_path / "store"), tmp_path / "scratch")
    made = await bench.tier.claim(await warm(), bench.spec(name, data_dir=data))
    await made.exec("echo kept > file; echo too > noted", cwd="/data")
    await made.write_file("work", b"done")
    await bench.again().freeze(name)
    assert (await bench.tier.inspect(name)).state is SandboxState.WAITING
    assert (await made.exec("cat work")).text == "done"
    assert (await bench.tier.inspect(name)).state is SandboxState.WARM
    await suspend(bench.tier, name, snapshots)
    await bench.check_gone(name)
    again, restored = await resume(bench.again(), bench.spec(name, epoch=2, data_dir=data), snapshots)
    assert restored is not None
    assert (await again.exec("cat work; cat file noted", cwd="/data")).text == "kept\ntoo\n"
    assert await again.read_file("work") == b"done"


async def test_cancelled_ones_leave_nothing(bench: Any, warm: Warm, name: str) -> None:
    slot = await warm()
    for work, left in (
        (bench.tier.warm(slot_spec(bench)), [slot]),
        (bench.tier.claim(slot, bench.spec(name)), []),
    ):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)  # it has begun, and cannot have ended: that takes milliseconds
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [info.name for info in await bench.tier.slots()] == left
        assert await bench.tier.list() == []
    await bench.check_gone(name)


def killed_in_claim(bench: Any, slot: str, spec: SandboxSpec, step: int) -> int:
    """Claim a slot in a child that kills itself before the n-th step of it; return its exit code: how many
    steps there were, if it came to its end.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    count, tier = 0, bench.again()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)

        return call

    code = 100
    try:
        for owner, names in CLAIM_STEPS:
            place = tier if owner is None else owner
            for name in names:
                setattr(place, name, counted(getattr(place, name)))
        asyncio.run(tier.claim(slot, spec))
        code = count
    finally:
        os._exit(code)


CLAIM_STEPS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Records, ("turn_handle", "save")),
    (os, ("rename", "replace")),
    (None, ("_moved", "_told", "_enter")),
    (warm_module, ("prepare", "give_tree", "ask")),
    (inlay_module, ("_make_room", "_attach")),
)


async def test_a_claimer_killed_at_any_step_leaves_nothing_that_sweep_does_not_clear(
    bench: Any, warm: Warm, name: str, tmp_path: Path
) -> None:
    """Seconds long because it kills at each of some fifteen steps."""

    def spec(number: int) -> SandboxSpec:
        data = tmp_path / str(number)
        data.mkdir()
        made: SandboxSpec = bench.spec(f"{name}-{number}", data_dir=data, epoch=2)
        return made

    steps = killed_in_claim(bench, await warm(), spec(0), 0)
    assert 8 < steps < 40
    await bench.tier.destroy(f"{name}-0")
    slots = []
    for _ in range(0, steps, 4):
        slots += await asyncio.gather(*(warm() for _ in range(4)))
    for step, slot in enumerate(slots[:steps], start=1):
        assert killed_in_claim(bench, slot, spec(step), step) == -signal.SIGKILL
    swept = await bench.tier.sweep()
    assert len(swept) > 3
    waiting = {info.name: info.state for info in await bench.tier.slots()}
    made = {info.name for info in await bench.tier.list()}
    assert set(waiting.values()) == {SandboxState.WARM}
    assert made == set()  # it is ready with the last step
    for step, slot in enumerate(slots[:steps], start=1):
        await bench.check_gone(f"{name}-{step}")
        if slot not in waiting:
            await bench.check_gone(slot)
    whole = await bench.tier.claim(slots[0], bench.spec(name))  # killed before its first step
    assert (await whole.exec("ls -A; echo whole")).text == "whole\n"


async def test_a_runner_that_dies_in_the_claim_takes_all_with_it(
    bench: Any, warm: Warm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await warm()
    (info,) = await bench.tier.slots()

    def die(*_: object) -> None:
        os.kill(info.pid, signal.SIGKILL)

    monkeypatch.setattr(bench.tier, "_enter", die)
    with pytest.raises(SlotGone):
        await bench.tier.claim(slot, bench.spec(name))
    await bench.check_gone(name)
    await bench.check_gone(slot)
    with pytest.raises(SandboxGone):
        await connect_sandbox(bench.root / name, epoch=1).exec(["true"])
