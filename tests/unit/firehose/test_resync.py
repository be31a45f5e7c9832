"""The machine that brings repositories back in step: each transition, each limit, and what it holds back."""

import random
from itertools import product
from pathlib import Path

import pytest

from firehose import resync as resync_module
from firehose.cid import Cid
from firehose.errors import RepoInvalid
from firehose.resync import (
    MAX_FETCHES,
    MAX_HELD_FRAMES,
    MAX_HOST_FETCHES,
    RETRY_BASE_MS,
    RETRY_CAP_MS,
    START_WINDOW_MS,
    STARTS,
    TRANSITIONS,
    Cause,
    FetchRepo,
    Phase,
    Resync,
)
from firehose.resync_journal import MAX_STALE_LINES, Pending, ResyncJournal
from firehose.syntax import Did
from firehose.tid import tid_from
from firehose.verify import RepoState

ALICE = Did("did:plc:alice2222222222222222222")
TREES = [Cid.for_dag_cbor(bytes([number])) for number in range(3)]


def did(number: int) -> Did:
    return Did(f"did:plc:account{number:05}")


@pytest.fixture
def resync() -> Resync:
    return Resync(random.Random(1))


def test_every_transition_is_in_the_table_or_cannot_happen() -> None:
    impossible = {
        (Phase.SYNCED, Cause.STARTED),
        (Phase.SYNCED, Cause.ADOPTED),
        (Phase.SYNCED, Cause.FAILED),
        (Phase.SYNCED, Cause.GONE),
        (Phase.DESYNCHRONIZED, Cause.ADOPTED),
        (Phase.DESYNCHRONIZED, Cause.FAILED),
        (Phase.RESYNCING, Cause.STARTED),
        (Phase.ERROR, Cause.ADOPTED),
        (Phase.ERROR, Cause.FAILED),
    }
    assert set(product(Phase, Cause)) == set(TRANSITIONS) | impossible
    assert not set(TRANSITIONS) & impossible


def test_a_gap_is_closed_by_an_archive(resync: Resync) -> None:
    resync.gap(ALICE, b"one", 1000)
    assert resync.phase(ALICE) is Phase.DESYNCHRONIZED
    assert resync.start(1000) == [FetchRepo(did=ALICE, attempt=0)]
    assert resync.start(1000) == []
    resync.gap(ALICE, b"two", 1001)
    assert resync.phase(ALICE) is Phase.RESYNCING
    assert [(held.received_ms, held.frame) for held in resync.adopted(ALICE)] == [
        (1000, b"one"),
        (1001, b"two"),
    ]
    assert resync.phase(ALICE) is Phase.SYNCED
    assert resync.phases().total() == 0
    assert resync._held_bytes == 0


def test_pauses_double_up_to_an_hour_and_are_drawn(resync: Resync) -> None:
    now_ms = 0
    resync.gap(ALICE, b"x", now_ms)
    for attempt in range(12):
        assert resync.start(now_ms) == [FetchRepo(did=ALICE, attempt=attempt)]
        resync.failed(ALICE, now_ms)
        assert resync.phase(ALICE) is Phase.ERROR
        due_ms = resync.due_ms(now_ms)
        assert due_ms is not None
        longest = min(RETRY_CAP_MS, RETRY_BASE_MS << attempt)
        assert longest / 2 <= due_ms - now_ms <= longest
        assert resync.start(due_ms - 1) == []
        now_ms = due_ms


def test_one_repository_is_not_read_more_often_than_allowed(resync: Resync) -> None:
    for _ in range(STARTS):
        resync.gap(ALICE, b"x", 0)
        assert len(resync.start(0)) == 1
        resync.adopted(ALICE)
    resync.gap(ALICE, b"x", 0)
    assert resync.start(0) == []
    assert resync.due_ms(0) == START_WINDOW_MS
    assert len(resync.start(START_WINDOW_MS)) == 1


def test_hosts_have_a_share_each(resync: Resync) -> None:
    for number in range(20):
        resync.gap(did(number), b"x", 0, host=f"pds{number % 10}.example.com")
    wishes = resync.start(0)
    assert len(wishes) == MAX_FETCHES
    for number in range(20, 40):
        resync.gap(did(number), b"x", 0, host="busy.example.com")
    for wish in wishes:
        resync.adopted(wish.did)
    for number in range(20):
        resync.gone(did(number))
    assert len(resync.start(0)) == MAX_HOST_FETCHES


