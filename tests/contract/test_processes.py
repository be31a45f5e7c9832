"""Background processes: logs that were written before count, and every wait ends with its own word."""

import asyncio

import pytest

from sandboxes import (
    ProcessEnded,
    ProcessWaitTimeout,
    RefusedByRunner,
    Sandbox,
    SandboxBusy,
    connect_sandbox,
)

SERVER = (
    "import socket, time\ns = socket.create_server(('127.0.0.1', {port}))\n"
    "print('listening', flush=True)\ntime.sleep(60)"
)


async def test_logs_of_both_streams_and_the_exit_code(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("echo out; echo err >&2; exit 3")
    assert await process.wait(30) == 3
    logs = await process.logs()
    assert (logs.stdout, logs.stderr) == (b"out\n", b"err\n")


async def test_what_was_logged_before_the_wait_counts(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("echo ready 42; sleep 60")
    async with asyncio.timeout(30):
        while not (await process.logs()).stdout:
            await asyncio.sleep(0.01)
    assert await process.wait_for_log(r"ready \d+", timeout=20) == "ready 42"
    await process.kill()


async def test_a_log_line_on_stderr_and_in_pieces_is_found(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("sleep 0.2; printf rea >&2; sleep 0.2; echo dy >&2; sleep 60")
    assert await process.wait_for_log("ready", timeout=30) == "ready"
    await process.kill()


async def test_an_early_end_and_a_timeout_are_different_errors(sandbox: Sandbox) -> None:
    ended = await sandbox.start_process("echo nothing; exit 4")
    with pytest.raises(ProcessEnded, match="ended with 4"):
        await ended.wait_for_log("ready", timeout=30)
    slow = await sandbox.start_process("sleep 60")
    with pytest.raises(ProcessWaitTimeout) as caught:
        await slow.wait_for_log("ready", timeout=0.3)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ProcessWaitTimeout):
        await slow.wait(0.2)
    with pytest.raises(ProcessWaitTimeout):
        await slow.wait_for_port(1, timeout=0.3)
    await slow.kill()
    assert await slow.wait(30) == 137
    with pytest.raises(ProcessEnded):
        await slow.wait_for_port(1, timeout=5)


async def test_a_port_is_waited_for(sandbox: Sandbox, unused_port: int) -> None:
    process = await sandbox.start_process(["python3", "-c", SERVER.format(port=unused_port)])
    await process.wait_for_port(unused_port, timeout=20)
    await process.kill()
    assert await process.wait(30) == 137


async def test_a_process_lives_on_between_commands_and_turns(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("while true; do echo tick; sleep 0.1; done")
    await sandbox.exec("true")
    await sandbox.turn({"code": "print('{}')"}, turn=1)
    before = len((await process.logs()).stdout)
    async with asyncio.timeout(30):
        while len((await process.logs()).stdout) <= before:
            await asyncio.sleep(0.02)
    mine = [p for p in await sandbox.list_processes() if p["id"] == process.id]
    assert mine[0]["running"] is True
    await process.kill()
    await process.wait(30)
    mine = [p for p in await sandbox.list_processes() if p["id"] == process.id]
    assert (mine[0]["running"], mine[0]["exit_code"]) == (False, 137)


async def test_another_holder_finds_and_ends_what_runs(sandbox: Sandbox) -> None:
    runs = await sandbox.start_process("echo up; sleep 60")
    ended = await sandbox.start_process("echo out; exit 9")
    await runs.wait_for_log("up", timeout=30)
    await ended.wait(30)
    await sandbox.close()
    async with connect_sandbox(sandbox.directory, epoch=sandbox.epoch) as other:
        listed = {entry["id"]: entry for entry in await other.list_processes()}
        assert (listed[runs.id]["running"], listed[runs.id]["exit_code"]) == (True, None)
        assert (listed[ended.id]["running"], listed[ended.id]["exit_code"]) == (False, 9)
        assert listed[runs.id]["argv"] == ["/bin/sh", "-c", "echo up; sleep 60"]
        assert (await other.process(ended.id).logs()).stdout == b"out\n"
        assert await other.process(runs.id).wait_for_log("up", timeout=20) == "up"
        await other.process(runs.id).kill()
        assert await runs.wait(30) == 137


async def test_a_pattern_may_come_in_pieces_and_in_many_bytes(sandbox: Sandbox) -> None:
    code = (  # each byte in a write of its own, some of them half of a character
        "import sys, time\nfor byte in 'état prêt 42\\n'.encode():\n"
        "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.005)\ntime.sleep(60)"
    )
    process = await sandbox.start_process(["python3", "-c", code])
    assert await process.wait_for_log(r"prêt (\d+)\n", timeout=20) == "prêt 42\n"
    await process.kill()


async def test_sixty_four_processes_and_no_more(sandbox: Sandbox) -> None:
    for entry in await sandbox.list_processes():
        await sandbox.process(entry["id"]).kill()
        await sandbox.process(entry["id"]).wait(30)
    processes = [await sandbox.start_process("sleep 60") for _ in range(64)]
    with pytest.raises(SandboxBusy):
        await sandbox.start_process("sleep 60")
    await asyncio.gather(*(process.kill() for process in processes))
    await asyncio.gather(*(process.wait(20) for process in processes))
    last = await sandbox.start_process("true")  # the ended make room
    assert await last.wait(30) == 0


async def test_kill_takes_the_whole_tree_and_is_idempotent(sandbox: Sandbox, count_marked: object) -> None:
    assert callable(count_marked)
    process = await sandbox.start_process(
        "setsid sleep 98765501 & (setsid sleep 98765501 &); wait; sleep 98765501"
    )
    async with asyncio.timeout(30):
        while await count_marked("98765501") < 2:
            await asyncio.sleep(0.02)
    await process.kill()
    await process.wait(30)
    assert await count_marked("98765501") == 0
    await process.kill()


async def test_a_gentle_signal_can_be_handled(sandbox: Sandbox) -> None:
    process = await sandbox.start_process(
        "trap 'echo bye; exit 5' TERM; echo up; while true; do sleep 0.05; done"
    )
    await process.wait_for_log("up", timeout=30)
    await process.kill(15)
    assert await process.wait(30) == 5
    assert b"bye" in (await process.logs()).stdout


async def test_a_session_ends_with_its_processes(sandbox: Sandbox) -> None:
    session = await sandbox.create_session(env={"A": "1"})
    process = await sandbox.start_process("echo $A; sleep 60", session=session)
    await process.wait_for_log("1", timeout=30)
    await sandbox.delete_session(session)
    assert await process.wait(30) == 137


async def test_a_long_log_keeps_its_end(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    await process.wait(20)
    logs = await process.logs()
    assert len(logs.stdout) == 1 << 20
    assert logs.stdout.endswith(b"x\nlast\n")
    assert await process.wait_for_log("last", timeout=20) == "last"


async def test_an_unknown_process_is_refused(sandbox: Sandbox) -> None:
    process = await sandbox.start_process("true")
    process.id = "process-0"
    with pytest.raises(RefusedByRunner, match="no process"):
        await process.logs()
