"""One node of the Merkle search tree: its exact bytes, and the rules that its bytes must keep.

Source: atproto.com/specs/repository, "MST Structure". A node holds the keys of one height in order and,
around them, links to the subtrees of the next lower height. In the block each key drops the prefix it
shares with the key before it, and that prefix must be as long as possible: so a set of keys and values has
exactly one tree.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import libipld

from firehose.cid import CID_BYTES, DAG_CBOR_PREFIX, Cid
from firehose.drisl import decode_first, head, link
from firehose.errors import MstInvalid

MAX_HEIGHT: Final = 128  # a SHA-256 digest has 256 bits, and a level takes two

_BROAD_BYTES: Final = 1 << 16  # honest nodes have a few hundred bytes
_ENTRY_BYTES: Final = 54  # the shortest that an entry can be
_MAX_ENTRY_BYTES: Final = 2048  # ours: a path has at most 830, and all the rest 100
_ARRAY_WIDTHS: Final = {0x98: 1, 0x99: 2, 0x9A: 4}
_ABOVE_LEAVES: Final = 0x40  # a digest that begins with less begins with two zero bits
_NULL: Final = b"\xf6"
_ENTRIES: Final = b"\xa2\x61e"  # {"e": …
_LEFT: Final = b"\x61l"  # "l": …}
_KEY: Final = b"\xa4\x61k"  # {"k": …
_PREFIX: Final = b"\x61p"
_TREE: Final = b"\x61t"
_VALUE: Final = b"\x61v"
_VALUE_LINK: Final = _VALUE + link(b"")
_LINK: Final = link(b"")
_BYTES_HEAD: Final = [head(2, length) for length in range(256)]
_NUMBER: Final = [head(0, number) for number in range(256)]


def height_of(key: bytes) -> int:
    """The height at which `key` lives: half the number of zero bits that its SHA-256 begins with."""
    digest = sha256(key).digest()
    if digest[0] >= _ABOVE_LEAVES:  # three keys of four
        return 0
    if digest[0]:
        return 3 - (digest[0].bit_length() - 1) // 2
    return (256 - int.from_bytes(digest).bit_length()) // 2


def common_prefix(a: bytes, b: bytes) -> int:
    """How many bytes `a` and `b` begin with in common."""
    length = min(len(a), len(b))
    # As numbers they differ from the first byte that is not the same: nothing in Python is faster.
    difference = int.from_bytes(a[:length]) ^ int.from_bytes(b[:length])
    return length - (difference.bit_length() + 7) // 8


class Node:
    """A node in memory. Its keys and values never change after it is made.

    `children[i]` is the subtree left of `keys[i]` (the last one: right of all keys): None, a `Node`, or 36
    bytes, the CID of one that is not loaded yet; loading replaces the bytes by the node, which changes
    nothing that anyone can see.
    """

    __slots__ = ("_base", "_block", "_cid", "children", "fresh", "height", "keys", "values")

    def __init__(
        self,
        height: int,
        keys: list[bytes],
        values: list[bytes],
        children: "list[Node | bytes | None]",
        base: "tuple[Node, int] | None" = None,
    ) -> None:
        """`base` names a node, and the index of the one child in which this one differs from it."""
        self.height = height
        self.keys = keys
        self.values = values  # CIDs as 36 bytes
        self.children = children
        self.fresh = True  # not known to be in the block store
        self._base = base if base is not None and base[0]._block is not None else None
        self._block: bytes | None = None
        self._cid: bytes | None = None

    @property
    def block(self) -> bytes:
        """The node's DRISL-CBOR bytes."""
        if self._block is None:
            self._block = self._spliced() or self._encoded()
            self._base = None
        return self._block

    @property
    def cid(self) -> bytes:
        """The node's CID as 36 bytes."""
        if self._cid is None:
            self._cid = DAG_CBOR_PREFIX + sha256(self.block).digest()
        return self._cid

    def _encoded(self) -> bytes:
        return encode_node(self.keys, self.values, [_cid_of(child) for child in self.children])

    def _spliced(self) -> bytes | None:
        """The base's block with one link replaced, which is three times faster than writing all of it."""
        if self._base is None:
            return None
        base, index = self._base
        block, old, new = base._block, _cid_of(base.children[index]), _cid_of(self.children[index])
        if block is None or old is None or new is None or block.count(old) != 1:
            return None
        return block.replace(old, new)

    def index(self, key: bytes) -> int:
        """The position of the first key that is not before `key`."""
        return bisect_left(self.keys, key)

    def settle(self, cid: bytes, block: bytes) -> "Node":
        """Note that this node came out of a store, under this CID, as these bytes."""
        self._cid, self._block, self.fresh = cid, block, False
        return self


def empty_node() -> Node:
    """The root of an empty tree."""
    return Node(0, [], [], [None])


def encode_node(keys: list[bytes], values: list[bytes], children: list[bytes | None]) -> bytes:
    """The one encoding of a node with these keys, values and links (all CIDs as 36 bytes)."""
    parts = [_ENTRIES, head(4, len(keys))]
    before = b""
    for index, key in enumerate(keys):
        shared = common_prefix(before, key)
        rest = key[shared:]
        right = children[index + 1]
        parts += (
            _KEY,
            _BYTES_HEAD[len(rest)] if len(rest) < 256 else head(2, len(rest)),
            rest,
            _PREFIX,
            _NUMBER[shared] if shared < 256 else head(0, shared),
            _TREE,
            _NULL if right is None else _LINK + right,
            _VALUE_LINK,
            values[index],
        )
        before = key
    left = children[0]
    parts.append(_LEFT)
    parts.append(_NULL if left is None else _LINK + left)
    return b"".join(parts)


