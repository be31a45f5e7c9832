"""The compiled functions say what their twins in Python say, or nothing; and nothing makes them crash."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firehose import compiled, drisl, json_form
from firehose.car import split_car, write_car
from firehose.cid import Cid
from firehose.commit import parse_commit, sign_commit
from firehose.errors import CarInvalid, DrislInvalid, FrameInvalid, RepoInvalid
from firehose.frames import Action, CommitEvent, RepoOp, parse_frame
from firehose.keys import SigningKey
from firehose.mst import Mst
from firehose.mst_node import Node, height_of
from firehose.syntax import Did, Tid
from firehose.verify.inversion import invert
from firehose.verify.splice import undo_ops

CIDS = [Cid.for_dag_cbor(bytes([0x61, letter])) for letter in b"abc"]
PATHS = sorted(
    [f"com.example.p/{number}" for number in range(300) if height_of(f"com.example.p/{number}".encode())]
    + [f"com.example.q/{number}" for number in range(60)]
)
KEY = SigningKey.from_bytes(b"\x05" * 32)
DID = Did("did:plc:aaaaaaaaaaaaaaaaaaaaaaaa")
COMMIT = sign_commit(KEY, did=DID, rev=Tid("3kdgeujwlq32y"), data=CIDS[0])[1]


@pytest.fixture(scope="module", autouse=True)
def with_fast(fast: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", fast)
        yield


def in_python(run: Any) -> Any:
    """What the twin says: a value, or the reason of its refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", None)
        return said(run)


def said(run: Any) -> Any:
    try:
        return run()
    except (CarInvalid, DrislInvalid, FrameInvalid, RepoInvalid) as error:
        return type(error), getattr(error, "reason", str(error))


def tree_of(paths: dict[str, Cid]) -> Mst:
    tree = Mst.empty()
    for path, cid in paths.items():
        tree = tree.put(path, cid)
    return tree


def raw(blocks: dict[Cid, bytes]) -> dict[bytes, bytes]:
    return {cid.bytes: block for cid, block in blocks.items()}


def inverted(root: bytes, blocks: dict[bytes, bytes], ops: list[RepoOp]) -> bytes | None:
    try:
        return invert(Mst.load_raw(root, blocks.get), ops).bytes
    except FrameInvalid:
        return None


def draw_ops(data: st.DataObject) -> tuple[dict[str, Cid], list[RepoOp]]:
    """Records, and a commit's ops that led to them."""
    before = data.draw(st.dictionaries(st.sampled_from(PATHS), st.sampled_from(CIDS), max_size=40))
    after = dict(before)
    ops = []
    for path in data.draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=8, unique=True)):
        cid = data.draw(st.sampled_from([None, *CIDS]))
        was = before.get(path)
        if cid is None:
            if after.pop(path, None) is not None:
                ops.append(RepoOp(action=Action.DELETE, path=path, cid=None, prev=was))
            continue
        action = Action.CREATE if was is None else Action.UPDATE
        ops.append(RepoOp(action=action, path=path, cid=cid, prev=was))
        after[path] = cid
    return after, ops


@given(data=st.data())
def test_any_ops_are_undone_as_in_python(data: st.DataObject) -> None:
    records, ops = draw_ops(data)
    tree = tree_of(records)
    if data.draw(st.booleans()):
        blocks = raw(tree.covering_proof(op.path for op in ops) | {tree.root: tree.root_block})
    else:
        blocks = raw(tree.all_blocks())
        for missing in data.draw(st.lists(st.sampled_from(sorted(blocks)), max_size=1)):
            del blocks[missing]
    expected = inverted(tree.root.bytes, blocks, ops)
    found = undo_ops(tree.root.bytes, blocks, ops)
    assert found == expected or found is None
    # Where nothing is missing it always knows: that is what it is for.
    if raw(tree.all_blocks()) == blocks:
        assert found == expected is not None


