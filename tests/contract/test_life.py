"""The life of a sandbox: created once, found by anybody, held by the newest epoch, and at its end totally
gone.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes import (
    FileDenied,
    InvalidSpec,
    Limits,
    Mount,
    Sandbox,
    SandboxExists,
    SandboxFailed,
    SandboxGone,
    SandboxNotFound,
    SandboxState,
    StaleEpoch,
    connect_sandbox,
)

FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"


async def test_a_sandbox_is_found_by_name_and_labels(bench: Any, name: str) -> None:
    spec = bench.spec(name, epoch=4, labels={"lease": "a::b", "node": "n1"})
    await bench.tier.create(spec)
    info = await bench.tier.inspect(name)
    assert (info.name, info.state, info.epoch) == (name, SandboxState.WARM, 4)
    assert info.labels == {"lease": "a::b", "node": "n1"}
    assert abs(info.created_ms - time.time() * 1000) < 60_000
    assert info.socket.is_socket()
    assert [i.name for i in await bench.tier.list({"node": "n1"})] == [name]
    assert await bench.tier.list({"node": "n2"}) == []


async def test_a_living_name_is_taken(bench: Any, name: str) -> None:
    await bench.tier.create(bench.spec(name))
    with pytest.raises(SandboxExists):
        await bench.tier.create(bench.spec(name, epoch=9))
    assert (await (await bench.tier.connect(name)).exec("echo alive")).text == "alive\n"


async def test_of_concurrent_creates_one_wins(bench: Any, name: str) -> None:
    results = await asyncio.gather(
        *(bench.again().create(bench.spec(name)) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(result, Sandbox) for result in results) == 1
    assert sum(isinstance(result, SandboxExists) for result in results) == 3


async def test_another_tier_object_adopts_it(bench: Any, name: str) -> None:
    first = await bench.tier.create(bench.spec(name, epoch=2))
    await first.write_file("kept", b"1")
    adopted = await bench.again().connect(name)
    assert adopted.epoch == 2
    assert await adopted.read_file("kept") == b"1"
    await bench.again().destroy(name)
    with pytest.raises(SandboxGone):
        await first.exec(["true"])


async def test_another_process_adopts_and_destroys_it(bench: Any, name: str) -> None:
    await bench.tier.create(bench.spec(name, epoch=2))
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nimport sandboxes\n"
        "async def main():\n"
        "    tier = sandboxes.open_tier(sys.argv[1], Path(sys.argv[2]))\n"
        "    sandbox = await tier.connect(sys.argv[3])\n"
        "    print((await sandbox.exec('echo from outside')).text, end='')\n"
        "    await tier.destroy(sys.argv[3])\n"
        "asyncio.run(main())"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, bench.tier.name, str(bench.root), name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "from outside\n", done.stderr
    await bench.check_gone(name)


async def test_it_survives_the_violent_death_of_its_creator(bench: Any, name: str) -> None:
    script = (
        "import asyncio, os, pickle, sys\nfrom pathlib import Path\nimport sandboxes as s\n"
        "async def main():\n"
        "    tier = s.open_tier(sys.argv[1], Path(sys.argv[2]))\n"
        "    image = pickle.loads(bytes.fromhex(sys.argv[4]))\n"
        "    await tier.create(s.SandboxSpec(name=sys.argv[3], epoch=5, image=image))\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    arguments = [bench.tier.name, str(bench.root), name, pickle.dumps(bench.image).hex()]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, *arguments], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    adopted = await bench.tier.connect(name)
    assert adopted.epoch == 5
    assert (await adopted.exec("echo alive")).text == "alive\n"


async def test_a_creator_killed_at_any_point_leaves_nothing_that_sweep_does_not_clear(bench: Any) -> None:
    script = (
        "import asyncio, pickle, sys\nfrom pathlib import Path\nimport sandboxes as s\n"
        "async def main():\n"
        "    tier = s.open_tier(sys.argv[1], Path(sys.argv[2]))\n"
        "    await tier.probe()\n"
        "    print('go', flush=True)\n"
        "    image = pickle.loads(bytes.fromhex(sys.argv[4]))\n"
        "    limits = s.Limits(idle_deadline_s=1)\n"
        "    await tier.create(s.SandboxSpec(name=sys.argv[3], epoch=5, image=image, limits=limits))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    delays_s = {
        f"killed-{os.getpid()}-{n}": delay_s for n, delay_s in enumerate((0.02, 0.06, 0.1, 0.15, 0.25))
    }
    for name, delay_s in delays_s.items():
        arguments = [bench.tier.name, str(bench.root), name, pickle.dumps(bench.image).hex()]
        creator = subprocess.Popen(  # noqa: ASYNC220 - it takes milliseconds
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE
        )
        assert creator.stdout is not None
        await asyncio.to_thread(creator.stdout.readline)
        await asyncio.sleep(delay_s)
        creator.kill()
        creator.wait()
        creator.stdout.close()
    quiet = 0
    async with asyncio.timeout(60):  # by then each was never born, or has ended itself
        while quiet < 10:  # looks in a row: what the killed had asked an engine for may come yet
            await bench.tier.sweep()
            found = [await bench.tier.inspect(name) for name in delays_s]
            quiet = 0 if any(info.leftovers for info in found) else quiet + 1
            await asyncio.sleep(0.05)
    for name in delays_s:
        await bench.check_gone(name)


async def test_destroy_is_idempotent_and_concurrent(bench: Any, name: str) -> None:
    await bench.tier.destroy(name)  # never started
    await bench.tier.create(bench.spec(name))
    await asyncio.gather(*(bench.again().destroy(name) for _ in range(5)))
    await bench.check_gone(name)
    await bench.tier.destroy(name)
    with pytest.raises(SandboxNotFound):
        await bench.tier.connect(name)


async def test_ten_at_once(bench: Any) -> None:
    names = [f"many-{os.getpid()}-{n}" for n in range(10)]
    sandboxes = await asyncio.gather(*(bench.tier.create(bench.spec(name)) for name in names))
    results = await asyncio.gather(*(s.turn({"code": "print('{}')"}, turn=1) for s in sandboxes))
    assert [result.action for result in results] == [{}] * 10
    uids = [info.uid for info in await bench.tier.list() if info.name in names]
    assert len(uids) == 10
    assert set(uids) == {None} or len(set(uids)) == 10
    await asyncio.gather(*(bench.tier.destroy(name) for name in names))
    for each in names:
        await bench.check_gone(each)


async def test_destroy_during_a_command_ends_the_command(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    running = asyncio.ensure_future(sandbox.exec("touch begun; sleep 600", timeout=600))
    while not await sandbox.exists("begun"):
        await asyncio.sleep(0.01)
    await bench.tier.destroy(name)
    with pytest.raises(SandboxGone):
        await running


async def test_destroy_takes_hostile_files_along(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    script = (
        "import os\nos.makedirs('locked/inner')\nopen('locked/inner/file', 'w').close()\n"
        "os.symlink('/', 'root')\n"
        "os.mkfifo('fifo')\nopen(b'\\xff\\xfe name', 'w').close()\n"
        "os.makedirs('deep')\nos.chdir('deep')\n"
        "for _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "os.chdir('/workspace') if os.path.isdir('/workspace') else os.chdir(os.environ['HOME'])\n"
        "os.chmod('locked/inner', 0)\nos.chmod('locked', 0)"
    )
    assert (await sandbox.exec(["python3", "-c", script])).exit_code == 0
    await bench.tier.destroy(name)
    await bench.check_gone(name)


async def test_a_name_can_be_used_again(bench: Any, name: str) -> None:
    first = await bench.tier.create(bench.spec(name, epoch=1))
    await first.write_file("old", b"")
    await bench.tier.destroy(name)
    second = await bench.tier.create(bench.spec(name, epoch=2))
    assert not await second.exists("old")
    with pytest.raises(StaleEpoch):
        await first.exec(["true"])


async def test_a_stale_epoch_is_refused(bench: Any, name: str) -> None:
    old = await bench.tier.create(bench.spec(name, epoch=3))
    new = connect_sandbox(bench.root / name, epoch=4)
    await new.renew()
    with pytest.raises(StaleEpoch) as caught:
        await old.exec("touch wrong")
    assert (caught.value.epoch, caught.value.current) == (3, 4)
    with pytest.raises(StaleEpoch):
        await old.write_file("wrong", b"")
    with pytest.raises(StaleEpoch):
        await bench.tier.connect(name)
    assert not await new.exists("wrong")
    assert (await bench.tier.connect(name, epoch=4)).epoch == 4


async def test_it_can_be_reached_by_its_socket(bench: Any, name: str) -> None:
    await bench.tier.create(bench.spec(name))
    info = await bench.tier.inspect(name)
    async with connect_sandbox(info.socket, epoch=1) as sandbox:
        assert sandbox.name == name
        assert (await sandbox.exec("echo hi")).text == "hi\n"


async def test_it_ends_itself_when_nobody_talks_to_it(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name, limits=Limits(idle_deadline_s=2.0)))
    process = await sandbox.start_process("sleep 98765601")
    for _ in range(5):
        await asyncio.sleep(0.45)
        await sandbox.renew()
    assert (await sandbox.exec("sleep 2.2; echo busy")).text == "busy\n"  # running work is activity
    assert process.id
    async with asyncio.timeout(30):
        while (await bench.tier.inspect(name)).state is SandboxState.WARM:
            await asyncio.sleep(0.05)
    info = await bench.tier.inspect(name)
    assert info.state is SandboxState.FAILED
    left = {what.split()[0] for what in info.leftovers}
    assert "directory" in left
    assert left <= {"directory", "cgroup", "container", "disk"}
    with pytest.raises(SandboxNotFound):
        await bench.tier.connect(name)
    assert await bench.tier.sweep() == (name,)
    await bench.check_gone(name)


async def test_it_ends_at_its_wall_deadline_however_busy(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name, limits=Limits(wall_deadline_s=1.0)))
    with pytest.raises(SandboxGone):
        await sandbox.exec("sleep 30")


async def test_sweep_leaves_the_living_alone(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    assert await bench.tier.sweep() == ()
    assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_the_debris_of_a_killed_runner_is_cleared_by_create(bench: Any, name: str) -> None:
    await bench.tier.create(bench.spec(name))
    info = await bench.tier.inspect(name)
    os.kill(info.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while (await bench.tier.inspect(name)).state is SandboxState.WARM:
            await asyncio.sleep(0.01)
    sandbox = await bench.tier.create(bench.spec(name, epoch=2))
    assert (await sandbox.exec("ls")).text == ""


async def test_a_cancelled_create_leaves_nothing(bench: Any, name: str) -> None:
    for delay_s in (0.0, 0.01, 0.03):  # a quick machine needs 0.07 s
        creating = asyncio.ensure_future(bench.tier.create(bench.spec(name)))
        await asyncio.sleep(delay_s)
        if not creating.cancel():  # it was quicker
            await bench.tier.destroy(name)
            continue
        with pytest.raises(asyncio.CancelledError):
            await creating
        await bench.check_gone(name)


async def test_a_fork_bomb_does_not_outlive_destroy(bench: Any, name: str) -> None:
    bench.need("isolation")
    sandbox = await bench.tier.create(bench.spec(name, limits=Limits(pids=40)))
    bomb = asyncio.ensure_future(sandbox.exec(["python3", "-c", FORK_BOMB]))
    await asyncio.sleep(1.0)
    begun = time.monotonic()
    await bench.tier.destroy(name)
    assert time.monotonic() - begun < 30
    with pytest.raises(SandboxGone):
        await bomb


async def test_data_outlives_the_sandbox(bench: Any, name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "character.json").write_text("{}")
    first = await bench.tier.create(bench.spec(name, data_dir=data))
    assert await first.read_file("/data/character.json") == b"{}"
    await first.write_file("/data/memory", b"kept")
    with pytest.raises(InvalidSpec, match="in use"):
        await bench.tier.create(bench.spec("another", data_dir=data))
    await bench.tier.destroy(name)
    assert (data / "memory").read_bytes() == b"kept"
    second = await bench.tier.create(bench.spec(name, data_dir=data))
    await second.write_file("/data/memory", b"still")  # whoever owned the files before
    assert (await second.exec("cat memory", cwd="/data")).text == "still"
    await bench.tier.destroy("another")


@pytest.mark.parametrize("missing", ["script", "data"])
async def test_specs_that_cannot_be_met_are_refused(
    bench: Any, name: str, tmp_path: Path, missing: str
) -> None:
    spec = bench.spec(name, data_dir=tmp_path / "nowhere" if missing == "data" else None)
    if missing == "script":
        spec = replace(spec, image=replace(spec.image, root=tmp_path))
    with pytest.raises(InvalidSpec):
        await bench.tier.create(spec)
    await bench.check_gone(name)


async def test_an_image_must_not_hold_the_state_directory(bench: Any, name: str) -> None:
    (bench.root.parent / "take_turn.py").touch()
    image = replace(bench.image, root=bench.root.parent)
    with pytest.raises(InvalidSpec, match="state directory"):
        await bench.tier.create(replace(bench.spec(name), image=image))


async def test_a_runner_that_never_answers_is_given_up_and_cleared_away(
    bench: Any, name: str, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "take_turn.py").touch()
    tmp_path.chmod(0o755)
    image = replace(bench.image, root=tmp_path, preload=("hangs",))
    spec = replace(bench.spec(name, limits=Limits(start_deadline_s=1.5)), image=image)
    begun = time.monotonic()
    with pytest.raises(SandboxFailed, match=r"within 1\.5 s"):
        await bench.tier.create(spec)
    assert time.monotonic() - begun < 30  # and not the minute that it would hang
    await bench.check_gone(name)


async def test_a_declared_module_that_cannot_be_imported_is_refused(bench: Any, name: str) -> None:
    image = replace(bench.image, preload=("no_such_module", "json"))
    with pytest.raises(InvalidSpec, match="no_such_module cannot be imported"):
        await bench.tier.create(replace(bench.spec(name), image=image))
    assert (await bench.tier.inspect(name)).leftovers == ()


async def test_modules_beside_the_turn_script_can_be_declared(bench: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("LOADED = __import__('os').getpid()\n")
    (tmp_path / "take_turn.py").write_text(
        "import helper, json, os, sys\nprint(json.dumps({'forked': helper.LOADED != os.getpid()}))\n"
    )
    tmp_path.chmod(0o755)
    image = replace(bench.image, root=tmp_path, preload=("helper",))
    sandbox = await bench.tier.create(replace(bench.spec(name), image=image))
    assert (await sandbox.turn({}, turn=1)).action == {"forked": True}


async def test_a_state_directory_of_any_length(bench: Any, tmp_path: Path) -> None:
    root = tmp_path / ("long-" * 30) / ("longer-" * 30)
    assert len(str(root)) > 300
    tier = bench.tier_over(root)
    sandbox = await tier.create(bench.spec("x"))
    assert (await sandbox.turn({"code": "print('{}')"}, turn=1)).action == {}
    assert (await connect_sandbox(root / "x", epoch=1).exec("echo hi")).text == "hi\n"
    await tier.destroy("x")
    assert (await tier.inspect("x")).leftovers == ()


async def test_nonsense_on_the_socket_ends_only_that_connection(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    info = await bench.tier.inspect(name)
    for raw in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\1"):
        with socket.socket(socket.AF_UNIX) as stranger:
            directory = os.open(info.socket.parent, os.O_PATH)
            stranger.connect(f"/proc/self/fd/{directory}/{info.socket.name}")
            os.close(directory)
            stranger.sendall(raw)
            stranger.settimeout(0.3)
            with contextlib.suppress(TimeoutError, ConnectionError):
                assert stranger.recv(100) == b""
    assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_files_other_sandboxes_are_elsewhere(bench: Any, name: str) -> None:
    sandbox = await bench.tier.create(bench.spec(name))
    other_name = f"other-{os.getpid()}"
    other = await bench.tier.create(bench.spec(other_name))
    await other.write_file("secret", b"")
    assert not await sandbox.exists("secret")
    await bench.tier.destroy(other_name)
    await bench.check_gone(other_name)
    assert (await sandbox.exec("echo alive")).text == "alive\n"


# mounts


async def test_mounts_show_what_is_allowed_and_no_more(bench: Any, name: str, tmp_path: Path) -> None:
    (bench.shown / "models").mkdir(exist_ok=True)
    (bench.shown / "models" / "tiny.txt").write_text("weights")
    (bench.shown / "models").chmod(0o755)
    mount = Mount(source=bench.shown / "models", target="/models/small")
    sandbox = await bench.tier.create(bench.spec(name, mounts=(mount,)))
    assert await sandbox.read_file("/models/small/tiny.txt") == b"weights"
    if not bench.lacks("mounts"):
        assert (await sandbox.exec("cat /models/small/tiny.txt")).text == "weights"
        with pytest.raises(FileDenied):
            await sandbox.write_file("/models/small/tiny.txt", b"x")
        assert (await sandbox.exec("echo x > /models/small/tiny.txt")).exit_code != 0
        assert (await sandbox.exec("touch /models/other")).exit_code != 0
    assert (bench.shown / "models" / "tiny.txt").read_text() == "weights"
    (bench.shown / "out").unlink(missing_ok=True)
    (bench.shown / "out").symlink_to(tmp_path)
    for source in (
        Path("/etc"),
        tmp_path,
        bench.shown / ".." / "..",
        bench.shown / "out",
        bench.shown / "no",
    ):
        with pytest.raises(InvalidSpec, match="mounts"):
            await bench.tier.create(bench.spec("m", mounts=(Mount(source=source, target="/x"),)))
    assert (await bench.tier.inspect("m")).state is SandboxState.DELETED


@pytest.mark.parametrize(
    "target", ["/", "/usr/x", "/workspace/x", "/proc", "x", "/a/../etc", "/a//b", "/a\0b"]
)
def test_mounts_cover_nothing_of_the_sandboxes_own(target: str) -> None:
    with pytest.raises(InvalidSpec, match="mounts"):
        Mount(source=Path("/x"), target=target)
