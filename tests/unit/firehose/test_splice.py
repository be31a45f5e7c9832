"""Undoing one op by swapping links: it says what the slow way says, or nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.cid import Cid
from firehose.errors import FrameInvalid
from firehose.frames import Action, RepoOp
from firehose.mst import Mst
from firehose.mst_node import height_of
from firehose.verify.inversion import invert
from firehose.verify.splice import undo_create, undo_update

CIDS = [Cid.for_dag_cbor(bytes([0x61, letter])) for letter in b"abc"]
# Half of them above the leaves, so that nodes split, merge, and stand alone.
PATHS = sorted(
    [f"com.example.p/{number}" for number in range(300) if height_of(f"com.example.p/{number}".encode())]
    + [f"com.example.q/{number}" for number in range(60)]
)


def undo(
    root: bytes, blocks: dict[bytes, bytes], key: bytes, value: bytes, prev: bytes | None
) -> bytes | None:
    if prev is None:
        return undo_create(root, blocks, key, value)
    return undo_update(root, blocks, key, value, prev)


def tree_of(paths: dict[str, Cid]) -> Mst:
    tree = Mst.empty()
    for path, cid in paths.items():
        tree = tree.put(path, cid)
    return tree


def raw(blocks: dict[Cid, bytes]) -> dict[bytes, bytes]:
    return {cid.bytes: block for cid, block in blocks.items()}


def slow(tree: Mst, key: str, value: Cid, prev: Cid | None) -> bytes | None:
    action = Action.CREATE if prev is None else Action.UPDATE
    try:
        return invert(tree, [RepoOp(action=action, path=key, cid=value, prev=prev)]).bytes
    except FrameInvalid:
        return None


@pytest.fixture(scope="module")
def broad() -> dict[str, Cid]:
    return {path: CIDS[number % 3] for number, path in enumerate(PATHS)}


def test_every_op_on_a_broad_tree(broad: dict[str, Cid]) -> None:
    tree = tree_of(broad)
    told = 0
    for path, cid in broad.items():
        proof = raw(tree.covering_proof([path]) | {tree.root: tree.root_block})
        created = undo(tree.root.bytes, proof, path.encode(), cid.bytes, None)
        assert created in (None, tree.delete(path).root.bytes)
        other = Cid.for_dag_cbor(path.encode())
        updated = undo(tree.root.bytes, proof, path.encode(), cid.bytes, other.bytes)
        assert updated in (None, tree.put(path, other).root.bytes)
        told += (created is not None) + (updated is not None)
        assert undo(tree.root.bytes, proof, path.encode() + b"x", cid.bytes, None) is None
        assert undo(tree.root.bytes, proof, path.encode(), other.bytes, None) is None
    # A record that is twice in its node is left to the slow way; here there are but three records.
    assert told > len(broad)


@given(data=st.data())
def test_the_fast_way_says_what_the_slow_way_says(data: st.DataObject) -> None:
    paths = data.draw(st.dictionaries(st.sampled_from(PATHS), st.sampled_from(CIDS), min_size=1, max_size=40))
    tree = tree_of(paths)
    path = data.draw(st.sampled_from(sorted(paths)))
    prev = data.draw(st.sampled_from([None, *CIDS]))
    blocks = raw(tree.all_blocks())
    for missing in data.draw(st.lists(st.sampled_from(sorted(blocks)), max_size=1)):
        if missing != tree.root.bytes:
            del blocks[missing]
    args: tuple[Any, ...] = (
        tree.root.bytes,
        blocks,
        path.encode(),
        paths[path].bytes,
        None if prev is None else prev.bytes,
    )
    expected = slow(Mst.load_raw(tree.root.bytes, blocks.get), path, paths[path], prev)
    assert undo(*args) in (None, expected)


def test_a_chain_of_links_without_keys_ends() -> None:
    blocks = {}
    root = CIDS[0]
    for _ in range(300):
        block = b"\xa2\x61e\x80\x61l\xd8\x2a\x58\x25\x00" + root.bytes
        root = Cid.for_dag_cbor(block)
        blocks[root.bytes] = block
    assert undo(root.bytes, blocks, b"a/b", CIDS[1].bytes, None) is None
