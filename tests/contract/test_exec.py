"""Commands: the truth about what they did, real stdin, time limits, caps, and nothing left behind."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from sandboxes import InvalidSpec, RefusedByRunner, Sandbox, SandboxBusy, SandboxTimeoutError

CountMarked = Callable[[str], Awaitable[int]]


async def until_marked(count_marked: CountMarked, word: str, wanted: int) -> None:
    async with asyncio.timeout(30):
        while await count_marked(word) != wanted:
            await asyncio.sleep(0.02)


async def test_both_streams_and_the_exit_code_come_back(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert 0 < result.duration_seconds < 30
    assert not result.truncated
    assert result.text == "out\n"


async def test_a_signal_is_told_as_a_shell_would(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -TERM $$")).exit_code == 143


@pytest.mark.parametrize(
    ("argv", "code"), [(["no-such-program"], 127), (["/etc/hosts"], 126)], ids=["missing", "not-executable"]
)
async def test_what_cannot_be_run_is_a_result(sandbox: Sandbox, argv: list[str], code: int) -> None:
    result = await sandbox.exec(argv)
    assert result.exit_code == code
    assert argv[0] in result.stderr_text


async def test_arguments_are_not_words_for_a_shell(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["printf", "%s|", "a b", "$HOME", "`id`", "'"])).text == "a b|$HOME|`id`|'|"


async def test_a_megabyte_of_stdin_arrives_whole(sandbox: Sandbox) -> None:
    raw = json.dumps({"text": "'\"$`\\\n\t ünïcödé 🎲" * 60_000}, ensure_ascii=False).encode()
    assert len(raw) > 1 << 20
    result = await sandbox.exec(["sha256sum"], stdin=raw)
    assert result.text.split()[0] == hashlib.sha256(raw).hexdigest()


async def test_a_command_that_reads_no_stdin_is_no_error(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["true"], stdin=b"x" * (4 << 20))).exit_code == 0


async def test_stdin_ends(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["cat"], timeout=10)).stdout == b""


async def test_env_and_cwd(sandbox: Sandbox) -> None:
    await sandbox.mkdir("deep/er")
    result = await sandbox.exec("echo $GIVEN $MORE; pwd", env={"MORE": "more"}, cwd="/workspace/deep/er")
    assert result.text.splitlines()[0] == "yes more"
    assert result.text.splitlines()[1].endswith("/workspace/deep/er")
    assert (await sandbox.exec("echo [$MORE]; pwd")).text.splitlines()[0] == "[]"


@pytest.mark.parametrize("cwd", ["/workspace/nowhere", "/workspace/../etc", "/etc"])
async def test_a_cwd_elsewhere_is_refused(sandbox: Sandbox, cwd: str) -> None:
    with pytest.raises(RefusedByRunner):
        await sandbox.exec(["true"], cwd=cwd)


@pytest.mark.parametrize("argv", [[], ["a\0b"]], ids=["empty", "nul"])
async def test_impossible_commands_are_refused(sandbox: Sandbox, argv: list[str]) -> None:
    with pytest.raises(InvalidSpec):
        await sandbox.exec(argv)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_is_a_positive_number(sandbox: Sandbox, timeout: float) -> None:
    with pytest.raises(InvalidSpec):
        await sandbox.exec(["true"], timeout=timeout)


async def test_timeout_kills_the_whole_tree_and_keeps_the_output(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    line = (
        "echo begun; sleep 98765401 & setsid sleep 98765401 & (setsid sh -c 'sleep 98765401 & exit 0' &) ; "
        "trap '' TERM HUP INT; sleep 98765401"
    )
    begun = time.monotonic()
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandbox.exec(line, timeout=1.0)
    assert time.monotonic() - begun < 30
    assert caught.value.result.stdout == b"begun\n"
    assert isinstance(caught.value, TimeoutError)
    assert await count_marked("98765401") == 0


async def test_completion_follows_the_exit_and_not_the_pipes(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    line = "echo before; sleep 98765402 >&2 & sleep 0.1; echo after; exit 7"
    result = await sandbox.exec(line, timeout=30)
    assert (result.exit_code, result.stdout) == (7, b"before\nafter\n")
    assert await count_marked("98765402") == 0  # start_process is for what shall stay


async def test_output_beyond_the_cap_is_cut_and_flagged(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 3000000 /dev/zero; echo end >&2", max_output_bytes=1_000_000)
    assert (len(result.stdout), result.stderr, result.truncated) == (1_000_000, b"end\n", True)
    assert result.exit_code == 0


async def test_an_endless_writer_does_not_fill_the_memory(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandbox.exec(["yes"], timeout=0.5, max_output_bytes=1000)
    assert len(caught.value.result.stdout) == 1000
    assert caught.value.result.truncated


async def test_output_at_the_cap_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1000 /dev/zero", max_output_bytes=1000)
    assert (len(result.stdout), result.truncated) == (1000, False)


async def test_binary_output_is_bytes(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(r"printf '\377\000\376'")).stdout == b"\xff\x00\xfe"


async def test_commands_run_at_once(sandbox: Sandbox) -> None:
    line = "touch at-once-{0}; until [ $(ls | grep -c at-once-) = 8 ]; do sleep 0.02; done; echo {0}"
    results = await asyncio.gather(*(sandbox.exec(line.format(n), timeout=30) for n in range(8)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(8)]
    await sandbox.exec("rm at-once-*")


async def test_too_many_commands_are_refused_by_name(sandbox: Sandbox) -> None:
    commands = [asyncio.ensure_future(sandbox.exec("sleep 60")) for _ in range(70)]
    for refused, ended in enumerate(asyncio.as_completed(commands, timeout=60), start=1):
        with pytest.raises(SandboxBusy):
            await ended
        if refused == 6:
            break
    running = [command for command in commands if not command.done()]
    assert len(running) == 64
    for command in running:
        command.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    async with asyncio.timeout(20):
        while (await sandbox.stats())["running"]:
            await asyncio.sleep(0.05)


async def test_a_cancelled_command_is_dead(sandbox: Sandbox, count_marked: CountMarked) -> None:
    command = asyncio.ensure_future(sandbox.exec("setsid sleep 98765403 & sleep 98765403"))
    await until_marked(count_marked, "98765403", 2)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    await until_marked(count_marked, "98765403", 0)


async def test_a_client_that_goes_away_takes_its_commands_along(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    other = Sandbox(sandbox.directory, name=sandbox.name, epoch=sandbox.epoch)
    command = asyncio.ensure_future(other.exec("sleep 98765404"))
    await until_marked(count_marked, "98765404", 1)
    await other.close()
    await asyncio.gather(command, return_exceptions=True)
    await until_marked(count_marked, "98765404", 0)


async def test_a_session_is_an_env_a_cwd_and_a_tmp_of_its_own(sandbox: Sandbox) -> None:
    await sandbox.mkdir("inner")
    one = await sandbox.create_session(env={"WHO": "one"}, cwd="/workspace/inner")
    two = await sandbox.create_session(env={"WHO": "two"})
    line = "echo $WHO; pwd; echo $WHO > $TMPDIR/who; cat $TMPDIR/who; echo $TMPDIR"
    first = (await sandbox.exec(line, session=one)).text.split()
    second = (await sandbox.exec(line, session=two)).text.split()
    assert (first[0], first[2], second[0], second[2]) == ("one", "one", "two", "two")
    assert first[1].endswith("/workspace/inner")
    assert second[1].endswith("/workspace")
    assert first[3] != second[3]
    await sandbox.delete_session(one)
    with pytest.raises(RefusedByRunner, match="no session"):
        await sandbox.exec(["true"], session=one)
    assert (await sandbox.exec("cat $TMPDIR/who", session=two)).text == "two\n"
    await sandbox.delete_session(two)


async def test_sessions_run_at_once_and_apart(sandbox: Sandbox) -> None:
    names = [await sandbox.create_session(env={"WHO": f"w{n}"}) for n in range(6)]
    line = (
        "f() { echo mine; }; export WHO=$WHO-x; echo $WHO > $TMPDIR/who; touch apart-$WHO; "
        "until [ $(ls | grep -c apart-) = 6 ]; do sleep 0.02; done; cat $TMPDIR/who; f"
    )
    said = await asyncio.gather(*(sandbox.exec(line, session=name, timeout=30) for name in names))
    assert [one.text for one in said] == [f"w{n}-x\nmine\n" for n in range(6)]
    await sandbox.exec("rm apart-*")
    after = await asyncio.gather(*(sandbox.exec("echo $WHO; f 2>/dev/null", session=name) for name in names))
    assert [one.text for one in after] == [f"w{n}\n" for n in range(6)]  # no export, no function stays
    for name in names:
        await sandbox.delete_session(name)


async def test_deep_recursion_of_processes_dies_with_the_command(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    spawn = "import os, time\nfor _ in range(8):\n    if os.fork() == 0: os.setsid()\ntime.sleep(98765405)"
    with pytest.raises(SandboxTimeoutError):  # 256 processes in a tree, each a session of its own
        await sandbox.exec(["python3", "-c", spawn.replace("range(8)", "range(5)"), "98765405"], timeout=1.0)
    assert await count_marked("98765405") == 0
