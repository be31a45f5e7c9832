"""The fast ways to undo ops: in C, or one op in Python by swapping the links above the node that it changed.

A commit changes the nodes on the way to its key; in all of them but the last, one link. So undoing it takes
a search, one rewritten node, and a swap of 36 bytes in each node above. What is not rewritten need not be
checked here: if the root that comes out is that of a tree we knew, every node above is one of that tree's but
for the link. Whatever is not that simple gets None, and `firehose.verify.inversion` has the last word; so
nothing is ever refused here.

Where the package was built with a C compiler, `firehose/_tree.h` undoes all ops of any commit, and checks
every node on the way besides, known tree or not.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import libipld

from firehose import compiled
from firehose.cid import DAG_CBOR_PREFIX
from firehose.errors import MstInvalid
from firehose.frames import Action, RepoOp
from firehose.mst import Mst
from firehose.mst_node import MAX_HEIGHT, common_prefix, height_of, parse_node

_LINK: Final = b"\xd8\x2a\x58\x25\x00"  # as in firehose.drisl: tag 42, 37 bytes, multibase prefix
_NULL: Final = b"\xf6"

Blocks = dict[bytes, bytes]


def undo_ops(root: bytes, blocks: Blocks, ops: Sequence[RepoOp]) -> bytes | None:
    """The root of the tree before `ops`, found the compiled way; None: there is none, or no answer.

    Args:
        root: the CID (36 bytes) of the tree's root, after.
        blocks: its nodes, by their CID; their hashes were checked.
        ops: of a commit; their form was checked.
    """
    if compiled.fast is None:
        return None
    steps = []
    for op in ops:
        if op.prev is None and op.action is not Action.CREATE:
            return None
        cid, prev = op.cid, op.prev
        steps.append(
            (op.path.encode(), None if cid is None else cid.bytes, None if prev is None else prev.bytes)
        )
    if len(steps) > 1:
        steps.sort(key=_deletions_first)
    before: bytes | None = compiled.fast.undo(root, blocks, steps)
    return before


def _deletions_first(step: tuple[bytes, bytes | None, bytes | None]) -> tuple[bool, bytes]:
    return step[1] is not None, step[0]


def undo_create(root: bytes, blocks: Blocks, key: bytes, value: bytes) -> bytes | None:
    """The root of the tree before `key` was put into it, or None if that is not simple.

    Args:
        root: the CID (36 bytes) of the tree's root, after.
        blocks: its nodes, by their CID; their hashes were checked.
        key: the path that was created.
        value: its record's CID, which must be there.
    """
    above: list[tuple[bytes, bytes]] = []
    here: bytes | None = root
    while here is not None and len(above) <= MAX_HEIGHT:
        block = blocks.get(here)
        if block is None:
            return None
        found, child = _look(block, key)
        if found is not None:
            if found != value or not above:  # a root that loses a key may have to go as a whole
                return None
            return _splice(above, _without(block, blocks, key), here)
        above.append((here, block))
        here = child
    return None


def undo_update(root: bytes, blocks: Blocks, key: bytes, value: bytes, prev: bytes) -> bytes | None:
    """The root of the tree when `prev` was under `key`, or None if that is not simple.

    Args: as `undo_create`; `prev` is the CID of the record before.
    """
    above: list[tuple[bytes, bytes]] = []
    here: bytes | None = root
    while here is not None and len(above) <= MAX_HEIGHT:
        block = blocks.get(here)
        if block is None:
            return None
        found, child = _look(block, key)
        if found is not None:
            if found != value or block.count(value) != 1:
                return None
            rewritten = block.replace(value, prev)
            return _splice(above, DAG_CBOR_PREFIX + sha256(rewritten).digest(), here)
        above.append((here, block))
        here = child
    return None


def _look(block: bytes, key: bytes) -> tuple[bytes | None, bytes | None]:
    """The value of `key` in this node, or else the link to the subtree where it would be.

    The keys are never put together: how much of `key` the last entry before it shares tells, with the length
    of the prefix that an entry shares with the one before, on which side of `key` the entry lies.
    """
    try:
        node: dict[str, Any] = libipld.decode_dag_cbor(block)
        child: bytes | None = node["l"]
        shared = 0
        rest = key
        for entry in node["e"]:
            prefix = entry["p"]
            if prefix < shared:
                break
            if prefix == shared:
                tail = entry["k"]
                if tail >= rest:
                    if tail == rest:
                        return entry["v"], None
                    break
                common = common_prefix(tail, rest)
                shared += common
                rest = rest[common:]
            child = entry["t"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return None, None
    return None, child


def _without(block: bytes, blocks: Blocks, key: bytes) -> bytes | None:
    """The CID of this node without `key`; empty if nothing is left of it; None if that is not simple."""
    try:
        node = Mst(parse_node(block, height_of(key)), blocks.get).cut_raw(key)
    except (KeyError, MstInvalid):
        return None
    return b"" if node is None else node.cid


def _splice(above: list[tuple[bytes, bytes]], new: bytes | None, old: bytes) -> bytes | None:
    """The root's CID when, below the nodes `above`, `old` becomes `new`; None if that is not simple."""
    if new is None:
        return None
    for cid, block in reversed(above):
        if block.count(old) != 1:
            return None
        if new:
            block = block.replace(old, new)
        elif block.count(_LINK + old) == 1:
            if block[:4] == b"\xa2\x61e\x80":  # no keys: this node goes as well
                old = cid
                continue
            block = block.replace(_LINK + old, _NULL)
        else:
            return None
        old = cid
        new = DAG_CBOR_PREFIX + sha256(block).digest()
    return new or None
