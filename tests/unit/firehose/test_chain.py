"""What follows from what: chains of commits and syncs, and what is known of each account."""

from collections.abc import Callable
from typing import Any

import pytest

from firehose.frames import Action, CommitEvent, encode_account, encode_commit, encode_sync, parse_frame
from firehose.repo import CommitResult, Write
from firehose.syntax import Did, Nsid, RecordKey
from firehose.verify import AccountState, FirstSight, Policy, RepoState, Verifier
from firehose.verify.chain import judge_commit, judge_sync

NOW_MS = 1_790_000_000_000
TIME = "2026-09-21T14:13:20Z"
NOTE = Nsid("com.example.note")

Say = Callable[..., tuple[str, str]]


def frame(result: CommitResult, seq: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "seq": seq,
        "repo": result.repo.did,
        "commit": result.commit,
        "rev": result.rev,
        "since": result.since,
        "time": TIME,
        "blocks": result.car,
        "ops": result.ops,
        "prev_data": result.prev_data,
    }
    return encode_commit(**fields | changes)


def sync(result: CommitResult, seq: int) -> bytes:
    return encode_sync(seq=seq, did=result.repo.did, rev=result.rev, time=TIME, blocks=result.sync_car)


def note(author: Any, rkey: str, action: Action = Action.CREATE) -> CommitResult:
    record = None if action is Action.DELETE else {"$type": NOTE}
    wish = Write(action=action, collection=NOTE, rkey=RecordKey(rkey), record=record)
    result: CommitResult = author.save(author.repo.apply([wish]))
    return result


@pytest.fixture
def say(author: Any, judge: Any) -> Say:
    """`say(verifier, frame)`: verdict and reason, with Alice's document at hand."""

    def run(verifier: Verifier, raw: bytes) -> tuple[str, str]:
        judgement = judge(verifier, raw, NOW_MS, {author.did: [author.document()]})
        return str(judgement.verdict), judgement.reason

    return run


# The decision, as a table.


@pytest.mark.parametrize(
    ("changes", "policy", "expected"),
    [
        pytest.param({}, Policy.STRICT, ("accept", "ok"), id="follows"),
        pytest.param({"prev_data": None}, Policy.STRICT, ("desync", "prev-data-missing"), id="old-server"),
        pytest.param({"prev_data": None}, Policy.LENIENT, ("accept", "unproven"), id="old-server-lenient"),
        pytest.param({"prev_data": "other"}, Policy.STRICT, ("desync", "chain-data"), id="gap"),
        pytest.param({"prev_data": "other"}, Policy.FILTERED, ("accept", "unchained"), id="gap-filtered"),
        pytest.param({"prev_data": "other"}, Policy.LENIENT, ("accept", "unchained"), id="gap-lenient"),
        pytest.param({"since": "other"}, Policy.STRICT, ("desync", "chain-since"), id="undone-between"),
        pytest.param({"since": None}, Policy.STRICT, ("desync", "chain-since"), id="says-it-is-the-first"),
    ],
)
def test_judge_commit(
    author: Any, changes: dict[str, Any], policy: Policy, expected: tuple[str, str]
) -> None:
    first = author.first
    others = {"prev_data": note(author, "x").data, "since": note(author, "y").rev}
    fields = {name: others[name] if value == "other" else value for name, value in changes.items()}
    base = {"prev_data": first.data, "since": first.rev}
    event = parse_frame(frame(note(author, "a"), 1, **base | fields))
    assert isinstance(event, CommitEvent)
    known = RepoState(first.rev, first.data)
    assert judge_commit(known, event, policy, FirstSight.ACCEPT) == expected


def test_a_history_that_is_first_seen_in_its_middle(author: Any) -> None:
    event = parse_frame(frame(note(author, "a"), 1))
    legacy = parse_frame(frame(note(author, "b"), 1, prev_data=None))
    assert isinstance(event, CommitEvent)
    assert isinstance(legacy, CommitEvent)
    assert judge_commit(None, event, Policy.STRICT, FirstSight.ACCEPT) == ("accept", "ok")
    assert judge_commit(None, legacy, Policy.STRICT, FirstSight.ACCEPT) == ("accept", "unproven")
    assert judge_commit(None, event, Policy.STRICT, FirstSight.RESYNC) == ("desync", "first-sight")


def test_judge_sync(author: Any) -> None:
    first, later = author.first, note(author, "a")
    known = RepoState(later.rev, later.data)
    assert judge_sync(None, first.rev, first.data, Policy.STRICT) == ("accept", "ok")
    assert judge_sync(known, first.rev, first.data, Policy.STRICT) == ("ignore", "rev-old")
    assert judge_sync(known, later.rev, later.data, Policy.STRICT) == ("noop", "ok")
    assert judge_sync(known, later.rev, first.data, Policy.STRICT) == ("ignore", "rev-old")  # equivocation
    newest = note(author, "b")
    assert judge_sync(known, newest.rev, later.data, Policy.STRICT) == ("noop", "ok")
    assert judge_sync(known, newest.rev, newest.data, Policy.STRICT) == ("desync", "sync-data")
    assert judge_sync(known, newest.rev, newest.data, Policy.FILTERED) == ("accept", "unchained")


# Streams.