def parse_node(block: bytes, height: int | None, low: bytes | None = None, high: bytes | None = None) -> Node:
    """The node in `block`.

    Args:
        block: bytes that are known to hash to the node's CID.
        height: the height it must have, or None for a root, whose keys tell.
        low: every key must come after this one, if there is one.
        high: every key must come before this one, if there is one.

    Raises: MstInvalid: a rule is broken; the reason is a stable word.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    try:
        read = _read_broad if len(block) > _BROAD_BYTES else _read_small
        children, is_exact = read(block, keys, values)
    except MstInvalid:
        raise
    except (LookupError, TypeError, ValueError, RecursionError):
        raise MstInvalid("node-form") from None
    if not is_exact:
        raise MstInvalid("node-form")
    if keys and ((low is not None and keys[0] <= low) or (high is not None and keys[-1] >= high)):
        raise MstInvalid("key-order")
    return Node(_checked_height(keys, children, height), keys, values, children)


def _read_small(
    block: bytes, keys: list[bytes], values: list[bytes]
) -> "tuple[list[Node | bytes | None], bool]":
    """The links of a node, its keys and values into the lists, and whether it is in its one encoding."""
    node = libipld.decode_dag_cbor(block)
    children: list[Node | bytes | None] = [_checked_link(node["l"])]
    _read_entries(node["e"], keys, values, children, _BROAD_BYTES)
    # libipld writes links and shortest numbers, so that this compares all of the form at once. Only bytes
    # that look like a CID confuse it, and a key may begin with those.
    is_exact = len(node) == 2 and (
        libipld.encode_dag_cbor(node) == block or Node(0, keys, values, children).block == block
    )
    return children, is_exact


def _read_broad(
    block: bytes, keys: list[bytes], values: list[bytes]
) -> "tuple[list[Node | bytes | None], bool]":
    """The same for a node that is larger than honest ones: an entry at a time, so that it costs no memory."""
    if not block.startswith(_ENTRIES) or block[3] not in _ARRAY_WIDTHS:
        raise ValueError
    at = 4 + _ARRAY_WIDTHS[block[3]]
    count = int.from_bytes(block[4:at])
    if not len(block) <= count * _MAX_ENTRY_BYTES or count > len(block) // _ENTRY_BYTES:
        raise ValueError

    def entries() -> Iterator[dict[str, Any]]:
        nonlocal at
        for _ in range(count):
            entry, at = decode_first(block, at)
            yield entry | {name: _raw(entry[name]) for name in ("t", "v")}

    children: list[Node | bytes | None] = [None]
    _read_entries(entries(), keys, values, children, len(block))
    if block[at : at + 2] != _LEFT:
        raise ValueError
    left, end = decode_first(block, at + 2)
    children[0] = _checked_link(_raw(left))
    return children, end == len(block) and head(4, count) == block[3 : 4 + _ARRAY_WIDTHS[block[3]]]


def _raw(value: Any) -> bytes | None:
    """The bytes of a link; nothing else may stand where one does."""
    if value is None or type(value) is Cid:
        return None if value is None else value.bytes
    raise ValueError


def _read_entries(
    entries: Iterable[dict[str, Any]],
    keys: list[bytes],
    values: list[bytes],
    children: list[Node | bytes | None],
    max_key_bytes: int,
) -> None:
    before, length, total = b"", 0, 0
    for entry in entries:
        shared, rest, value = entry["p"], entry["k"], entry["v"]
        if type(shared) is not int or len(entry) != 4 or not 0 <= shared <= length:
            raise ValueError
        if not rest:
            raise MstInvalid("key-order")
        if shared < length and rest[0] <= before[shared]:
            raise MstInvalid("key-order" if rest[0] < before[shared] else "key-prefix")
        before = before[:shared] + rest
        length = len(before)
        total += length
        if total > max_key_bytes:  # each entry repeats a long prefix in three bytes: memory that nobody sent
            raise MstInvalid("node-form")
        if len(value) != CID_BYTES or value[:4] != DAG_CBOR_PREFIX:
            raise ValueError
        keys.append(before)
        values.append(value)
        tree = entry["t"]
        if tree is not None and (len(tree) != CID_BYTES or tree[:4] != DAG_CBOR_PREFIX):
            raise ValueError
        children.append(tree)


def _checked_link(value: Any) -> bytes | None:
    if value is None:
        return None
    if len(value) == CID_BYTES and value[:4] == DAG_CBOR_PREFIX:
        link_bytes: bytes = value
        return link_bytes
    raise ValueError("not a link to a DRISL block")


def _checked_height(keys: list[bytes], children: list[Node | bytes | None], expected: int | None) -> int:
    if not keys:
        if expected is None:  # a root: only the empty tree has no key there
            if children != [None]:
                raise MstInvalid("bare-root")
            return 0
        if children == [None]:
            raise MstInvalid("empty-node")
    height = height_of(keys[0]) if expected is None else expected
    for key in keys:
        # Most keys are leaves: their test is written out, as it runs dozens of times for each commit.
        if height_of(key) != height if height else sha256(key).digest()[0] < _ABOVE_LEAVES:
            raise MstInvalid("key-height")
    if height == 0 and children.count(None) != len(children):
        raise MstInvalid("child-below-leaf")
    return height


def _cid_of(child: Node | bytes | None) -> bytes | None:
    return child.cid if isinstance(child, Node) else child
