"""The activity lock: requests share it, freezing needs it alone, a dead holder has none."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes import SandboxFailed, SandboxGone
from sandboxes.activity import LOCK_NAME, Activity, Frost, idle, is_frozen, note_frost, thaw
from sandboxes.runner.tree import read_stat


async def test_a_request_keeps_others_from_freezing(tmp_path: Path) -> None:
    one, other = Activity(tmp_path, "x"), Activity(tmp_path, "x")
    async with one.request(), other.request():
        async with one.request():
            pass
        with idle(tmp_path, "x") as got:
            assert not got
    with idle(tmp_path, "x") as got:
        assert got


async def test_a_request_waits_while_somebody_freezes(tmp_path: Path) -> None:
    async def request() -> str:
        async with Activity(tmp_path, "x").request():
            return "in"

    with idle(tmp_path, "x"):
        waiting = asyncio.ensure_future(request())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 5) == "in"


def descriptors_of(path: Path) -> list[str]:
    """Return which descriptors of this process lead to a file; of other files any may come and go."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{fd}") == str(path):
                found.append(fd)
    return found


async def test_requests_at_once_leave_no_descriptor(tmp_path: Path) -> None:
    activity = Activity(tmp_path, "x")

    async def request() -> None:
        async with activity.request():
            assert len(descriptors_of(tmp_path / LOCK_NAME)) >= 1
            await asyncio.sleep(0)

    with idle(tmp_path, "x"):
        waiting = [asyncio.ensure_future(request()) for _ in range(20)]
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)
    assert descriptors_of(tmp_path / LOCK_NAME) == []
    with idle(tmp_path, "x") as got:
        assert got


async def test_a_dead_holder_has_no_lock(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_SH)\n"
        "print('held', flush=True)\n"
    )
    holder = subprocess.Popen(  # noqa: ASYNC220 - it takes milliseconds
        [sys.executable, "-c", code + "input()", str(tmp_path / LOCK_NAME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with idle(tmp_path, "x") as got:
            assert not got
        holder.kill()
        holder.wait()
    with idle(tmp_path, "x") as got:
        assert got


async def test_no_directory_is_no_sandbox(tmp_path: Path) -> None:
    with pytest.raises(SandboxGone):
        async with Activity(tmp_path / "none", "x").request():
            pass


async def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxGone):
        async with Activity(tmp_path, "x").request():
            pass
    assert not (tmp_path / "elsewhere").exists()


async def test_a_request_thaws_by_writing(tmp_path: Path) -> None:
    state = tmp_path / "freezer.state"
    state.write_text("FROZEN")
    note_frost(tmp_path, Frost(tier="process", files=((str(state), "THAWED"),)))
    assert is_frozen(tmp_path)
    async with Activity(tmp_path, "x").request():
        assert state.read_text() == "THAWED"
        assert not is_frozen(tmp_path)


async def test_a_request_continues_what_was_stopped_and_nobody_else(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:  # noqa: ASYNC220 - it takes milliseconds
        try:
            os.kill(process.pid, signal.SIGSTOP)
            found = read_stat(process.pid)
            assert found is not None
            note_frost(tmp_path, Frost(tier="process", stopped=((process.pid, found[2] + 1),)))
            await thaw(tmp_path, "x")  # the pid is another process's by now
            assert _comes_to(process.pid, is_stopped=True)
            note_frost(tmp_path, Frost(tier="process", stopped=((process.pid, found[2]),)))
            await thaw(tmp_path, "x")
            assert _comes_to(process.pid, is_stopped=False)
        finally:
            process.kill()


def _comes_to(pid: int, *, is_stopped: bool) -> bool:
    """Whether a process is stopped, or is not, as soon as its signals have arrived."""
    deadline = time.monotonic() + 20
    while (found := read_stat(pid)) and (found[1] == "T") != is_stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is not None
    return (found[1] == "T") == is_stopped


async def test_what_cannot_be_thawed_is_said(tmp_path: Path) -> None:
    note_frost(tmp_path, Frost(tier="process", files=((str(tmp_path), "THAWED"),)))
    with pytest.raises(SandboxFailed, match="cannot be thawed"):
        await thaw(tmp_path, "x")
    assert is_frozen(tmp_path)
    with idle(tmp_path, "x") as got:
        assert got
