"""What strangers send costs little more memory than it takes itself, and no time to speak of."""

import time
import tracemalloc
from typing import Any

import pytest

from firehose.car import write_car
from firehose.cid import Cid
from firehose.commit import sign_commit
from firehose.drisl import encode
from firehose.frames import MAX_FRAME_BYTES, Action, RepoOp, encode_commit
from firehose.mst import Mst
from firehose.syntax import Tid
from firehose.tid import tid_from
from firehose.verify import Verdict, Verifier

NOW_MS = 1_790_000_000_000
PATH = "com.example.note/a"
FLOOR_BYTES = 2_000_000  # of what is small anyway
HEADER = encode({"op": 1, "t": "#commit"})


def head(major: int, number: int) -> bytes:
    return bytes((major << 5 | 26,)) + number.to_bytes(4)


def list_of(item: bytes, size: int) -> bytes:
    return head(4, size // len(item)) + item * (size // len(item))


FRAMES = {
    "maps": HEADER + b"\xa1\x63ops" + list_of(b"\xa0", 200_000),
    "lists": HEADER + b"\xa1\x63ops" + list_of(b"\x80", 200_000),
    "small-numbers": HEADER + b"\xa1\x63ops" + list_of(b"\x19\x03\xe8", 200_000),
    "short-texts": HEADER + b"\xa1\x63ops" + list_of(b"\x61a", 200_000),
    "a-million-headers": b"\xa0" * 200_000,
    "one-text": HEADER + b"\xa1\x63ops" + head(3, 200_000) + b"a" * 200_000,
    "deep-2000": HEADER + b"\xa1\x63ops" + b"\x81" * 2000 + b"\xf6",
    "deep-200000": HEADER + b"\xa1\x63ops" + b"\x81" * 200_000 + b"\xf6",
    "lengths-that-lie": HEADER + b"\xa1\x63ops" + head(4, 0xFFFFFFFF),
    "one-text-of-5-mb": HEADER + b"\xa1\x63ops" + head(3, 4_990_000) + b"a" * 4_990_000,
    "huge-text-that-lies": HEADER + b"\xa1\x63ops" + head(3, 0xFFFFFFFF),
}


def peak_of(run: Any) -> tuple[Any, int, float]:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        start = time.perf_counter()
        result = run()
        return result, tracemalloc.get_traced_memory()[1] - before, time.perf_counter() - start
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_a_hostile_frame(name: str) -> None:
    raw = FRAMES[name]
    assert len(raw) <= MAX_FRAME_BYTES
    judgement, peak, seconds = peak_of(lambda: Verifier().receive(raw, NOW_MS))
    assert judgement.verdict is Verdict.REJECT
    assert peak <= 4 * len(raw) + FLOOR_BYTES
    assert seconds < 5


def signed(author: Any, data: Cid, blocks: dict[Cid, bytes], op: RepoOp) -> bytes:
    rev = Tid(tid_from(NOW_MS * 1000 + 500))
    _, block = sign_commit(author.key, did=author.did, rev=rev, data=data)
    root = Cid.for_dag_cbor(block)
    return encode_commit(
        seq=1,
        repo=author.did,
        commit=root,
        rev=rev,
        since=author.first.rev,
        time="",
        blocks=write_car([root], {root: block, **blocks}),
        ops=[op],
        prev_data=Mst.empty().root,
    )


def prefixes(count: int) -> bytes:
    """Entries that repeat a key of 1,000 bytes in three: 40 MB of keys in a node of 2 MB."""
    first = b"\xa4\x61k\x59\x03\xe8" + b"a" * 1000 + b"\x61p\x00\x61t\xf6\x61v" + LINK
    after = b"".join(
        b"\xa4\x61k\x43"
        + bytes((98 + n // 65536, n // 256 % 256, n % 256))
        + b"\x61p\x19\x03\xe8\x61t\xf6\x61v"
        + LINK
        for n in range(count)
    )
    return b"\xa2\x61e\x9a" + (count + 1).to_bytes(4) + first + after + b"\x61l\xf6"


def broad(count: int) -> bytes:
    """As many short keys as a node of that size can have, one of them at the wrong height."""
    entries = [
        b"\xa4\x61k\x44" + n.to_bytes(4) + b"\x61p\x00\x61t\xf6\x61v" + LINK
        if not n
        else b"\xa4\x61k\x43" + n.to_bytes(3) + b"\x61p\x01\x61t\xf6\x61v" + LINK
        for n in range(count)
    ]
    return b"\xa2\x61e\x99" + count.to_bytes(2) + b"".join(entries) + b"\x61l\xf6"


LINK = b"\xd8\x2a\x58\x25\x00\x01\x71\x12\x20" + bytes(32)
BLOCKS = {
    "prefixes": prefixes(28_000),
    "broad": broad(25_000),
    "maps": b"\xa1\x61a" + list_of(b"\xa0", 200_000),
    "texts": b"\xa1\x61a" + list_of(b"\x61a", 200_000),
    "deep": b"\xa1\x61a" + b"\x81" * 200_000 + b"\xf6",
    "entries": b"\xa2\x61e" + list_of(b"\xa0", 200_000) + b"\x61l\xf6",
    "entries-of-maps": b"\xa2\x61e" + list_of(b"\xa1\x61k\xa0", 200_000) + b"\x61l\xf6",
}


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize("place", ["record", "node", "commit"])
def test_a_hostile_block(author: Any, judge: Any, place: str, name: str) -> None:
    block = BLOCKS[name]
    cid = Cid.for_dag_cbor(block)
    tree = Mst.empty().put(PATH, cid)
    op = RepoOp(action=Action.CREATE, path=PATH, cid=cid)
    if place == "record":
        raw = signed(author, tree.root, tree.all_blocks() | {cid: block}, op)
    elif place == "node":
        raw = signed(author, cid, {cid: block}, op)
    else:
        raw = encode_commit(
            seq=1, repo=author.did, commit=cid, rev=tid_from(NOW_MS * 1000), since=None, time="",
            blocks=write_car([cid], {cid: block}), ops=[op], prev_data=None,
        )  # fmt: skip
    documents = {author.did: [author.document()]}
    judgement, peak, seconds = peak_of(lambda: judge(Verifier(), raw, NOW_MS, documents))
    assert judgement.verdict is Verdict.REJECT
    assert peak <= 4 * len(raw) + FLOOR_BYTES
    assert seconds < 5
