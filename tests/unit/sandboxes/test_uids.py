"""Uids for sandboxes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.tiers.uids import NoFreeUid, Uids, is_used_otherwise, processes_of


def make(tmp_path: Path, name: str) -> Path:
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    return directory


def uids(tmp_path: Path, count: int = 5, taken: tuple[int, ...] = ()) -> Uids:
    return Uids(tmp_path / "claims", first=40_000, count=count, in_use=lambda uid: uid in taken)


def test_each_gets_its_own_until_none_is_left(tmp_path: Path) -> None:
    pool = uids(tmp_path)
    got = {pool.claim(make(tmp_path, f"s{n}")) for n in range(5)}
    assert got == set(range(40_000, 40_005))
    with pytest.raises(NoFreeUid):
        pool.claim(make(tmp_path, "s5"))


def test_the_same_sandbox_gets_the_same_again(tmp_path: Path) -> None:
    pool = uids(tmp_path)
    directory = make(tmp_path, "s")
    assert pool.claim(directory) == pool.claim(directory)


def test_a_uid_goes_with_its_directory(tmp_path: Path) -> None:
    pool = uids(tmp_path, count=1)
    before, after = make(tmp_path, "before"), tmp_path / "after"
    uid = pool.claim(before)
    before.rename(after)
    pool.move(uid, tmp_path / "another", tmp_path / "nowhere")  # not theirs
    pool.move(uid, before, after)
    with pytest.raises(NoFreeUid):
        pool.claim(make(tmp_path, "before"))
    assert pool.claim(after) == uid
    pool.release(uid, after)
    assert pool.claim(make(tmp_path, "before")) == uid


def test_a_released_uid_is_free_and_a_strangers_is_not(tmp_path: Path) -> None:
    pool = uids(tmp_path, count=1)
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    uid = pool.claim(one)
    pool.release(uid, two)  # not its own
    with pytest.raises(NoFreeUid):
        pool.claim(two)
    pool.release(uid, one)
    assert pool.claim(two) == uid


def test_the_claim_of_a_vanished_sandbox_lapses(tmp_path: Path) -> None:
    pool = uids(tmp_path, count=1)
    one = make(tmp_path, "one")
    uid = pool.claim(one)
    one.rmdir()
    assert pool.claim(make(tmp_path, "two")) == uid


def test_uids_that_live_otherwise_are_passed_over(tmp_path: Path) -> None:
    assert uids(tmp_path, taken=(40_000, 40_001, 40_003, 40_004)).claim(make(tmp_path, "s")) == 40_002


def test_accounts_and_running_processes_use_their_uids() -> None:
    assert is_used_otherwise(0)
    assert is_used_otherwise(os.getuid())
    assert not is_used_otherwise(3_999_999_999)


def test_no_process_hides_behind_a_name_that_is_no_text() -> None:
    code = r"import ctypes; ctypes.CDLL(None).prctl(15, b'\xff\xfe'); print(flush=True); input()"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in processes_of(os.getuid())
        process.kill()