@given(data=st.data())
def test_an_op_that_lies_is_never_undone(data: st.DataObject) -> None:
    records, ops = draw_ops(data)
    tree = tree_of(records)
    path = data.draw(st.sampled_from(PATHS))
    lie = RepoOp(action=Action.UPDATE, path=path, cid=CIDS[0], prev=CIDS[1])
    if records.get(path) == CIDS[0]:
        lie = RepoOp(action=Action.UPDATE, path=path, cid=CIDS[2], prev=CIDS[1])
    others = [op for op in ops if op.path != path]
    assert undo_ops(tree.root.bytes, raw(tree.all_blocks()), [*others, lie]) is None


@given(data=st.data())
def test_whatever_is_in_the_blocks_no_more_is_accepted(data: st.DataObject) -> None:
    records, ops = draw_ops(data)
    tree = tree_of(records)
    blocks = raw(tree.all_blocks())
    victim = data.draw(st.sampled_from(sorted(blocks)))
    changed = bytearray(blocks[victim])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)) | st.just(len(changed)))
    blocks[victim] = bytes(changed[:cut])  # under the old CID: hashes are checked before, and elsewhere
    found = undo_ops(tree.root.bytes, blocks, ops)
    if found is not None:
        assert found == inverted(tree.root.bytes, blocks, ops)


@given(blocks=st.dictionaries(st.sampled_from([cid.bytes for cid in CIDS]), st.binary(max_size=200)))
def test_noise_in_the_blocks_says_nothing(fast: Any, blocks: dict[bytes, bytes]) -> None:
    assert fast.undo(CIDS[0].bytes, blocks, [(b"a/b", CIDS[1].bytes, None)]) is None


def test_an_archive_that_lost_its_lower_half_is_undone_to_a_bare_link(fast: Any) -> None:
    """Taking out the one key of a root leaves its child, of which the CID is enough."""
    high = next(path for path in PATHS if height_of(path.encode()) == 1)
    low = [path for path in PATHS if height_of(path.encode()) == 0 and path < high][:3]
    tree = tree_of(dict.fromkeys([high, *low], CIDS[0]))
    blocks = {tree.root.bytes: tree.root_block}
    step = (high.encode(), CIDS[0].bytes, None)
    assert fast.undo(tree.root.bytes, blocks, [step]) == tree.delete(high).root.bytes


def test_wrong_arguments_are_refused(fast: Any) -> None:
    step = (b"a/b", CIDS[1].bytes, None)
    good: list[Any] = [CIDS[0].bytes, {}, [step]]
    assert fast.undo(*good) is None
    assert fast.undo(CIDS[0].bytes, {}, []) == CIDS[0].bytes
    for index, bad in ((0, b"short"), (0, None), (1, []), (2, (step,)), (2, None)):
        with pytest.raises(TypeError):
            fast.undo(*[bad if number == index else value for number, value in enumerate(good)])
    tree = tree_of({PATHS[0]: CIDS[0]})
    blocks = raw(tree.all_blocks())
    for wrong in ((), (b"a/b",), ("a/b", None, None), (b"", None, None), (b"k" * 5000, None, CIDS[0].bytes)):
        assert fast.undo(tree.root.bytes, blocks, [wrong]) is None
    assert fast.undo(tree.root.bytes, blocks, [(b"a/b", b"short", None)]) is None
    for function in (fast.split, fast.commit):
        with pytest.raises(TypeError):
            function("text")
    bad_values: tuple[Any, ...] = (("text", Cid), (b"",), (bytearray(b"a"), Cid))
    for arguments in bad_values:
        with pytest.raises(TypeError):
            fast.decode(*arguments)


def test_the_limits_are_the_same(fast: Any) -> None:
    assert fast.MAX_DEPTH == json_form.MAX_DEPTH


@pytest.mark.parametrize("size", [*range(130), 1000, 4095, 65_537])
def test_its_hash_is_the_hash(fast: Any, size: int) -> None:
    block = bytes(number * 7 % 251 for number in range(size))
    cid = Cid(b"\x01\x55\x12\x20" + sha256(block).digest())
    archive = write_car([cid], {cid: block})
    assert fast.split(archive) == ([cid.bytes], {cid.bytes: block})
    assert fast.split(archive[:-1] + bytes([archive[-1] ^ 1])) is None


