"""The tree: against a dict, against itself built from scratch, against the vectors, and against bad nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from firehose.cid import Cid
from firehose.drisl import encode
from firehose.errors import MissingBlock, MstInvalid
from firehose.mst import Mst
from firehose.mst_node import Node, common_prefix, encode_node, height_of, parse_node

MST = Path(__file__).parents[2] / "data" / "interop" / "mst"
LEAF = Cid.for_dag_cbor(b"\xa0")
OTHER = Cid.for_dag_cbor(b"\xa1\x61a\x01")
EXAMPLES = [line for line in (MST / "example_keys.txt").read_text().split("\n") if line]


def keys_of_height(height: int, count: int, prefix: str = "com.example.k/") -> list[str]:
    found: list[str] = []
    number = 0
    while len(found) < count:
        if height_of(f"{prefix}{number}".encode()) == height:
            found.append(f"{prefix}{number}")
        number += 1
    return sorted(found)


# Few keys, of all heights, so that nodes split, merge and vanish often.
KEYS = [key for height, count in ((0, 14), (1, 8), (2, 5), (3, 2)) for key in keys_of_height(height, count)]


def build(contents: dict[str, Cid]) -> Mst:
    tree = Mst.empty()
    for key, cid in contents.items():
        tree = tree.put(key, cid)
    return tree


class TreeAgainstDict(RuleBasedStateMachine):
    """Any sequence of puts and deletes, with the tree going through its blocks now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Mst.empty()
        self.model: dict[str, Cid] = {}
        self.store: dict[Cid, bytes] = {}

    @rule(key=st.sampled_from(KEYS), cid=st.sampled_from([LEAF, OTHER]))
    def put(self, key: str, cid: Cid) -> None:
        self.tree = self.tree.put(key, cid)
        self.model[key] = cid

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        if key in self.model:
            self.tree = self.tree.delete(key)
            del self.model[key]
        else:
            with pytest.raises(KeyError):
                self.tree.delete(key)

    @rule()
    def save_and_load(self) -> None:
        self.store |= self.tree.new_blocks()
        self.tree.settle()
        assert self.tree.new_blocks() == {}
        self.tree = Mst.load(self.tree.root, self.store.get)

    @invariant()
    def it_is_the_tree_of_its_contents(self) -> None:
        assert self.tree.root == build(dict(sorted(self.model.items()))).root
        assert dict(self.tree.items()) == self.model
        assert [key for key, _ in self.tree.items()] == sorted(self.model)

    @invariant()
    def every_node_keeps_the_rules(self) -> None:
        blocks = self.tree.all_blocks()
        assert all(cid.matches(block) for cid, block in blocks.items())
        assert dict(Mst.load(self.tree.root, blocks.get).items()) == self.model


TestTreeAgainstDict = TreeAgainstDict.TestCase
TestTreeAgainstDict.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@given(st.permutations(EXAMPLES[:60]))
def test_the_order_of_writing_leaves_no_trace(order: list[str]) -> None:
    assert build(dict.fromkeys(order, LEAF)).root == build(dict.fromkeys(EXAMPLES[:60], LEAF)).root


@pytest.mark.parametrize("vector", json.loads((MST / "key_heights.json").read_text()))
def test_key_heights(vector: dict[str, Any]) -> None:
    assert height_of(vector["key"].encode()) == vector["height"]


@pytest.mark.parametrize("vector", json.loads((MST / "common_prefix.json").read_text()))
def test_common_prefixes(vector: dict[str, Any]) -> None:
    assert common_prefix(vector["left"].encode(), vector["right"].encode()) == vector["len"]


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_the_common_prefix_is_the_longest(start: bytes, a: bytes, b: bytes) -> None:
    length = common_prefix(start + a, start + b)
    one, two = start + a, start + b
    assert one[:length] == two[:length]
    assert one[length : length + 1] != two[length : length + 1] or length == min(len(one), len(two))


