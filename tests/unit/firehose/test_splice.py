"""The fast ways to undo one op, in Python and compiled: they say what the slow way says, or nothing."""

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firehose.cid import Cid
from firehose.errors import FrameInvalid
from firehose.frames import Action, RepoOp
from firehose.mst import Mst
from firehose.mst_node import height_of
from firehose.verify import splice
from firehose.verify.inversion import invert

SOURCE = Path(__file__).parents[3] / "firehose" / "_undo.c"
CIDS = [Cid.for_dag_cbor(bytes([0x61, letter])) for letter in b"abc"]
# Half of them above the leaves, so that nodes split, merge, and stand alone.
PATHS = sorted(
    [f"com.example.p/{number}" for number in range(300) if height_of(f"com.example.p/{number}".encode())]
    + [f"com.example.q/{number}" for number in range(60)]
)

Undo = Callable[[bytes, dict[bytes, bytes], bytes, bytes, bytes | None], bytes | None]


def undo_in_python(
    root: bytes, blocks: dict[bytes, bytes], key: bytes, value: bytes, prev: bytes | None
) -> bytes | None:
    if prev is None:
        return splice.undo_create(root, blocks, key, value)
    return splice.undo_update(root, blocks, key, value, prev)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled module, built anew from the source beside us."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    include = sysconfig.get_paths()["include"]
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python: the Python twin is all there is")
    target = tmp_path_factory.mktemp("undo") / f"_undo{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(target)], check=True, timeout=60)
    spec = importlib.util.spec_from_file_location("firehose._undo", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.optional)])
def undo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Undo:
    """Each of the twins."""
    if request.param == "python":
        monkeypatch.setattr(splice, "compiled", None)
        return undo_in_python
    module = request.getfixturevalue("compiled")
    return lambda root, blocks, key, value, prev: module.undo(root, blocks, key, value, prev, sha256)


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


def test_every_op_on_a_broad_tree(undo: Undo, broad: dict[str, Cid]) -> None:
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
    # In Python a record that is twice in its node is left to the slow way; here there are but three records.
    assert told > len(broad)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_fast_ways_say_what_the_slow_way_says(compiled: Any, data: st.DataObject) -> None:
    paths = data.draw(st.dictionaries(st.sampled_from(PATHS), st.sampled_from(CIDS), min_size=1, max_size=40))
    tree = tree_of(paths)
    path = data.draw(st.sampled_from(sorted(paths)))
    prev = data.draw(st.sampled_from([None, *CIDS]))
    blocks = raw(tree.all_blocks())
    for missing in data.draw(st.lists(st.sampled_from(sorted(blocks)), max_size=1)):
        if missing != tree.root.bytes:
            del blocks[missing]
    args = (
        tree.root.bytes,
        blocks,
        path.encode(),
        paths[path].bytes,
        None if prev is None else prev.bytes,
    )
    expected = slow(Mst.load_raw(tree.root.bytes, blocks.get), path, paths[path], prev)
    assert compiled.undo(*args, sha256) in (None, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "compiled", None)
        assert undo_in_python(*args) in (None, expected)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whatever_is_in_the_blocks_the_compiled_way_accepts_no_more(
    compiled: Any, data: st.DataObject
) -> None:
    paths = data.draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=30, unique=True))
    tree = tree_of(dict.fromkeys(paths, CIDS[0]))
    path = data.draw(st.sampled_from(paths))
    blocks = raw(tree.all_blocks())
    victim = data.draw(st.sampled_from(sorted(blocks)))
    changed = bytearray(blocks[victim])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)) | st.just(len(changed)))
    blocks[victim] = bytes(changed[:cut])  # under the old CID: hashes are checked before, and elsewhere
    found = compiled.undo(tree.root.bytes, blocks, path.encode(), CIDS[0].bytes, None, sha256)
    if found is not None:
        assert found == slow(Mst.load_raw(tree.root.bytes, blocks.get), path, CIDS[0], None)


@settings(max_examples=80, deadline=None)
@given(blocks=st.dictionaries(st.sampled_from([cid.bytes for cid in CIDS]), st.binary(max_size=200)))
def test_noise_says_nothing(compiled: Any, blocks: dict[bytes, bytes]) -> None:
    assert compiled.undo(CIDS[0].bytes, blocks, b"a/b", CIDS[1].bytes, None, sha256) is None


def test_wrong_arguments_are_refused(compiled: Any) -> None:
    good: list[Any] = [CIDS[0].bytes, {}, b"a/b", CIDS[1].bytes, None, sha256]
    assert compiled.undo(*good) is None
    for index, bad in ((0, b"short"), (1, []), (2, "text"), (3, None), (4, b"short")):
        with pytest.raises(TypeError):
            compiled.undo(*[bad if number == index else value for number, value in enumerate(good)])
    with pytest.raises(TypeError):
        compiled.undo()
    assert compiled.undo(CIDS[0].bytes, {}, b"k" * 5000, CIDS[1].bytes, None, sha256) is None


def test_a_hash_function_that_fails_is_heard(compiled: Any) -> None:
    tree = tree_of({PATHS[0]: CIDS[0], PATHS[1]: CIDS[0]})

    def broken(block: bytes) -> Any:
        raise RuntimeError("no hash")

    with pytest.raises(RuntimeError, match="no hash"):
        compiled.undo(
            tree.root.bytes, raw(tree.all_blocks()), PATHS[0].encode(), CIDS[0].bytes, CIDS[1].bytes, broken
        )


def test_a_chain_of_links_without_keys_ends(undo: Undo) -> None:
    blocks = {}
    root = CIDS[0]
    for _ in range(300):
        block = b"\xa2\x61e\x80\x61l\xd8\x2a\x58\x25\x00" + root.bytes
        root = Cid.for_dag_cbor(block)
        blocks[root.bytes] = block
    assert undo(root.bytes, blocks, b"a/b", CIDS[1].bytes, None) is None