@given(blocks=st.lists(st.binary(max_size=300), max_size=6), data=st.data())
def test_an_archive_is_split_as_in_python(fast: Any, blocks: list[bytes], data: st.DataObject) -> None:
    archive = bytearray(write_car([CIDS[0]], {Cid.for_dag_cbor(block): block for block in blocks}))
    assert fast.split(bytes(archive)) == in_python(lambda: split_car(bytes(archive)))
    for _ in range(data.draw(st.integers(0, 3))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(archive[: data.draw(st.integers(0, len(archive)) | st.just(len(archive)))])
    assert said(lambda: split_car(changed)) == in_python(lambda: split_car(changed))


@given(noise=st.binary(max_size=200))
def test_noise_is_told_from_archives_commits_and_values(noise: bytes) -> None:
    for run in (
        lambda: split_car(noise),
        lambda: parse_commit(noise),
        lambda: drisl.decode(noise),
    ):
        assert said(run) == in_python(run)


@given(data=st.data())
def test_a_commit_is_read_as_in_python(data: st.DataObject) -> None:
    changed = bytearray(COMMIT)
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    block = bytes(changed[: data.draw(st.integers(0, len(changed)) | st.just(len(changed)))])
    ours, twins = said(lambda: parse_commit(block)), in_python(lambda: parse_commit(block))
    assert ours == twins
    if not isinstance(ours, tuple):
        assert ours.is_signed_by(KEY.verifying_key) == twins.is_signed_by(KEY.verifying_key)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | st.sampled_from(CIDS),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(value=VALUES, data=st.data())
def test_a_value_is_decoded_as_in_python(value: Any, data: st.DataObject) -> None:
    block = bytearray(drisl.encode(value))
    assert drisl.decode(bytes(block)) == value
    for _ in range(data.draw(st.integers(1, 2))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(block[: data.draw(st.integers(0, len(block)) | st.just(len(block)))])
    ours, twins = said(lambda: drisl.decode(changed)), in_python(lambda: drisl.decode(changed))
    assert repr(ours) == repr(twins)  # -0.0 and 0.0 are equal, True and 1 as well


@pytest.mark.parametrize("depth", [127, 128, 129, 2000, 200_000])
@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x61a"], ids=["lists", "maps"])
def test_depth_ends_where_it_does_in_python(opening: bytes, depth: int) -> None:
    block = opening * depth + b"\xf6"
    ours, twins = said(lambda: drisl.decode(block)), in_python(lambda: drisl.decode(block))
    assert repr(ours) == repr(twins)
    assert isinstance(ours, tuple) is (depth > 128)


def test_every_commit_of_a_real_server_goes_the_fast_way(pds_frames: list[tuple[int, bytes]]) -> None:
    commits = [
        event for _, raw_frame in pds_frames if isinstance(event := parse_frame(raw_frame), CommitEvent)
    ]
    told = 0
    for event in commits:
        roots, blocks = split_car(event.blocks)
        commit = parse_commit(blocks[roots[0]])
        assert commit.signed is not None
        if event.prev_data is not None:
            assert undo_ops(commit.data.bytes, blocks, event.ops) == event.prev_data.bytes
            told += 1
    assert told == sum(event.prev_data is not None for event in commits) > 300


@pytest.mark.parametrize(("count", "length"), [(600, 100), (700, 100), (1300, 40), (1300, 60)])
def test_a_node_with_too_many_bytes_of_keys_is_too_much_for_both(count: int, length: int) -> None:
    keys = [f"com.example.p/{'a' * length}{n}" for n in range(count * 2)]
    flat = sorted(key.encode() for key in keys if height_of(key.encode()) == 0)[:count]
    node = Node(0, flat, [CIDS[0].bytes] * count, [None] * (count + 1))
    ops = [RepoOp(action=Action.CREATE, path=flat[0].decode(), cid=CIDS[0])]
    blocks = {node.cid: node.block}
    assert undo_ops(node.cid, blocks, ops) == inverted(node.cid, blocks, ops)
