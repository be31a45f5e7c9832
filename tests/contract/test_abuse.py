"""Attacks on what a node has, by code that means it. After each of them the node is as it was, a neighbour
lives on unharmed, and the sandbox itself takes its next turn.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxes import FileError, NoSpace, Sandbox, SandboxGone, SandboxTimeoutError
from tests.attacks import ALIVE, LIMITS, MIB, own_kernel, python

pytestmark = pytest.mark.usefixtures("unharmed")

OVERHEAD_PIDS = 16  # what a tier needs inside besides, at most
FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
CountMarked = Callable[[str], Awaitable[int]]


@pytest.fixture
def sandbox(attacker: Sandbox) -> Sandbox:
    """The one that attacks."""
    return attacker


@pytest.fixture
async def bomber(bench: Any) -> AsyncIterator[Sandbox]:
    """One of its own, for what may end a sandbox of a tier with its own kernel: to the node that is one
    process, which runs out of memory as a whole.
    """
    async with await bench.tier.create(bench.spec("bomber", limits=LIMITS)) as bomber:
        yield bomber
    await bench.tier.destroy("bomber")


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
        assert time.monotonic() - begun < 30
        assert (await bomber.stats())["processes"] <= 4
        assert (await bomber.turn(ALIVE, turn=1)).action == {"alive": 45}
    except SandboxGone:
        assert own_kernel(bench)


async def test_processes_that_are_never_the_same_are_hunted_down(sandbox: Sandbox) -> None:
    code = "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass"
    begun = time.monotonic()
    await sandbox.exec(["python3", "-c", code], timeout=20)  # the first exits at once
    assert time.monotonic() - begun < 30
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
        with_timeout = sandbox.exec(["python3", "-c", code], timeout=1.5)
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
    await sandbox.turn({"code": code}, turn=1, timeout=1.5)  # then `unharmed` looks


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
    assert time.monotonic() - begun < 30
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
