"""Turns: state in, action or reason out, each on its own, none able to break the game."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxes import Sandbox, TurnResult

CountMarked = Callable[[str], Awaitable[int]]


async def take(sandbox: Sandbox, code: str, *, timeout: float = 20.0, **state: Any) -> TurnResult:
    return await sandbox.turn({"code": code, **state}, turn=1, timeout=timeout)


def answer(expression: str) -> str:
    return f"print(json.dumps({{'answer': {expression}}}))"


async def ask(sandbox: Sandbox, expression: str, before: str = "") -> Any:
    result = await take(sandbox, f"{before}\n{answer(expression)}")
    assert result.action is not None, result
    return result.action["answer"]


async def test_state_and_variables_reach_the_script(sandbox: Sandbox) -> None:
    code = (
        "keys = ['AGENT_DID', 'TURN_NUMBER', 'GAME_ID']\n"
        "print(json.dumps({'env': [os.environ[k] for k in keys], "
        "'same': json.loads(os.environ['TURN_DATA']) == state,"
        " 'name': __name__, 'argv': sys.argv, 'file': __file__}))"
    )
    result = await sandbox.turn({"code": code}, env={"AGENT_DID": "did:plc:a", "GAME_ID": "catan-7"}, turn=42)
    assert result.skip is None
    assert result.exit_code == 0
    assert result.action is not None
    assert result.action["env"] == ["did:plc:a", "42", "catan-7"]
    assert result.action["same"] is True
    assert result.action["name"] == "__main__"
    assert result.action["argv"] == [result.action["file"]]


@pytest.mark.parametrize(("padding", "in_file"), [(90_000, False), (200_000, True)], ids=["small", "large"])
async def test_a_large_state_comes_in_a_file(sandbox: Sandbox, padding: int, in_file: bool) -> None:
    code = (
        "name = os.environ.get('TURN_DATA_FILE')\n"
        "raw = open(name).read() if name else os.environ['TURN_DATA']\n"
        "print(json.dumps({'in_file': bool(name), 'same': json.loads(raw) == state}))"
    )
    result = await take(sandbox, code, padding="x" * padding)
    assert result.action == {"in_file": in_file, "same": True}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param("raise ValueError('bad luck')", "exited with 1: ValueError: bad luck", id="crash"),
        pytest.param("sys.exit(3)", "exited with 3", id="exit-code"),
        pytest.param("sys.exit('no move')", "exited with 1: no move", id="exit-text"),
        pytest.param("print('{}'); os._exit(9)", "exited with 9", id="hard-exit"),
        pytest.param("os.kill(os.getpid(), 9)", "exited with 137", id="killed"),
        pytest.param("pass", "nothing on stdout", id="silent"),
        pytest.param("print('hello')", "not one JSON object", id="no-json"),
        pytest.param("print('{}'); print('{}')", "not one JSON object", id="two-lines"),
        pytest.param("print('{} {}')", "not one JSON object", id="two-on-a-line"),
        pytest.param("print('[1]')", "a JSON list", id="list"),
        pytest.param("print('null')", "a JSON NoneType", id="null"),
        pytest.param("print('{\"a\": NaN}')", "NaN is not JSON", id="nan"),
        pytest.param('print(\'{"a": "\\\\ud800"}\')', "not one JSON object", id="lone-surrogate"),
        pytest.param("print('[' * 100000)", "not one JSON object", id="deep"),
        pytest.param("sys.stdout.buffer.write(b'\\xff')", "not one JSON object", id="not-utf-8"),
        pytest.param("print('{\"a\": \"' + 'x' * 2000000 + '\"}')", "more than 1048576 bytes", id="huge"),
        pytest.param("import no_such_module", "ModuleNotFoundError", id="import"),
        pytest.param("sys.stderr.write('x' * 100000); sys.exit(1)", "exited with 1: xxx", id="long-reason"),
    ],
)
async def test_what_is_no_action_is_a_reason_to_skip(sandbox: Sandbox, code: str, reason: str) -> None:
    result = await take(sandbox, code)
    assert result.action is None
    assert result.skip is not None
    assert reason in result.skip
    assert len(result.skip) <= 500
    assert (await take(sandbox, "print('{\"ok\": true}')")).action == {"ok": True}  # and the next one goes on


async def test_a_turn_that_takes_too_long_is_a_reason_to_skip(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    code = (
        "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '98765501'])\n"
        "print('{}', flush=True)\ntime.sleep(60)"
    )
    begun = time.monotonic()
    result = await take(sandbox, code, timeout=1.0)
    assert time.monotonic() - begun < 30
    assert result.skip == "the turn script did not end within 1 s"
    assert await count_marked("98765501") == 0


async def test_what_a_turn_leaves_running_is_killed_at_its_end(
    sandbox: Sandbox, count_marked: CountMarked
) -> None:
    code = (
        "import subprocess\n"
        "subprocess.Popen(['sleep', '98765502'])\n"
        "subprocess.Popen(['setsid', 'sh', '-c', 'setsid sleep 98765502 & exit 0'])\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '98765502'])\n    os._exit(0)\n"
        "print('{}')"
    )
    assert (await take(sandbox, code)).action == {}
    assert await count_marked("98765502") == 0


async def test_nothing_of_a_turn_is_there_in_the_next(sandbox: Sandbox) -> None:
    before = (
        "import random\nos.environ['LEFT'] = 'x'\nos.chdir('/')\nos.umask(0)\nsys.modules['left'] = sys\n"
        "json.left = True\nsys.path.append('/left')\nimport builtins\nbuiltins.left = 1\n"
        "open(os.path.join(os.environ['TMPDIR'], 'left'), 'w').close()\nsys.setrecursionlimit(500)"
    )
    assert await ask(sandbox, "True", before) is True
    expression = (
        "[os.environ.get('LEFT'), os.getcwd().endswith('/workspace'), 'left' in sys.modules, "
        "hasattr(json, 'left'),"
        " '/left' in sys.path, hasattr(__builtins__, 'left'), os.listdir(os.environ['TMPDIR']), "
        "sys.getrecursionlimit()]"
    )
    assert await ask(sandbox, expression) == [None, True, False, False, False, False, [], 1000]


async def test_files_of_a_failed_turn_in_tmp_are_gone(sandbox: Sandbox) -> None:
    path = (  # beside its own directory: /tmp itself
        "os.path.join(os.path.dirname(os.environ['TMPDIR']), 'left-behind')"
    )
    result = await take(
        sandbox, f"os.makedirs({path} + '/a/b')\nopen({path} + '/a/b/c', 'w').close()\nsys.exit(1)"
    )
    assert result.skip is not None
    assert await ask(sandbox, f"os.path.exists({path})") is False


async def test_what_was_in_tmp_before_a_turn_stays(sandbox: Sandbox) -> None:
    await sandbox.write_file("/tmp/kept", b"by the holder")
    await ask(sandbox, "1")
    assert await sandbox.read_file("/tmp/kept") == b"by the holder"
    await sandbox.delete("/tmp/kept")


async def test_the_workspace_lasts(sandbox: Sandbox) -> None:
    await ask(sandbox, "open('memory.txt', 'w').write('remember')")
    assert await ask(sandbox, "open('memory.txt').read()") == "remember"


async def test_turns_at_once_do_not_meet(sandbox: Sandbox) -> None:
    code = (
        "import time\nos.environ['ME'] = str(state['me'])\n"
        "path = os.path.join(os.environ['TMPDIR'], 'mine')\nopen(path, 'w').write(str(state['me']))\n"
        "open(f'met-{state[\"me\"]}', 'w').close()\n"
        "while sum(name.startswith('met-') for name in os.listdir('.')) < 6: time.sleep(0.02)\n"
        "print(json.dumps({'env': os.environ['ME'], 'file': open(path).read()}))"
    )
    results = await asyncio.gather(*(take(sandbox, code, me=n) for n in range(6)))
    assert [result.action for result in results] == [{"env": str(n), "file": str(n)} for n in range(6)]
    await sandbox.exec("rm met-*")


async def test_a_turn_that_ends_leaves_the_others_alone(sandbox: Sandbox, count_marked: CountMarked) -> None:
    slow = (
        "import subprocess\n"
        "line = 'touch begun; until [ -e go ]; do sleep 0.02; done; echo done'\n"
        "said = subprocess.run(['sh', '-c', line], capture_output=True, text=True).stdout\n"
        "print(json.dumps({'said': said}))"
    )
    running = asyncio.ensure_future(take(sandbox, slow))
    while not await sandbox.exists("begun"):
        await asyncio.sleep(0.01)
    for _ in range(3):
        await take(
            sandbox, "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '98765503'])\nprint('{}')"
        )
    await sandbox.write_file("go", b"")
    assert (await running).action == {"said": "done\n"}
    assert await count_marked("98765503") == 0
    await sandbox.exec("rm begun go")


async def test_random_numbers_differ_from_turn_to_turn(sandbox: Sandbox) -> None:
    drawn = [await ask(sandbox, "random.random()", "import random") for _ in range(3)]
    assert len(set(drawn)) == 3


async def test_threads_and_exit_functions_are_waited_for(sandbox: Sandbox) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('}'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('{', end=''))).start()"
    )
    assert (await take(sandbox, code)).action == {}


async def test_bytes_are_passed_on_as_they_are(sandbox: Sandbox) -> None:
    raw = json.dumps({"code": answer("state['x']"), "x": "é"}, ensure_ascii=False, indent=1).encode()
    assert (await sandbox.turn(raw, turn=1)).action == {"answer": "é"}


async def test_a_turn_counts_and_stats_tell(sandbox: Sandbox) -> None:
    before = await sandbox.stats()
    await ask(sandbox, "1")
    after = await sandbox.stats()
    assert after["turns"] == before["turns"] + 1
    assert after["running"] == 0
    assert after["epoch"] == sandbox.epoch
