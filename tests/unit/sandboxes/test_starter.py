"""Starters, in an interpreter of their own: they need its signals and its children."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, os, sys
from sandboxes.runner import jobs, tree
from sandboxes.runner.loop import Loop
from sandboxes.runner.starter import Starters

tree.become_subreaper()
units = {}

def on_child(pid, status):
    units.pop(pid, lambda _: None)(status)

loop = Loop(on_child)
starters = Starters(loop, lambda: {"RLIMIT_NOFILE": 77}, units)

def run(argv, kill=False, murder=0, env={"PATH": "/usr/bin:/bin"}):
    starters.refill()
    found = {}
    def ended(status, alone):
        found.update(code=jobs.exit_code(status), alone=alone)
        loop.stop()
    errand = starters.take({"argv": argv, "env": env, "cwd": "/"}, ended)
    if errand is None:
        return None
    if murder:
        os.kill(errand.pid, murder)
    errand.give({})
    loop.later(20, lambda: os._exit(9))
    if kill:
        loop.later(0.1, errand.kill)
    loop._stopping = False
    loop.run()
    for pid in tree.descendants(os.getpid(), but=units):
        os.kill(pid, 9)
    errand.let_go()
    os.set_blocking(errand.stdout, True)
    out = os.read(errand.stdout, 4096).decode().split()
    errand.close()
    return {**found, "out": out, "starter": errand.pid}
"""
ASK = ["sh", "-c", "echo $PPID $(ulimit -n); exit 3"]


def answers(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}\nprint(json.dumps({code}))"], capture_output=True, timeout=30
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_one_starter_starts_one_command_after_another() -> None:
    found = answers(f"[run({ASK}) for _ in range(3)]")
    assert [(each["code"], each["alone"], each["out"][1]) for each in found] == [(3, True, "77")] * 3
    assert len({each["starter"] for each in found}) == 1
    assert {int(each["out"][0]) for each in found} == {found[0]["starter"]}


@pytest.mark.parametrize("line", ["sleep 50 & exit 3", "(setsid sleep 50 &) ; exit 3"])
def test_a_starter_ends_after_what_leaves_something_running(line: str) -> None:
    first, second = answers(f"[run(['sh', '-c', {line!r}]), run({ASK})]")
    assert (first["code"], first["alone"]) == (3, False)
    assert (second["code"], second["alone"]) == (3, True)
    assert first["starter"] != second["starter"]


def test_a_command_that_is_killed_takes_its_starter_along() -> None:
    first, second = answers(f"[run(['sleep', '50'], kill=True), run({ASK})]")
    assert (first["code"], first["alone"]) == (137, False)
    assert (second["code"], first["starter"] != second["starter"]) == (3, True)


@pytest.mark.parametrize("number", [9, 15, 19])
def test_a_starter_murdered_or_stopped_before_it_starts_anything_is_no_loss(number: int) -> None:
    (found,) = answers(f"[run({ASK}, murder={number})]")
    assert (found["code"], found["alone"]) == (3, True)


@pytest.mark.parametrize("error", ["NotImplementedError()", "BlockingIOError(11, 'busy')"])
def test_a_starter_that_cannot_spawn_becomes_the_command(error: str) -> None:
    lines = "class Deaf:\n    def __call__(self, *_, **__): raise " + error + "\nos.posix_spawn = Deaf()\n"
    done = answers(f"(exec({lines!r}), [run({ASK}), run(['/absent'])])[1]")
    assert [(each["code"], each["alone"]) for each in done] == [(3, False), (127, False)]


def test_a_path_is_searched_as_execvpe_does() -> None:
    found = answers(
        "[run(['true'], env={'PATH': '/absent:/etc/passwd:/usr/bin'}), run(['/etc/passwd']), run(['absent'])]"
    )
    assert [each["code"] for each in found] == [0, 126, 127]


def test_a_command_too_long_for_a_starter_is_left_to_a_unit() -> None:
    assert answers("run(['true', 'x' * 70_000])") is None
