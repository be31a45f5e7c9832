"""An author who signs whatever he likes, a server that sends whatever it likes: verdicts, never a crash."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firehose.car import write_car
from firehose.cid import Cid
from firehose.commit import sign_commit
from firehose.drisl import encode
from firehose.frames import Action, RepoOp, encode_commit
from firehose.mst import Mst
from firehose.mst_node import Node, common_prefix, height_of
from firehose.syntax import Tid
from firehose.tid import tid_from
from firehose.verify import Verdict, Verifier

pytestmark = pytest.mark.usefixtures("twin")

NOW_MS = 1_790_000_000_000
NOTE = "com.example.note"
RECORD = encode({"$type": NOTE})
RECORD_CID = Cid.for_dag_cbor(RECORD)
PATHS = [f"{NOTE}/r{number}" for number in range(40)]


def signed_frame(
    author: Any, data: Cid, blocks: dict[Cid, bytes], ops: list[RepoOp], prev: Cid | None
) -> bytes:
    """A frame over any tree at all, with a signature that is right."""
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
        blocks=write_car([root], {root: block, **blocks, RECORD_CID: RECORD}),
        ops=ops,
        prev_data=prev,
    )


def whole_tree() -> Mst:
    tree = Mst.empty()
    for path in PATHS:
        tree = tree.put(path, RECORD_CID)
    return tree


TREE = whole_tree()
BEFORE = TREE.delete(PATHS[7])
OP = RepoOp(action=Action.CREATE, path=PATHS[7], cid=RECORD_CID)


def verdict_of(author: Any, judge: Any, raw: bytes) -> tuple[Verdict, str]:
    judgement = judge(Verifier(), raw, NOW_MS, {author.did: [author.document()]})
    return judgement.verdict, judgement.reason


def test_the_honest_frame_is_accepted(author: Any, judge: Any) -> None:
    raw = signed_frame(author, TREE.root, TREE.all_blocks(), [OP], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.ACCEPT, "ok")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_root_node_with_any_byte_changed_and_signed(author: Any, judge: Any, data: st.DataObject) -> None:
    block = bytearray(TREE.root_block)
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    root = Cid.for_dag_cbor(bytes(block))
    raw = signed_frame(author, root, TREE.all_blocks() | {root: bytes(block)}, [OP], BEFORE.root)
    verdict, reason = verdict_of(author, judge, raw)
    if bytes(block) != TREE.root_block:
        assert verdict is Verdict.REJECT
        assert reason.startswith(("mst-", "op-tree", "inversion"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=st.binary(max_size=60))
def test_noise_as_a_signed_tree_or_record(author: Any, judge: Any, block: bytes) -> None:
    cid = Cid.for_dag_cbor(block)
    raw = signed_frame(author, cid, {cid: block}, [OP], BEFORE.root)
    assert verdict_of(author, judge, raw)[0] is Verdict.REJECT
    tree = Mst.empty().put(PATHS[0], cid)
    op = RepoOp(action=Action.CREATE, path=PATHS[0], cid=cid)
    raw = signed_frame(author, tree.root, tree.all_blocks() | {cid: block}, [op], Mst.empty().root)
    assert verdict_of(author, judge, raw)[0] in (Verdict.REJECT, Verdict.ACCEPT)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_of_a_frame_changed(
    author: Any, judge: Any, pds_frames: list[tuple[int, bytes]], pds_documents: Any, data: st.DataObject
) -> None:
    now_ms, raw = data.draw(st.sampled_from(pds_frames[:60]))
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for frame in (bytes(changed), bytes(changed[:cut])):
        judgement = judge(Verifier(), frame, now_ms, pds_documents)
        assert judgement.verdict in Verdict


def test_a_tree_of_bare_pointers_ends(author: Any, judge: Any) -> None:
    """A chain of nodes without keys, as deep as heights go and deeper."""
    for depth in (3, 127, 2000):
        bottom = Node(0, [PATHS[0].encode()], [RECORD_CID.bytes], [None, None])
        blocks = {Cid(bottom.cid): bottom.block}
        below = bottom.cid
        for _ in range(depth):
            node = Node(1, [], [], [below])
            blocks[Cid(node.cid)] = node.block
            below = node.cid
        high = next(f"{NOTE}/h{n}" for n in range(9999) if height_of(f"{NOTE}/h{n}".encode()) == 3)
        top = Node(3, [high.encode()], [RECORD_CID.bytes], [below, None])
        blocks[Cid(top.cid)] = top.block
        op = RepoOp(action=Action.CREATE, path=high, cid=RECORD_CID)
        raw = signed_frame(author, Cid(top.cid), blocks, [op], BEFORE.root)
        assert verdict_of(author, judge, raw)[0] is Verdict.REJECT


def test_a_node_that_is_its_own_child_cannot_be_made_but_may_be_named(author: Any, judge: Any) -> None:
    """A hash cannot name itself; a link to another block of the archive that is no node can be."""
    leaf = Node(0, [PATHS[0].encode()], [RECORD_CID.bytes], [None, None])
    high = next(f"{NOTE}/h{n}" for n in range(9999) if height_of(f"{NOTE}/h{n}".encode()) == 1)
    for child in (RECORD_CID.bytes, leaf.cid):
        top = Node(1, [high.encode()], [RECORD_CID.bytes], [child, child])
        blocks = {Cid(leaf.cid): leaf.block, Cid(top.cid): top.block}
        op = RepoOp(action=Action.CREATE, path=high, cid=RECORD_CID)
        raw = signed_frame(author, Cid(top.cid), blocks, [op], Cid(leaf.cid))
        assert verdict_of(author, judge, raw)[0] is Verdict.REJECT


@pytest.mark.parametrize("count", [200])
def test_many_ops_on_a_broad_node_are_judged_in_time(author: Any, judge: Any, count: int) -> None:
    """All keys at one height make one broad node: 200 ops on 5,000 keys must not take minutes."""
    keys = [f"{NOTE}/w{n}" for n in range(7500) if height_of(f"{NOTE}/w{n}".encode()) == 0][:5000]
    keys.sort()
    node = Node(0, [key.encode() for key in keys], [RECORD_CID.bytes] * len(keys), [None] * (len(keys) + 1))
    rest = keys[count:]
    before = Node(0, [key.encode() for key in rest], [RECORD_CID.bytes] * len(rest), [None] * (len(rest) + 1))
    ops = [RepoOp(action=Action.CREATE, path=key, cid=RECORD_CID) for key in keys[:count]]
    raw = signed_frame(author, Cid(node.cid), {Cid(node.cid): node.block}, ops, Cid(before.cid))
    assert verdict_of(author, judge, raw) == (Verdict.ACCEPT, "ok")


# Trees that break one rule each, signed by their author ---------------------------------------------------

LOW = sorted(path.encode() for path in PATHS if height_of(path.encode()) == 0)
HIGH = sorted(path.encode() for path in PATHS if height_of(path.encode()) == 1)


def entry(key: bytes, before: bytes = b"", **changes: Any) -> dict[str, Any]:
    shared = common_prefix(key, before)
    return {"k": key[shared:], "p": shared, "t": None, "v": RECORD_CID} | changes


def node(*entries: dict[str, Any], left: Cid | None = None, **changes: Any) -> bytes:
    return encode({"e": list(entries), "l": left} | changes)


TWO = (entry(LOW[0]), entry(LOW[1], LOW[0]))
BROKEN = {
    "wrong-height": (node(entry(LOW[0]), entry(HIGH[-1], LOW[0])), "mst-key-height"),
    "keys-in-another-order": (node(entry(LOW[1]), entry(LOW[0], LOW[1])), "mst-key-order"),
    "a-key-twice": (node(entry(LOW[0]), entry(LOW[0], LOW[0])), "mst-key-order"),
    "prefix-too-short": (node(TWO[0], {"k": LOW[1], "p": 0, "t": None, "v": RECORD_CID}), "mst-key-prefix"),
    "prefix-too-long": (node(entry(LOW[0], p=5)), "mst-node-form"),
    "a-field-more": (node(*TWO, x=1), "mst-node-form"),
    "a-field-more-in-an-entry": (node(entry(LOW[0], x=1)), "mst-node-form"),
    "a-link-of-bytes": (node(entry(LOW[0], v=RECORD_CID.bytes)), "mst-node-form"),
    "a-link-to-raw-bytes": (node(entry(LOW[0], v=Cid.for_raw(b""))), "mst-node-form"),
    "a-longer-number": (node(*TWO).replace(b"\x61p\x00", b"\x61p\x18\x00", 1), "mst-node-form"),
    "a-float": (node(*TWO).replace(b"\x61p\x00", b"\x61p\xfb" + bytes(8), 1), "mst-node-form"),
    "bytes-after": (node(*TWO) + b"\x00", "mst-node-form"),
    "indefinite": (b"\xbf" + node(*TWO)[1:] + b"\xff", "mst-node-form"),
    "a-child-below-a-leaf": (node(entry(LOW[0], t=RECORD_CID)), "mst-child-below-leaf"),
    "a-bare-root": (node(left=RECORD_CID), "mst-bare-root"),
    "an-empty-key": (node(entry(b"")), "mst-key-order"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_signed_root_that_breaks_one_rule(author: Any, judge: Any, name: str) -> None:
    block, reason = BROKEN[name]
    root = Cid.for_dag_cbor(block)
    op = RepoOp(action=Action.CREATE, path=LOW[0].decode(), cid=RECORD_CID)
    raw = signed_frame(author, root, {root: block}, [op], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.REJECT, reason)


def test_blocks_missing_swapped_and_too_many(author: Any, judge: Any) -> None:
    nodes = TREE.covering_proof([PATHS[7]]) | {TREE.root: TREE.root_block}
    extra = {Cid.for_dag_cbor(block): block for block in (encode({"n": n}) for n in range(50))}
    raw = signed_frame(author, TREE.root, nodes | extra, [OP], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.ACCEPT, "ok")
    for missing in nodes:
        rest = {cid: block for cid, block in nodes.items() if cid != missing}
        raw = signed_frame(author, TREE.root, rest, [OP], BEFORE.root)
        assert verdict_of(author, judge, raw) == (Verdict.REJECT, "mst-missing")
    first, second = list(nodes)[:2]
    swapped = nodes | {first: nodes[second], second: nodes[first]}
    raw = signed_frame(author, TREE.root, swapped, [OP], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.REJECT, "car-block-hash")


def test_a_hidden_delete_and_a_path_twice(author: Any, judge: Any) -> None:
    hidden = TREE.delete(PATHS[9])
    raw = signed_frame(author, hidden.root, hidden.all_blocks(), [OP], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.REJECT, "inversion")
    raw = signed_frame(author, TREE.root, TREE.all_blocks(), [OP, OP], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.REJECT, "op-duplicate")


def test_a_mined_key_makes_a_deep_tree_and_no_trouble(author: Any, judge: Any) -> None:
    """A key of height 6 takes some 4,096 tries, and needs a node without keys at each level below it."""
    mined = next(f"{NOTE}/m{n}" for n in range(1 << 20) if height_of(f"{NOTE}/m{n}".encode()) >= 6)
    tree = BEFORE.put(mined, RECORD_CID)
    op = RepoOp(action=Action.CREATE, path=mined, cid=RECORD_CID)
    raw = signed_frame(author, tree.root, tree.all_blocks(), [op], BEFORE.root)
    assert verdict_of(author, judge, raw) == (Verdict.ACCEPT, "ok")