def test_a_lost_commit_breaks_the_chain_until_somebody_adopts(author: Any, say: Say) -> None:
    verifier = Verifier()
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    note(author, "lost")
    second, third = note(author, "a"), note(author, "b")
    assert say(verifier, frame(second, 3)) == ("desync", "chain-data")
    assert say(verifier, frame(third, 4)) == ("desync", "chain-data")
    assert verifier.repos()[author.did].data == author.first.data
    verifier.adopt(author.did, rev=second.rev, data=second.data)
    judgement = verifier.again(frame(third, 4), NOW_MS)
    assert (judgement.verdict, len(judgement.records)) == ("accept", 1)
    assert verifier.counters.total() == 3  # each frame once
    assert verifier.replayed.total() == 1
    assert verifier.last_seq == 4
    assert say(verifier, frame(note(author, "c"), 5)) == ("accept", "ok")


def test_a_lost_commit_that_was_undone_is_found_by_its_rev(author: Any, say: Say) -> None:
    verifier = Verifier()
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    note(author, "a")
    note(author, "a", Action.DELETE)  # the tree is as before
    assert say(verifier, frame(note(author, "b"), 4)) == ("desync", "chain-since")


def test_a_commit_without_ops_moves_the_rev_on(author: Any, say: Say) -> None:
    verifier = Verifier()
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    empty = author.save(author.repo.apply([]))
    assert say(verifier, frame(empty, 2)) == ("accept", "ok")
    assert verifier.repos()[author.did].rev == empty.rev
    changed = note(author, "a")
    assert say(verifier, frame(changed, 3, ops=())) == ("reject", "inversion")


def test_a_sync_with_known_data_moves_the_rev_on(author: Any, say: Say) -> None:
    verifier = Verifier()
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    empty = author.save(author.repo.apply([]))
    assert say(verifier, sync(empty, 2)) == ("noop", "ok")
    assert say(verifier, frame(note(author, "a"), 3)) == ("accept", "ok")


def test_lenient_accepts_what_cannot_be_undone_and_says_so(author: Any, say: Say) -> None:
    base = frame(author.first, 1)
    result = note(author, "a")
    lie = frame(result, 2, prev_data=note(author, "b").data)
    verifier = Verifier()
    assert say(verifier, base) == ("accept", "ok")
    assert say(verifier, lie) == ("reject", "inversion")
    lenient = Verifier(policy=Policy.LENIENT)
    assert say(lenient, base) == ("accept", "ok")
    assert say(lenient, lie) == ("accept", "unproven-inversion")


def test_a_stream_that_comes_from_a_pds_speaks_for_its_own_accounts_only(author: Any, say: Say) -> None:
    assert say(Verifier(host="PDS.example.com"), frame(author.first, 1)) == ("accept", "ok")
    assert say(Verifier(host="evil.example.com"), frame(author.first, 1)) == ("reject", "host-authority")
    assert say(Verifier(host="pds.example.com:8443"), frame(author.first, 1)) == ("reject", "host-authority")


def test_a_deleted_account_begins_anew(author: Any, say: Say) -> None:
    verifier = Verifier()
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    off = encode_account(seq=2, did=author.did, time=TIME, active=False, status="deleted")
    assert say(verifier, off) == ("accept", "ok")
    assert verifier.account(author.did) == AccountState(active=False, status="deleted", seq=2)
    assert say(verifier, frame(note(author, "a"), 3)) == ("ignore", "account-inactive")
    assert say(verifier, encode_account(seq=4, did=author.did, time=TIME, active=True)) == ("accept", "ok")
    assert say(verifier, frame(note(author, "b"), 5)) == ("accept", "ok")


def test_an_old_word_on_an_account_changes_nothing(author: Any, say: Say) -> None:
    verifier = Verifier()
    verifier.restore(author.did, active=False, status="takendown", seq=9)
    assert say(verifier, encode_account(seq=8, did=author.did, time=TIME, active=True)) == (
        "ignore",
        "account-old",
    )
    assert not verifier.is_active(author.did)


# Memory.


class Store:
    """A store of accounts that remembers what it was asked."""

    def __init__(self) -> None:
        self.states: dict[Did, AccountState] = {}

    def load(self, did: Did) -> AccountState | None:
        return self.states.get(did)

    def save(self, did: Did, state: AccountState) -> None:
        self.states[did] = state


def account_frame(seq: int, number: int) -> bytes:
    return encode_account(seq=seq, did=f"did:plc:account{number:05}", time=TIME, active=number % 2 == 0)


@pytest.mark.parametrize("has_store", [True, False])
def test_memory_is_bounded(author: Any, say: Say, has_store: bool) -> None:
    store = Store()
    verifier = Verifier(max_accounts=10, store=store if has_store else None)
    assert say(verifier, frame(author.first, 1)) == ("accept", "ok")
    for number in range(100):
        assert say(verifier, account_frame(number + 2, number)) == ("accept", "ok")
    assert len(verifier._accounts) == 10
    note(author, "lost")
    verdict = say(verifier, frame(note(author, "a"), 200))
    # What went to the store is known; what was forgotten is seen for the first time.
    assert verdict == (("desync", "chain-data") if has_store else ("accept", "ok"))
    assert verifier.is_active(Did("did:plc:account00001")) is not has_store
    verifier.flush()
    assert len(store.states) == (101 if has_store else 0)
