"""Undoing a commit's ops: the proof that they are all that the commit changed.

Source: atproto.com/specs/sync, "Commit Validation: MST Operation Inversion". The signature covers the tree
after the commit; the list of ops is the server's word. Undo the ops on the signed tree: if that gives the
tree of the commit before, nothing was left out, added or altered. The event must hold every node this takes.
"""

from collections.abc import Sequence

from firehose.cid import Cid
from firehose.errors import FrameInvalid, MissingBlock, MstInvalid
from firehose.frames import Action, RepoOp
from firehose.mst import Mst


def invert(tree: Mst, ops: Sequence[RepoOp]) -> Cid:
    """The root of the tree before `ops` led to `tree`.

    Raises:
        FrameInvalid: an op does not fit the tree or does not say what was there before, or a node is missing
            or breaks a rule.
    """
    try:
        # Deletions first: what they put back may be what keeps a level of the tree from being trimmed away.
        for op in sorted(ops, key=_deletions_first):
            tree = _undo(tree, op)
    except KeyError as error:  # a MissingBlock is one too
        reason = "mst-missing" if isinstance(error, MissingBlock) else "op-tree"
        raise FrameInvalid(reason, str(error)) from None
    except MstInvalid as error:
        raise FrameInvalid(f"mst-{error.reason}", str(error)) from None
    return tree.root


def check_inversion(tree: Mst, ops: Sequence[RepoOp], prev_data: Cid) -> None:
    """Check that undoing `ops` on `tree` gives the tree with the root `prev_data`.

    Raises: FrameInvalid: it does not, or it cannot be told.
    """
    before = invert(tree, ops)
    if before != prev_data:
        raise FrameInvalid("inversion", f"undone, the ops give {before} and not {prev_data}")


def _undo(tree: Mst, op: RepoOp) -> Mst:
    path = op.path.encode()
    there = None if op.cid is None else op.cid.bytes
    if tree.get_raw(path) != there:
        raise FrameInvalid("op-tree", f"the tree says otherwise of {op.path}")
    if op.action is Action.CREATE:
        return tree.delete_raw(path)
    if op.prev is None:
        raise FrameInvalid("op-prev", f"{op.action} of {op.path} without what was there before")
    return tree.put_raw(path, op.prev.bytes)


def _deletions_first(op: RepoOp) -> tuple[bool, str]:
    return op.action is not Action.DELETE, op.path
