"""`sandbox.json` under writers that race, in processes of their own: always whole, over once it is over."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandboxes import SandboxFailed
from sandboxes.tiers.record import Record, Records, boot_id

RECORD = Record(
    name="box",
    tier="process",
    epoch=3,
    labels={},
    created_ms=1,
    uid=None,
    data_dir=None,
    generation="first",
    boot_id=boot_id(),
)
DEADLINE_S = 20.0


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records(tmp_path / "state")
    made.prepare()
    made.directory("box").mkdir()
    made.save(RECORD)
    return made


@pytest.fixture
def in_child() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Runs something again and again in a process of its own, until it raises or the test is over."""
    children: list[int] = []

    def start(work: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                while True:
                    work()
            except SandboxFailed:
                os._exit(7)
            finally:
                os._exit(1)
        children.append(pid)
        return pid

    yield start
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def told(records: Records) -> dict[str, object]:
    value = json.loads((records.directory("box") / "sandbox.json").read_bytes())
    assert isinstance(value, dict)
    return value


def exit_codes(children: list[int]) -> list[int]:
    """What the children ended with, once all have; they stay to be reaped."""
    deadline = time.monotonic() + DEADLINE_S
    codes: list[int] = []
    for pid in children:
        while (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            assert time.monotonic() < deadline, "a late writer goes on"
            time.sleep(0.01)
        codes.append(ended.si_status)
    return codes


def test_who_writes_late_is_refused_and_what_is_over_stays_over(
    records: Records, in_child: Callable[[Callable[[], object]], int]
) -> None:
    late = [
        replace(RECORD, ready=True, pid=1),
        replace(RECORD, ready=True, pid=2, epoch=4),
        replace(RECORD, labels={"a": "b" * 5000}),
    ]
    children = [in_child(partial(records.save, one, durable=False)) for one in late[:2]]
    for _ in range(200):
        assert told(records)["generation"] == "first"  # whole, whoever is writing
    records.end("box")
    assert exit_codes(children) == [7, 7]
    assert told(records)["ended"] is True
    with pytest.raises(SandboxFailed, match="being removed"):
        records.save(late[2])
    loaded = records.load("box")
    assert loaded is not None
    assert not loaded.is_alive()


def test_who_writes_for_an_earlier_making_is_refused(
    records: Records, in_child: Callable[[Callable[[], object]], int]
) -> None:
    child = in_child(lambda: records.save(replace(RECORD, ready=True), durable=False))
    with records.lock("box"):
        records.end("box")
        os.rename(records.directory("box"), records.trash / "box.0")
        records.directory("box").mkdir()
        records.save(replace(RECORD, generation="second"))
    assert exit_codes([child]) == [7]
    assert told(records)["generation"] == "second"
    assert told(records)["ready"] is False


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"epoch": 2}, "at epoch 3", id="an-older-epoch"),
        pytest.param({"generation": "other"}, "another sandbox", id="another-making"),
    ],
)
def test_what_is_older_is_refused(records: Records, change: dict[str, object], why: str) -> None:
    with pytest.raises(SandboxFailed, match=why):
        records.save(replace(RECORD, **change))  # type: ignore[arg-type]
    assert told(records) == {**told(records), "epoch": 3, "generation": "first"}