def test_a_host_that_asks_for_a_pause_gets_it(resync: Resync) -> None:
    for number in range(3):
        resync.gap(did(number), b"x", 0, host="busy.example.com")
    first, second = resync.start(0)
    resync.failed(first.did, 0, retry_after_ms=30_000)
    resync.adopted(second.did)
    assert resync.start(29_999) == []
    assert [wish.did for wish in resync.start(30_000)] == [did(2)]


def test_what_is_held_back_is_bounded(resync: Resync, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_HELD_FRAMES + 10):
        resync.gap(ALICE, b"x", number)
    assert resync.counters["held-dropped"] == 10
    monkeypatch.setattr(resync_module, "MAX_HELD_BYTES", MAX_HELD_FRAMES + 100)
    resync.gap(did(1), b"y" * 101, 0)
    resync.gap(did(1), b"z" * 100, 0)
    assert resync.counters["held-dropped"] == 11
    monkeypatch.setattr(resync_module, "MAX_REPOS", 2)
    resync.gap(did(2), b"x", 0)
    assert resync.phase(did(2)) is Phase.SYNCED
    resync.gone(ALICE)
    resync.gone(did(1))
    assert resync._held_bytes == 0


def test_an_account_that_is_gone_wants_no_archive(resync: Resync) -> None:
    resync.gap(ALICE, b"x", 0)
    resync.start(0)
    assert resync.is_wanted(ALICE)
    resync.gone(ALICE)
    assert not resync.is_wanted(ALICE)
    resync.gone(ALICE)


def test_an_archive_must_not_be_older_nor_another_history(resync: Resync) -> None:
    revs = [tid_from(micros) for micros in (1, 2, 3)]
    known = RepoState(revs[1], TREES[1])
    resync.check(None, RepoState(revs[0], TREES[0]))
    resync.check(known, known)
    resync.check(known, RepoState(revs[2], TREES[2]))
    for found, reason in ((RepoState(revs[0], TREES[1]), "rev-old"), (RepoState(revs[1], TREES[2]), "fork")):
        with pytest.raises(RepoInvalid) as caught:
            resync.check(known, found)
        assert caught.value.reason == reason


def test_what_is_pending_is_still_pending_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "resyncs.jsonl"
    with ResyncJournal(path) as journal:
        resync = Resync(random.Random(1), journal.note)
        for number in range(4):
            resync.gap(did(number), b"frame", 1000, host="pds.test")
        for wish in resync.start(1000):
            if wish.did == did(0):
                resync.adopted(wish.did)
            else:
                resync.failed(wish.did, 2000)
        resync.gone(did(2))
        before = dict(journal.pending)
        written = path.read_bytes()  # as a kill would leave it: nothing was closed
    assert set(before) == {did(1), did(3)}
    for torn in range(20):
        path.write_bytes(written[: len(written) - torn])
        with ResyncJournal(path) as again:
            assert did(1) in again.pending
            if not torn:
                assert again.pending == before
    restored = Resync(random.Random(1))
    for account, pending in before.items():
        restored.restore(account, pending)
    assert restored.phase(did(1)) is Phase.ERROR
    assert restored.phase(did(3)) is Phase.DESYNCHRONIZED
    assert [wish.did for wish in restored.start(1000)] == [did(3)]
    assert did(1) in [wish.did for wish in restored.start(RETRY_CAP_MS)]


def test_a_journal_does_not_grow_with_what_is_over(tmp_path: Path) -> None:
    path = tmp_path / "resyncs.jsonl"
    with ResyncJournal(path) as journal:
        journal.note(ALICE, Pending(host="pds.test"))
        for number in range(MAX_STALE_LINES + 100):
            journal.note(did(number), Pending())
            journal.note(did(number), None)
        assert path.read_bytes().count(b"\n") < MAX_STALE_LINES
    with ResyncJournal(path) as again:
        assert again.pending == {ALICE: Pending(host="pds.test")}


@pytest.mark.parametrize("noise", [b"\xff\xfe", b"[]\n{}\n", b'{"did": "x", "host": ""}\n', b"[" * 100_000])
def test_a_damaged_journal_loses_what_is_damaged(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "resyncs.jsonl"
    with ResyncJournal(path) as journal:
        journal.note(ALICE, Pending(failures=2))
    path.write_bytes(noise + b"\n" + path.read_bytes())
    with ResyncJournal(path) as again:
        assert again.pending == {ALICE: Pending(failures=2)}
