"""Undoing ops: the proof fixtures, any commit of ours, and lies about what a commit did."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose.cid import Cid
from firehose.errors import FrameInvalid
from firehose.frames import Action, RepoOp
from firehose.mst import Mst
from firehose.mst_node import height_of
from firehose.verify.inversion import check_inversion, invert

FIXTURES = Path(__file__).parents[2] / "data" / "interop" / "firehose" / "commit-proof-fixtures.json"
CIDS = [Cid.for_dag_cbor(bytes([0x61, letter])) for letter in b"abc"]


def fixtures() -> list[Any]:
    vectors = json.loads(FIXTURES.read_text())
    assert len(vectors) == 6
    return [pytest.param(vector, id=vector["comment"]) for vector in vectors]


def create(path: str, cid: Cid) -> RepoOp:
    return RepoOp(action=Action.CREATE, path=path, cid=cid)


def delete(path: str, prev: Cid | None) -> RepoOp:
    return RepoOp(action=Action.DELETE, path=path, cid=None, prev=prev)


@pytest.mark.parametrize("vector", fixtures())
def test_the_commit_proof_fixtures(vector: dict[str, Any]) -> None:
    leaf = Cid.parse(vector["leafValue"])
    before = Mst.empty()
    for key in vector["keys"]:
        before = before.put(key, leaf)
    assert str(before.root) == vector["rootBeforeCommit"]
    after = before
    for key in vector["adds"]:
        after = after.put(key, leaf)
    for key in vector["dels"]:
        after = after.delete(key)
    assert str(after.root) == vector["rootAfterCommit"]
    proof = after.covering_proof([*vector["adds"], *vector["dels"]])
    assert {str(cid) for cid in proof} == set(vector["blocksInProof"])
    ops = [create(key, leaf) for key in vector["adds"]] + [delete(key, leaf) for key in vector["dels"]]
    check_inversion(Mst.load(after.root, proof.get), ops, before.root)


# Paths of many heights, so that batches split, merge, raise and trim levels.
PATHS = sorted(
    f"com.example.p/{number}" for number in range(400) if height_of(f"com.example.p/{number}".encode())
)

pytestmark = pytest.mark.usefixtures("twin")
PATHS += [f"com.example.q/{number}" for number in range(40)]
CONTENTS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from(CIDS), max_size=60)


@st.composite
def commits(draw: st.DrawFn) -> tuple[dict[str, Cid], list[RepoOp]]:
    before = draw(CONTENTS)
    ops = []
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True, max_size=25)):
        there = before.get(path)
        cid = draw(st.sampled_from(CIDS))
        if there is None:
            ops.append(create(path, cid))
        elif draw(st.booleans()):
            ops.append(delete(path, there))
        else:
            ops.append(RepoOp(action=Action.UPDATE, path=path, cid=cid, prev=there))
    return before, ops


def tree_of(contents: dict[str, Cid]) -> Mst:
    tree = Mst.empty()
    for path, cid in contents.items():
        tree = tree.put(path, cid)
    return tree


def applied(before: dict[str, Cid], ops: list[RepoOp]) -> Mst:
    tree = tree_of(before)
    for op in ops:
        tree = tree.delete(op.path) if op.cid is None else tree.put(op.path, op.cid)
    return tree


@given(commits())
def test_the_covering_proof_is_enough_to_undo_any_commit(commit: tuple[dict[str, Cid], list[RepoOp]]) -> None:
    before, ops = commit
    after = applied(before, ops)
    proof = after.covering_proof(op.path for op in ops)
    partial = Mst.load(after.root, {after.root: after.root_block, **proof}.get)
    check_inversion(partial, ops, tree_of(before).root)


@given(commits(), st.data())
def test_a_commit_that_hides_an_op_is_found(
    commit: tuple[dict[str, Cid], list[RepoOp]], data: st.DataObject
) -> None:
    before, ops = commit
    changing = [op for op in ops if op.cid != op.prev]
    if not changing:
        return
    hidden = data.draw(st.sampled_from(changing))
    after = applied(before, ops)
    with pytest.raises(FrameInvalid) as caught:
        check_inversion(after, [op for op in ops if op is not hidden], tree_of(before).root)
    assert caught.value.reason == "inversion"


@given(commits(), st.data())
def test_a_commit_that_lies_about_what_was_before_is_found(
    commit: tuple[dict[str, Cid], list[RepoOp]], data: st.DataObject
) -> None:
    before, ops = commit
    known = [op for op in ops if op.prev is not None]
    if not known:
        return
    liar = data.draw(st.sampled_from(known))
    lie = replace(liar, prev=Cid.for_dag_cbor(b"\x63lie"))
    with pytest.raises(FrameInvalid, match="inversion"):
        check_inversion(applied(before, ops), [lie if op is liar else op for op in ops], tree_of(before).root)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        pytest.param(create("com.example.p/1", CIDS[1]), "op-tree", id="another-record"),
        pytest.param(create("com.example.p/999", CIDS[0]), "op-tree", id="record-that-is-not-there"),
        pytest.param(delete("com.example.p/1", CIDS[0]), "op-tree", id="delete-of-what-is-still-there"),
        pytest.param(delete("com.example.p/999", None), "op-prev", id="delete-without-prev"),
        pytest.param(
            RepoOp(action=Action.UPDATE, path="com.example.p/1", cid=CIDS[0]),
            "op-prev",
            id="update-without-prev",
        ),
    ],
)
def test_an_op_that_does_not_fit_the_tree(op: RepoOp, reason: str) -> None:
    tree = tree_of({f"com.example.p/{number}": CIDS[0] for number in range(5)})
    with pytest.raises(FrameInvalid) as caught:
        invert(tree, [op])
    assert caught.value.reason == reason


def test_a_proof_that_lacks_a_node_proves_nothing() -> None:
    contents = {f"com.example.p/{number}": CIDS[0] for number in range(60)}
    path = next(path for path in contents if height_of(path.encode()) >= 2)
    tree = tree_of(contents)
    whole = tree.covering_proof([path])
    before = tree_of({name: cid for name, cid in contents.items() if name != path})
    check_inversion(Mst.load(tree.root, whole.get), [create(path, CIDS[0])], before.root)
    for left_out in whole:
        blocks = {cid: block for cid, block in whole.items() if cid != left_out}
        with pytest.raises(FrameInvalid, match="mst-missing"):
            check_inversion(Mst.load(tree.root, blocks.get), [create(path, CIDS[0])], before.root)