def test_the_height_is_counted_in_pairs_of_zero_bits() -> None:
    for number in range(3000):
        digest = int.from_bytes(Cid.for_raw(str(number).encode()).digest)
        assert height_of(str(number).encode()) == (256 - digest.bit_length()) // 2


def test_known_roots() -> None:
    # The empty tree and a tree of one key, as github.com/bluesky-social/atproto has them in its tests.
    assert str(Mst.empty().root) == "bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm"
    leaf = Cid.parse("bafyreie5cvv4h45feadgeuwhbcutmh6t2ceseocckahdoe6uat64zmz454")
    tree = Mst.empty().put("com.example.record/3jqfcqzm3fo2j", leaf)
    assert str(tree.root) == "bafyreibj4lsc3aqnrvphp5xmrnfoorvru4wynt6lwidqbm2623a6tatzdu"


def test_an_old_tree_stays_as_it_was() -> None:
    old = build(dict.fromkeys(KEYS, LEAF))
    root, contents = old.root, dict(old.items())
    for key in KEYS:
        old.put(key, OTHER)
        old.delete(key)
    assert old.root == root
    assert dict(old.items()) == contents


def test_changing_one_key_of_many_makes_few_new_nodes() -> None:
    tree = build({f"com.example.many/{number}": LEAF for number in range(2000)})
    tree.settle()
    assert len(tree.put("com.example.many/77", OTHER).new_blocks()) < 12 < len(tree.all_blocks())


def test_a_partial_tree_says_what_it_can() -> None:
    tree = build(dict.fromkeys(KEYS, LEAF))
    proof = tree.covering_proof([KEYS[0]])
    partial = Mst.load(tree.root, proof.get)
    assert partial.get(KEYS[0]) == LEAF
    assert len(proof) < len(tree.all_blocks())
    with pytest.raises(MissingBlock):
        list(partial.items())


# Bad nodes. Most are well-formed CBOR, and any could have a right hash: the rules of the tree are broken.

A, B = keys_of_height(0, 2)
HIGH = keys_of_height(1, 1)[0]
LOW = keys_of_height(0, 1, "com.example.z/")[0]
LOW_SHARED = common_prefix(HIGH.encode(), LOW.encode())


def entry(key: bytes, shared: int = 0, tree: Cid | None = None, **more: Any) -> dict[str, Any]:
    return {"k": key, "p": shared, "t": tree, "v": LEAF, **more}


def node(*entries: dict[str, Any], left: Cid | None = None, **more: Any) -> bytes:
    return encode({"e": list(entries), "l": left, **more})


