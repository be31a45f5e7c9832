"""Several verifying processes: the verdicts of one, to the letter, in the same order."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from firehose.drisl import encode
from firehose.errors import ProverDied, TraceInvalid
from firehose.frames import (
    Action,
    CommitEvent,
    encode_account,
    encode_commit,
    encode_error,
    encode_info,
    parse_frame,
)
from firehose.keys import SigningKey
from firehose.provers import BATCH_FRAMES, HANDED_BYTES, ROOM_BYTES, Provers
from firehose.repo import Write
from firehose.syntax import Nsid, RecordKey
from firehose.verify import Judgement, Verifier

NOW_MS = 1_790_000_000_000
Documents = dict[str, list[dict[str, Any]]]
Resolve = Callable[[str, bool], Mapping[str, Any] | None]


def resolver(documents: Documents) -> Resolve:
    """Documents by DID; a refresh moves on to the next one."""
    positions: dict[str, int] = {}

    def resolve(did: str, is_refresh: bool) -> Mapping[str, Any] | None:
        known = documents.get(did, [])
        positions[did] = min(positions.get(did, 0) + is_refresh, max(len(known) - 1, 0))
        return known[positions[did]] if known else None

    return resolve


def one_process(frames: list[tuple[int, bytes]], resolve: Resolve) -> tuple[Verifier, list[Judgement]]:
    verifier, judgements = Verifier(), []
    for now_ms, frame in frames:
        judgement = verifier.receive(frame, now_ms)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, resolve(need.did, need.refresh))
            judgement = verifier.receive(frame, now_ms)
        judgements.append(judgement)
    return verifier, judgements


@pytest.fixture
def troubled(pds_frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The recorded stream with lost, repeated, late, broken and nobody's frames in it."""
    frames = []
    for number, (now_ms, frame) in enumerate(pds_frames):
        if number % 17 == 0:
            continue
        frames.append((now_ms, frame))
        if number % 13 == 0:
            frames.append((now_ms, frame))
        if number % 29 == 0:
            frames.append(pds_frames[number // 2])
        if number % 31 == 0:
            frames.append((now_ms, frame[:-7]))
        if number % 37 == 0:
            frames += [
                (now_ms, encode_info("OutdatedCursor")),
                (now_ms, encode({"op": 1, "t": "#new"}) + encode({"seq": 1 << 40})),
                (now_ms, encode_account(seq=1, did="nobody", time="", active=True)),
                (now_ms, encode_error("ConsumerTooSlow")),
                (now_ms, b"noise"),
                # Its seq is not in the shortest form: no frame, so that its seq is still to come.
                (now_ms, encode({"op": 1, "t": "#sync"}) + b"\xa1cseq\x1b" + (1 << 30).to_bytes(8, "big")),
            ]
    return frames


def several_processes(
    frames: list[tuple[int, bytes]], resolve: Resolve, provers: Provers, verifier: Verifier
) -> list[Judgement]:
    judgements = []
    for (now_ms, frame), proved in provers.ahead((item, item[1]) for item in frames):
        judgement = verifier.receive(frame, now_ms, proved)
        while judgement.needs:
            for need in judgement.needs:
                verifier.learn(need.did, resolve(need.did, need.refresh))
            judgement = verifier.receive(frame, now_ms, proved)
        judgements.append(judgement)
    return judgements


@pytest.mark.parametrize("count", [2, 3])
def test_the_verdicts_are_those_of_one_process(
    troubled: list[tuple[int, bytes]], pds_documents: Documents, count: int
) -> None:
    alone, expected = one_process(troubled, resolver(pds_documents))
    assert len({verdict for verdict, _ in alone.counters}) >= 7
    verifier = Verifier()
    with Provers(count, verifier.key_of) as provers:
        assert len(provers.pids) == count - 1
        assert several_processes(troubled, resolver(pds_documents), provers, verifier) == expected
        assert verifier.counters == alone.counters
        verifier.rewind()  # now with every key known, so that signatures are checked ahead as well
        again = several_processes(troubled, resolver(pds_documents), provers, verifier)
    assert [judgement.verdict for judgement in again] == [judgement.verdict for judgement in expected]
    assert verifier.accounts() == alone.accounts()


def test_it_is_the_other_process_that_proves(
    pds_frames: list[tuple[int, bytes]], pds_documents: Documents
) -> None:
    verifier, judged = one_process(pds_frames, resolver(pds_documents))
    with Provers(2, verifier.key_of) as provers:
        proving = [provers.put(frame) for _, frame in pds_frames[: BATCH_FRAMES * 3]]
        sent = [one for one in proving if not one.is_done]
        assert provers.listen(60)  # without any help of ours
        done = [one for one in sent if one.is_done]
    assert len(done) >= BATCH_FRAMES
    accepted = {
        judgement.event.seq
        for judgement in judged
        if isinstance(judgement.event, CommitEvent) and judgement.reason == "ok"
    }
    for one in done:
        event = parse_frame(one.frame)
        assert isinstance(event, CommitEvent)
        assert one.key == verifier.key_of(event.did)
        if one.proof is not None:
            assert one.proof[0] == event.seq in accepted
            assert one.proof[7] == b""  # its signature was checked there
    assert sum(one.proof is not None for one in done) > BATCH_FRAMES // 2


def stand_still(pid: int) -> None:
    """Stop a process before it has read anything, so that it has begun no frame."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def test_nobody_waits_for_a_process_that_stands_still(
    pds_frames: list[tuple[int, bytes]], pds_documents: Documents
) -> None:
    """What it was given and has not begun is taken back; when it goes on, it leaves that out."""
    frames = pds_frames[: BATCH_FRAMES * 4]
    _, expected = one_process(frames, resolver(pds_documents))
    verifier = Verifier()
    with Provers(2, verifier.key_of) as provers:
        (pid,) = provers.pids
        stand_still(pid)
        assert several_processes(frames, resolver(pds_documents), provers, verifier) == expected
        unproved = [proved is None for _, proved in provers.ahead((frame, frame) for _, frame in frames)]
        assert set(unproved) == {True, False}  # whose turn came here is judged as with one process
        assert provers.is_waiting
        unread = [provers.put(frame) for _, frame in pds_frames[: BATCH_FRAMES * 2]]
        while provers.help():
            pass
        assert all(proving.is_done for proving in unread)
        proofs = [proving.proof for proving in unread]
        os.kill(pid, signal.SIGCONT)
        while provers.is_waiting:
            provers.listen(60)
        assert all(
            proving.proof is proof for proving, proof in zip(unread, proofs, strict=True)
        )  # not its own
        verifier.rewind()
        again = several_processes(frames, resolver(pds_documents), provers, verifier)
    assert [judgement.verdict for judgement in again] == [judgement.verdict for judgement in expected]


def test_a_frame_that_fits_no_batch_is_proved_here(pds_frames: list[tuple[int, bytes]]) -> None:
    large = max((frame for _, frame in pds_frames), key=len) + bytes(HANDED_BYTES)
    with Provers(2, lambda did: None) as provers:
        assert [item for item, _ in provers.ahead([(1, large), (2, large)])] == [1, 2]
        assert not provers.is_waiting


def test_frames_ahead_of_their_turn_have_a_limit_of_bytes() -> None:
    taken = 0

    def source() -> Iterator[tuple[int, bytes]]:
        nonlocal taken
        for taken in range(1, 100):
            yield taken, b"\x00" * (ROOM_BYTES // 4)

    with Provers(2, lambda did: None) as provers:
        assert next(iter(provers.ahead(source())))[0] == 1
    assert taken == 4


def test_a_proof_with_another_key_than_the_present_one_counts_for_nothing(author: Any) -> None:
    """A frame is proved ahead, and before its turn comes, the account's document names another key."""
    note = Write(
        action=Action.CREATE, collection=Nsid("com.example.note"), rkey=RecordKey("a"), record={"a": 1}
    )
    result = author.save(author.repo.apply([note]))
    frame = encode_commit(
        seq=2,
        repo=author.did,
        commit=result.commit,
        rev=result.rev,
        since=result.since,
        time="",
        blocks=result.car,
        ops=result.ops,
        prev_data=result.prev_data,
    )
    verifier = Verifier()
    verifier.receive(frame, NOW_MS)
    verifier.learn(author.did, author.document())
    provers = Provers(1, verifier.key_of)
    proving = provers.put(frame)
    assert provers.help()
    assert proving.proof is not None
    assert proving.proof[7] == b""  # its signature was checked, against the key of then
    assert verifier.receive(frame, NOW_MS, proving).reason == "ok"
    rotated = author.document(SigningKey.from_bytes(b"\x09" * 32))
    for document, reason in ((rotated, "signature"), (author.document(), "ok")):
        other = Verifier()
        judgement = other.receive(frame, NOW_MS, proving)
        while judgement.needs:
            other.learn(author.did, document)
            judgement = other.receive(frame, NOW_MS, proving)
        assert judgement.reason == reason


def test_what_comes_before_the_damage_is_told_first(pds_frames: list[tuple[int, bytes]]) -> None:
    def damaged() -> Iterator[tuple[int, bytes]]:
        yield from pds_frames[:50]
        raise TraceInvalid("a.fht", 7, "cut short")

    with Provers(2, lambda did: None) as provers:
        ahead = provers.ahead(damaged())
        assert [next(ahead)[0] for _ in range(50)] == [now_ms for now_ms, _ in pds_frames[:50]]
        with pytest.raises(TraceInvalid, match="cut short"):
            next(ahead)


def test_a_process_that_dies_is_told_of(pds_frames: list[tuple[int, bytes]]) -> None:
    verifier = Verifier()
    with Provers(2, verifier.key_of) as provers:
        (pid,) = provers.pids
        stand_still(pid)
        ahead = provers.ahead((frame, frame) for _, frame in pds_frames)
        next(ahead)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProverDied):
            list(ahead)


def test_no_process_is_no_answer() -> None:
    with pytest.raises(ValueError, match="0 processes"):
        Provers(0, lambda did: None)


def test_one_process_proves_nothing_ahead() -> None:
    with Provers(1, lambda did: None) as provers:
        assert list(provers.ahead([(1, b"a"), (2, b"b")])) == [(1, None), (2, None)]
        assert provers.pids == []
