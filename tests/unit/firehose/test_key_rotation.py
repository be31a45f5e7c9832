"""Keys that change, documents that cannot be had, and how often anybody is asked."""

from typing import Any

import pytest

from firehose.frames import Action, encode_commit, encode_identity
from firehose.keys import SigningKey
from firehose.repo import CommitResult, Write
from firehose.syntax import Nsid, RecordKey
from firehose.verify import Judgement, Verdict, Verifier
from firehose.verify.key_book import FAILURE_TTL_MS, KEY_TTL_MS, REFRESH_WINDOW_MS, REFRESHES

NOW_MS = 1_790_000_000_000
TIME = "2026-09-21T14:13:20Z"
NEW = SigningKey.from_bytes(b"\x44" * 32)


def frame(result: CommitResult, seq: int) -> bytes:
    return encode_commit(
        seq=seq,
        repo=result.repo.did,
        commit=result.commit,
        rev=result.rev,
        since=result.since,
        time=TIME,
        blocks=result.car,
        ops=result.ops,
        prev_data=result.prev_data,
    )


class Stream:
    """A verifier, and a directory that counts what it is asked; `documents` is what it answers now."""

    def __init__(self, author: Any) -> None:
        self.author = author
        self.verifier = Verifier()
        self.document: dict[str, Any] | None = author.document()
        self.asked: list[bool] = []  # each time: was it a refresh?
        self.seq = 0

    def say(self, raw: bytes, now_ms: int = NOW_MS) -> tuple[str, str]:
        judgement: Judgement = self.verifier.receive(raw, now_ms)
        while judgement.needs:
            assert len(self.asked) < 1000
            (need,) = judgement.needs
            self.asked.append(need.refresh)
            self.verifier.learn(need.did, self.document)
            judgement = self.verifier.receive(raw, now_ms)
        return str(judgement.verdict), judgement.reason

    def commit(self, now_ms: int = NOW_MS) -> tuple[str, str]:
        self.seq += 1
        wish = Write(
            action=Action.CREATE,
            collection=Nsid("com.example.note"),
            rkey=RecordKey(f"r{self.seq}"),
            record={"$type": "com.example.note"},
        )
        result = self.author.repo.apply([wish])
        said = self.say(frame(result, self.seq), now_ms)
        if said[0] == "accept":  # a server whose commit nobody believes goes on from the one before
            self.author.save(result)
        return said

    def rotate(self, key: SigningKey) -> None:
        self.author.key = key
        repo = self.author.repo
        self.author.repo = type(repo).load(
            repo.commit, self.author.blocks.get, key=key, tids=self.author.tids
        )


@pytest.fixture
def stream(author: Any) -> Stream:
    return Stream(author)


def test_a_key_is_asked_for_once(stream: Stream) -> None:
    assert [stream.commit() for _ in range(5)] == [("accept", "ok")] * 5
    assert stream.asked == [False]


def test_a_rotated_key_is_found_by_one_refresh(stream: Stream) -> None:
    stream.commit()
    stream.rotate(NEW)
    stream.document = stream.author.document()
    assert stream.commit() == ("accept", "ok")
    assert stream.commit() == ("accept", "ok")
    assert stream.asked == [False, True]


def test_a_wrong_key_is_refreshed_exactly_once_and_then_rejected(stream: Stream) -> None:
    stream.commit()
    honest = stream.document
    stream.rotate(NEW)
    stream.document = honest  # the directory knows nothing of the new key
    assert stream.commit() == ("reject", "signature")
    assert stream.asked == [False, True]


def test_the_old_key_does_not_count_after_a_rotation(stream: Stream) -> None:
    old = stream.author.key
    stream.commit()
    stream.rotate(NEW)
    stream.document = stream.author.document()
    stream.commit()
    stream.rotate(old)
    assert stream.commit() == ("reject", "signature")


def test_an_identity_event_makes_the_key_be_asked_for_again(stream: Stream) -> None:
    stream.commit()
    stream.document = stream.author.document(NEW)
    stream.seq += 1
    raw = encode_identity(seq=stream.seq, did=stream.author.did, time=TIME)
    assert stream.say(raw) == ("accept", "ok")
    assert stream.commit() == ("reject", "signature")  # signed with what has just been replaced
    stream.rotate(NEW)
    assert stream.commit() == ("accept", "ok")
    assert stream.asked[0:2] == [False, False]


def test_strangers_cannot_make_us_ask_without_end(stream: Stream) -> None:
    stream.commit()
    stream.rotate(NEW)
    for _ in range(50):
        assert stream.commit() == ("reject", "signature")
    assert stream.asked.count(True) == REFRESHES
    stream.document = stream.author.document()
    assert stream.commit(NOW_MS + REFRESH_WINDOW_MS) == ("accept", "ok")  # later, it is asked again


def test_a_document_out_of_reach_is_no_lie(stream: Stream) -> None:
    stream.document = None
    assert stream.commit() == ("ignore", "identity-unresolved")
    assert stream.commit() == ("ignore", "identity-unresolved")
    assert stream.asked == [False]  # a failure is kept for a while, too
    stream.document = stream.author.document()
    assert stream.commit(NOW_MS + FAILURE_TTL_MS) == ("accept", "ok")
    assert stream.asked == [False, False]


def test_a_known_key_goes_on_counting_while_the_directory_is_away(stream: Stream) -> None:
    stream.commit()
    old, stream.document = stream.author.key, None
    stream.rotate(NEW)
    assert stream.commit() == ("ignore", "identity-unresolved")  # perhaps rotated: nobody can tell
    stream.rotate(old)
    assert stream.commit() == ("accept", "ok")


@pytest.mark.parametrize(
    "document",
    [{}, {"id": "did:plc:other"}, {"verificationMethod": []}],
)
def test_a_document_without_a_key_is_a_reason_to_reject(stream: Stream, document: dict[str, Any]) -> None:
    stream.document = (stream.author.document() | document) if document else {}
    assert stream.commit() == ("reject", "identity-invalid")
    assert stream.asked == [False, True]


def test_a_key_is_kept_for_a_day(stream: Stream) -> None:
    stream.commit()
    stream.commit(NOW_MS + KEY_TTL_MS - 1)
    assert stream.asked == [False]
    stream.commit(NOW_MS + KEY_TTL_MS)
    assert stream.asked == [False, False]


def test_two_rounds_are_enough(author: Any) -> None:
    verifier = Verifier()
    raw = frame(author.first, 1)
    wrong = author.document(NEW)
    for refresh in (False, True):
        judgement = verifier.receive(raw, NOW_MS)
        assert [need.refresh for need in judgement.needs] == [refresh]
        verifier.learn(author.did, wrong)
    assert verifier.receive(raw, NOW_MS).verdict is Verdict.REJECT
