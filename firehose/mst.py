"""The Merkle search tree of a repository: paths to record CIDs, and one root for one content.

Source: atproto.com/specs/repository, "MST Structure". A tree is a value: `put` and `delete` give a new one
that shares its unchanged nodes with the old one. Nodes load on first use, so a tree may be partial: what is
not there and is needed raises `MissingBlock`.
"""

from collections.abc import Callable, Iterable, Iterator

from firehose.cid import Cid
from firehose.errors import MissingBlock, MstInvalid
from firehose.mst_node import Node, empty_node, height_of, parse_node

GetBlock = Callable[[Cid], bytes | None]
_RawGetBlock = Callable[[bytes], bytes | None]
_Edge = bytes | None  # the key that bounds a subtree on one side, if any
_Link = Node | bytes | None


class Mst:
    """A tree, immutable to look at.

    >>> from firehose.cid import Cid
    >>> tree = Mst.empty().put("com.example.note/one", Cid.for_dag_cbor(b"\\xa0"))
    >>> tree.delete("com.example.note/one").root == Mst.empty().root
    True
    """

    __slots__ = ("_get_block", "_top")

    def __init__(self, top: Node | bytes, get_block: _RawGetBlock) -> None:
        """Not for callers: use `empty` or `load`."""
        self._top = top
        self._get_block = get_block

    @classmethod
    def empty(cls) -> "Mst":
        """The tree with nothing in it."""
        return cls(empty_node(), _no_block)

    @classmethod
    def load(cls, root: Cid, get_block: GetBlock) -> "Mst":
        """The tree under `root`.

        Args:
            root: its root node's CID.
            get_block: gives a node's bytes, None or a KeyError if it has none. It must have checked their
            hash.
        """
        return cls(root.bytes, lambda raw: get_block(Cid(raw)))

    @classmethod
    def load_raw(cls, root: bytes, get_block: _RawGetBlock) -> "Mst":
        """Like `load`, with CIDs as their 36 bytes: for the hot path of the verifier."""
        return cls(root, get_block)

    @property
    def root(self) -> Cid:
        """The CID of the root node: the `data` of a commit."""
        return Cid(self._top.cid if isinstance(self._top, Node) else self._top)

    @property
    def root_block(self) -> bytes:
        """The root node's bytes."""
        return self._load_top().block

    def get(self, key: str) -> Cid | None:
        """The record CID under `key`, or None.

        Raises: MissingBlock: a node on the way is not there. MstInvalid: one breaks a rule.
        """
        raw = self.get_raw(key.encode())
        return None if raw is None else Cid(raw)

    def get_raw(self, key: bytes) -> bytes | None:
        """Like `get`, with the key and the CID as bytes."""
        for node, index in self._path(key):
            if index < len(node.keys) and node.keys[index] == key:
                return node.values[index]
        return None

    def put(self, key: str, cid: Cid) -> "Mst":
        """The tree with `cid` under `key`, in place of what was there.

        Raises: MissingBlock: a node that is needed is not there. MstInvalid: one breaks a rule.
        """
        return self.put_raw(key.encode(), cid.bytes)

    def put_raw(self, key: bytes, value: bytes) -> "Mst":
        """Like `put`, with the key and the CID as bytes."""
        if not key:
            raise MstInvalid("empty-key")
        top, height = self._load_top(), height_of(key)
        if not top.keys:
            return Mst(Node(height, [key], [value], [None, None]), self._get_block)
        if height > top.height:
            left, right = self._split(top, key, None, None)
            sides: list[_Link] = [_raise_to(left, height - 1), _raise_to(right, height - 1)]
            return Mst(Node(height, [key], [value], sides), self._get_block)
        return Mst(self._put(top, height, key, value, None, None), self._get_block)

    def delete(self, key: str) -> "Mst":
        """The tree without `key`.

        Raises:
            KeyError: the key is not in the tree.
            MissingBlock: a node that is needed is not there.
            MstInvalid: one breaks a rule.
        """
        return self.delete_raw(key.encode())

    def delete_raw(self, key: bytes) -> "Mst":
        """Like `delete`, with the key as bytes."""
        top = self._delete(self._load_top(), height_of(key), key, None, None)
        return Mst(self._trim(top), self._get_block)

    def cut_raw(self, key: bytes) -> Node | None:
        """The top node without `key`, which it must hold itself; levels that this empties stay.

        Raises: as `delete`.
        """
        return self._delete(self._load_top(), height_of(key), key, None, None)

    def items(self) -> Iterator[tuple[str, Cid]]:
        """Every key and its record CID, in order of the keys' bytes.

        Raises: MissingBlock: a node is not there. MstInvalid: one breaks a rule.
        """
        for node, index in self._walk(self._load_top(), None, None):
            if index >= 0:
                try:
                    yield node.keys[index].decode(), Cid(node.values[index])
                except UnicodeDecodeError:
                    raise MstInvalid("key-text", str(Cid(node.cid))) from None

    def all_blocks(self) -> dict[Cid, bytes]:
        """Every node of the tree, each parent before its children.

        Raises: MissingBlock: a node is not there. MstInvalid: one breaks a rule.
        """
        nodes = (node for node, index in self._walk(self._load_top(), None, None) if index < 0)
        return {Cid(node.cid): node.block for node in nodes}

    def new_blocks(self) -> dict[Cid, bytes]:
        """The nodes that the store may not have (see `settle`), each parent before its children."""
        return {Cid(node.cid): node.block for node in self._fresh()}

    def settle(self) -> None:
        """Note that the store has every node of this tree."""
        for node in list(self._fresh()):
            node.fresh = False

    def covering_proof(self, keys: Iterable[str]) -> dict[Cid, bytes]:
        """The nodes that prove what this tree says of `keys`, and from which a change of them can be undone.

        These are the nodes on the way to each key and, where the key is present, those along the gap that
        taking it out would close: atproto.com/specs/sync, "Commit Validation: MST Operation Inversion".

        Raises: MissingBlock: a node is not there. MstInvalid: one breaks a rule.
        """
        nodes: dict[Cid, bytes] = {}
        for key in keys:
            for node in self._covering(key.encode()):
                nodes[Cid(node.cid)] = node.block
        return nodes

    # Loading -----------------------------------------------------------------------------------------------

    def _load_top(self) -> Node:
        if not isinstance(self._top, Node):
            self._top = self._load(self._top, None, None, None)
        return self._top

    def _load(self, raw: bytes, height: int | None, low: _Edge, high: _Edge) -> Node:
        try:
            block = self._get_block(raw)
        except KeyError:
            block = None
        if block is None:
            raise MissingBlock(str(Cid(raw)))
        try:
            return parse_node(block, height, low, high).settle(raw, block)
        except MstInvalid as error:
            raise MstInvalid(error.reason, str(Cid(raw))) from None

    def _child(self, node: Node, index: int, low: _Edge, high: _Edge) -> Node | None:
        """The subtree left of `node.keys[index]`, loaded; `low` and `high` bound the whole of `node`."""
        child = node.children[index]
        if child is None or isinstance(child, Node):
            return child
        low, high = _bounds(node, index, low, high)
        loaded = node.children[index] = self._load(child, node.height - 1, low, high)
        return loaded

    # Reading -----------------------------------------------------------------------------------------------

    def _path(self, key: bytes) -> Iterator[tuple[Node, int]]:
        """The nodes from the root towards `key`, each with the index where the key is or would be."""
        node: Node | None = self._load_top()
        low: _Edge = None
        high: _Edge = None
        while node is not None:
            index = node.index(key)
            yield node, index
            if index < len(node.keys) and node.keys[index] == key:
                return
            child = self._child(node, index, low, high)
            low, high = _bounds(node, index, low, high)
            node = child

    def _walk(self, node: Node, low: _Edge, high: _Edge) -> Iterator[tuple[Node, int]]:
        """Each node before its subtrees (with index -1), and each entry in order."""
        yield node, -1
        for index in range(len(node.children)):
            child = self._child(node, index, low, high)
            if child is not None:
                yield from self._walk(child, *_bounds(node, index, low, high))
            if index < len(node.keys):
                yield node, index

    def _fresh(self) -> Iterator[Node]:
        """The fresh nodes: all of their ancestors are fresh as well."""
        waiting = [self._top] if isinstance(self._top, Node) else []
        while waiting:
            node = waiting.pop()
            if node.fresh:
                yield node
                waiting += [child for child in reversed(node.children) if isinstance(child, Node)]

    def _covering(self, key: bytes) -> Iterator[Node]:
        low: _Edge = None
        high: _Edge = None
        for node, index in self._path(key):
            yield node
            if index < len(node.keys) and node.keys[index] == key:
                yield from self._spine(self._child(node, index, low, high), -1)
                yield from self._spine(self._child(node, index + 1, low, high), 0)
            low, high = _bounds(node, index, low, high)

    def _spine(self, node: Node | None, side: int) -> Iterator[Node]:
        """The nodes along the right (-1) or left (0) edge of a subtree."""
        while node is not None:
            yield node
            node = self._child(node, len(node.keys) if side else 0, None, None)

    # Changing ----------------------------------------------------------------------------------------------

    def _put(self, node: Node, height: int, key: bytes, value: bytes, low: _Edge, high: _Edge) -> Node:
        index = node.index(key)
        keys, values, children = node.keys, node.values, node.children
        if height < node.height:
            child = self._child(node, index, low, high)
            if child is None:
                changed = _raise_to(Node(height, [key], [value], [None, None]), node.height - 1)
            else:
                changed = self._put(child, height, key, value, *_bounds(node, index, low, high))
            rest: list[_Link] = [*children[:index], changed, *children[index + 1 :]]
            return Node(node.height, keys, values, rest, (node, index))
        if index < len(keys) and keys[index] == key:
            return Node(node.height, keys, [*values[:index], value, *values[index + 1 :]], list(children))
        left, right = self._split_child(node, index, key, low, high)
        return Node(
            node.height,
            [*keys[:index], key, *keys[index:]],
            [*values[:index], value, *values[index:]],
            [*children[:index], left, right, *children[index + 1 :]],
        )

    def _split_child(
        self, node: Node, index: int, key: bytes, low: _Edge, high: _Edge
    ) -> tuple[Node | None, Node | None]:
        child = self._child(node, index, low, high)
        return (None, None) if child is None else self._split(child, key, *_bounds(node, index, low, high))

    def _split(self, node: Node, key: bytes, low: _Edge, high: _Edge) -> tuple[Node | None, Node | None]:
        """What lies before `key`, and what lies after it; the key itself is not in the node."""
        index = node.index(key)
        left, right = self._split_child(node, index, key, low, high)
        keys, values, children = node.keys, node.values, node.children
        before = Node(node.height, keys[:index], values[:index], [*children[:index], left])
        after = Node(node.height, keys[index:], values[index:], [right, *children[index + 1 :]])
        return _or_none(before), _or_none(after)

    def _delete(self, node: Node, height: int, key: bytes, low: _Edge, high: _Edge) -> Node | None:
        index = node.index(key)
        keys, values, children = node.keys, node.values, node.children
        if height < node.height:
            child = self._child(node, index, low, high)
            if child is None:
                raise KeyError(key.decode(errors="replace"))
            changed = self._delete(child, height, key, *_bounds(node, index, low, high))
            rest: list[_Link] = [*children[:index], changed, *children[index + 1 :]]
            return _or_none(Node(node.height, keys, values, rest, (node, index)))
        if height > node.height or index >= len(keys) or keys[index] != key:
            raise KeyError(key.decode(errors="replace"))
        merged: _Link = children[index]
        if merged is None or children[index + 1] is None:
            merged = children[index + 1] if merged is None else merged
        else:
            left = self._child(node, index, low, high)
            right = self._child(node, index + 1, low, high)
            assert left is not None
            assert right is not None
            merged = self._merge(left, right, _bounds(node, index, low, high)[0], high)
        return _or_none(
            Node(
                node.height,
                [*keys[:index], *keys[index + 1 :]],
                [*values[:index], *values[index + 1 :]],
                [*children[:index], merged, *children[index + 2 :]],
            )
        )

    def _merge(self, left: Node, right: Node, low: _Edge, high: _Edge) -> Node:
        """Two neighbours of the same height as one node."""
        inner: _Link = left.children[-1]
        if inner is None or right.children[0] is None:
            inner = right.children[0] if inner is None else inner
        else:
            last = self._child(left, len(left.keys), low, None)
            first = self._child(right, 0, None, high)
            assert last is not None
            assert first is not None
            inner = self._merge(last, first, low, high)
        children = [*left.children[:-1], inner, *right.children[1:]]
        return Node(left.height, left.keys + right.keys, left.values + right.values, children)

    def _trim(self, top: Node | None) -> Node | bytes:
        """The root without the levels above its first key; a subtree that is not loaded needs no loading."""
        node: _Link = top
        while isinstance(node, Node) and not node.keys:
            below = node.children[0]
            if isinstance(below, bytes):
                below = self._load_or_leave(below, node.height - 1)
            node = below
        return empty_node() if node is None else node

    def _load_or_leave(self, raw: bytes, height: int) -> Node | bytes:
        try:
            return self._load(raw, height, None, None)
        except MissingBlock:
            return raw


def _bounds(node: Node, index: int, low: _Edge, high: _Edge) -> tuple[_Edge, _Edge]:
    """The keys between which the subtree left of `node.keys[index]` lies."""
    keys = node.keys
    return (keys[index - 1] if index else low), (keys[index] if index < len(keys) else high)


def _raise_to(node: Node | None, height: int) -> Node | None:
    """`node` under as many nodes without keys as it takes to reach `height`."""
    while node is not None and node.height < height:
        node = Node(node.height + 1, [], [], [node])
    return node


def _or_none(node: Node) -> Node | None:
    """`node`, or None if nothing is in it or under it."""
    return None if not node.keys and node.children[0] is None else node


def _no_block(raw: bytes) -> bytes | None:
    return None