SHARED = common_prefix(A.encode(), B.encode())


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        pytest.param(b"", "node-form", id="nothing"),
        pytest.param(encode([1]), "node-form", id="no-map"),
        pytest.param(encode({"e": []}), "node-form", id="no-left"),
        pytest.param(node(entry(A.encode()), extra=1), "node-form", id="one-field-more"),
        pytest.param(node(entry(A.encode(), x=1)), "node-form", id="one-field-more-in-an-entry"),
        pytest.param(
            encode({"e": [{"k": A.encode(), "p": 0, "v": LEAF}], "l": None}), "node-form", id="no-t"
        ),
        pytest.param(node(entry(A.encode()) | {"v": None}), "node-form", id="no-value"),
        pytest.param(node(entry(A.encode()) | {"v": LEAF.bytes}), "node-form", id="value-of-bytes"),
        pytest.param(node(entry(A.encode()) | {"v": Cid.for_raw(b"")}), "node-form", id="value-of-raw"),
        pytest.param(node(entry(A.encode()) | {"k": A}), "node-form", id="key-of-text"),
        pytest.param(node(entry(A.encode()) | {"p": True}), "node-form", id="prefix-of-true"),
        pytest.param(node(entry(A.encode()) | {"p": -1}), "node-form", id="prefix-negative"),
        pytest.param(node(entry(A.encode(), 1)), "node-form", id="prefix-of-the-first"),
        pytest.param(node(entry(A.encode()), entry(b"x", 99)), "node-form", id="prefix-too-long"),
        pytest.param(node(entry(A.encode()), entry(B.encode(), 0)), "key-prefix", id="prefix-not-used"),
        pytest.param(
            node(entry(B.encode()), entry(A.encode()[SHARED:], SHARED)), "key-order", id="wrong-order"
        ),
        pytest.param(node(entry(A.encode()), entry(b"", len(A))), "key-order", id="twice-the-same"),
        pytest.param(node(entry(b"")), "key-order", id="empty-key"),
        pytest.param(
            node(entry(HIGH.encode()), entry(LOW.encode()[LOW_SHARED:], LOW_SHARED)),
            "key-height",
            id="two-heights",
        ),
        pytest.param(node(entry(A.encode(), 0, LEAF)), "child-below-leaf", id="child-below-height-0"),
        pytest.param(node(left=LEAF), "bare-root", id="root-is-a-bare-pointer"),
        pytest.param(b"\xa2\x61e\x80\x61l\xf7", "node-form", id="undefined"),
        pytest.param(b"\xb8\x02\x61e\x80\x61l\xf6", "node-form", id="overlong-length"),
    ],
)
def test_a_bad_root_is_refused(block: bytes, reason: str) -> None:
    with pytest.raises(MstInvalid) as caught:
        parse_node(block, None)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("block", "height", "low", "high", "reason"),
    [
        pytest.param(node(), 0, None, None, "empty-node", id="empty-leaf"),
        pytest.param(node(), 1, None, None, "empty-node", id="empty-node"),
        pytest.param(node(entry(A.encode())), 1, None, None, "key-height", id="wrong-level"),
        pytest.param(node(entry(A.encode())), 0, A.encode(), None, "key-order", id="not-after-low"),
        pytest.param(node(entry(B.encode())), 0, None, A.encode(), "key-order", id="not-before-high"),
        pytest.param(node(left=LEAF), 0, None, None, "child-below-leaf", id="pointer-at-height-0"),
    ],
)
def test_a_bad_inner_node_is_refused(
    block: bytes, height: int, low: bytes | None, high: bytes | None, reason: str
) -> None:
    with pytest.raises(MstInvalid) as caught:
        parse_node(block, height, low, high)
    assert caught.value.reason == reason


def test_a_key_that_looks_like_a_link_is_read() -> None:
    # libipld would write these bytes as a link: our own writer has the last word.
    key = LEAF.bytes
    block = encode_node([key], [OTHER.bytes], [None, None])
    assert parse_node(block, None).keys == [key]


def test_a_node_out_of_its_range_is_found_two_levels_up() -> None:
    # The root says that everything below lies before its key; a grandchild breaks that at its very edge.
    top = keys_of_height(2, 1)[0]
    beyond = next(key for key in keys_of_height(0, 200, "com.example.z/") if key > top)
    leaf = Node(0, [beyond.encode()], [LEAF.bytes], [None, None])
    middle = Node(1, [], [], [leaf])
    root = Node(2, [top.encode()], [LEAF.bytes], [middle, None])
    blocks = {Cid(part.cid): part.block for part in (leaf, middle, root)}
    tree = Mst.load(Cid(root.cid), blocks.get)
    with pytest.raises(MstInvalid, match="key-order"):
        list(tree.items())


def test_a_link_chain_cannot_go_below_the_leaves() -> None:
    top = keys_of_height(1, 1)[0]
    low = Node(0, [keys_of_height(0, 1)[0].encode()], [LEAF.bytes], [None, None])
    pointer = Node(0, [], [], [low])  # claims a level that does not exist
    root = Node(1, [top.encode()], [LEAF.bytes], [pointer, None])
    blocks = {Cid(part.cid): part.block for part in (low, pointer, root)}
    with pytest.raises(MstInvalid, match="child-below-leaf"):
        list(Mst.load(Cid(root.cid), blocks.get).items())
