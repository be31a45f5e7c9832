"""Records and locks of sandboxes."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import InvalidSpec
from sandboxes.runner.tree import read_stat
from sandboxes.tiers.record import Record, Records, boot_id

RECORD = Record(name="one", tier="process", epoch=3, labels={"a": "b"}, created_ms=1, uid=None, data_dir=None)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    records = Records(tmp_path)
    (tmp_path / "one").mkdir()
    records.save(RECORD)
    assert records.load("one") == RECORD
    assert os.listdir(tmp_path / "one") == ["sandbox.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "one"}', '{"unknown": 1}', "\x00"])
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "sandbox.json").write_text(text)
    assert Records(tmp_path).load("one") is None


def test_names_cannot_leave_the_root(tmp_path: Path) -> None:
    for name in ("..", "a/b", "/etc", ".trash", ""):
        with pytest.raises(InvalidSpec):
            Records(tmp_path).directory(name)


def test_alive_means_this_very_process_of_this_boot() -> None:
    found = read_stat(os.getpid())
    assert found is not None
    mine = replace(RECORD, pid=os.getpid(), start_ticks=found[2], boot_id=boot_id())
    assert mine.is_alive()
    assert not replace(mine, start_ticks=found[2] + 1).is_alive()  # another process with our number
    assert not replace(mine, boot_id="another").is_alive()
    assert not replace(mine, pid=None).is_alive()
    assert not replace(mine, pid=2**22 + 1).is_alive()


def test_a_lock_keeps_others_out_until_it_is_given_back(tmp_path: Path) -> None:
    records = Records(tmp_path)
    entered = []

    def enter(name: str) -> None:
        with Records(tmp_path).lock(name, wait_s=0.05) as got:
            entered.append((name, got))

    with records.lock("one") as got:
        assert got
        for name in ("one", "two"):
            thread = threading.Thread(target=enter, args=(name,))
            thread.start()
            thread.join()
    enter("one")
    assert entered == [("one", False), ("two", True), ("one", True)]


def test_the_root_is_private(tmp_path: Path) -> None:
    records = Records(tmp_path / "root")
    records.prepare()
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700


def test_tags_of_different_roots_differ(tmp_path: Path) -> None:
    assert Records(tmp_path / "a").tag("one") != Records(tmp_path / "b").tag("one")


SLOT = "slot-0123456789abcdef"


def test_slots_are_beside_the_sandboxes(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.directory(SLOT).mkdir(parents=True)
    slot = replace(RECORD, name=SLOT, fits="x", ready=True, pid=1)
    records.save(slot)
    assert (records.names(), records.slot_names(), records.load(SLOT)) == ([], [SLOT], slot)
    assert slot.outside == SLOT


def test_what_a_slot_has_become_is_found_by_its_handle(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.directory(SLOT).mkdir(parents=True)
    records.save(replace(RECORD, name=SLOT, fits="x", ready=True))
    assert (records.leads_to(SLOT), records.claimed_by(SLOT)) == (SLOT, None)
    records.turn_handle(SLOT, SLOT)
    assert (records.handle(SLOT) / "sandbox.json").exists()
    records.turn_handle(SLOT, "one")
    assert (records.leads_to(SLOT), records.claimed_by(SLOT)) == (SLOT, None)  # not renamed yet
    os.rename(records.directory(SLOT), records.directory("one"))
    half = records.load("one")
    assert half == replace(RECORD, handle=SLOT)  # neither ready nor a slot any more
    assert half.outside == SLOT
    records.save(replace(half, ready=True))
    assert (records.leads_to(SLOT), records.claimed_by(SLOT)) == ("one", replace(half, ready=True))
    assert (records.handle(SLOT) / "sandbox.json").exists()
    records.save(RECORD)  # another one has that name by now
    assert records.claimed_by(SLOT) is None
    records.drop_handle(SLOT)
    assert (records.leads_to(SLOT), records.claimed_by(SLOT)) == ("", None)
    assert os.listdir(records.handles) == []
