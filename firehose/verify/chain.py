"""Whether a true event follows from what was known of its repository. Pure: one decision each.

Source: atproto.com/specs/sync, "Commit Validation". A commit that proves itself may still stand on another
tree than the one we know: then events in between are missing, and only a look at the whole repository tells
what they were (`firehose.resync`).
"""

from firehose.cid import Cid
from firehose.frames import CommitEvent
from firehose.syntax import Tid
from firehose.verify.accounts import RepoState
from firehose.verify.verdict import FirstSight, Policy, Verdict

Finding = tuple[Verdict, str]  # and the stable reason


def judge_commit(
    known: RepoState | None, event: CommitEvent, policy: Policy, first_sight: FirstSight
) -> Finding:
    """Say whether a commit that proves itself follows from `known`; the reason is a stable word."""
    if known is None:
        if event.since is not None and first_sight is FirstSight.RESYNC:
            return Verdict.DESYNC, "first-sight"
        # Old servers do not say what was before: their ops are true, but there may have been others.
        proven = event.prev_data is not None or event.since is None
        return Verdict.ACCEPT, "ok" if proven else "unproven"
    broken = _break(known, event)
    if broken is None:
        return Verdict.ACCEPT, "ok"
    if policy is Policy.STRICT:
        return Verdict.DESYNC, broken
    return Verdict.ACCEPT, "unproven" if broken == "prev-data-missing" else "unchained"


def judge_sync(known: RepoState | None, rev: Tid, data: Cid, policy: Policy) -> Finding:
    """Say what a #sync with this signed `rev` and `data` means to somebody who knows `known`."""
    if known is None:
        return Verdict.ACCEPT, "ok"
    if rev < known.rev or (rev == known.rev and data != known.data):
        return Verdict.IGNORE, "rev-old"
    if data == known.data:
        return Verdict.NOOP, "ok"
    # Among filtered commits a #sync is no news: each commit stands on its own there.
    return (Verdict.DESYNC, "sync-data") if policy is Policy.STRICT else (Verdict.ACCEPT, "unchained")


def _break(known: RepoState, event: CommitEvent) -> str | None:
    """The stable word for the way in which `event` does not follow from `known`, or None."""
    if event.prev_data is None:
        return "prev-data-missing"
    if event.prev_data != known.data:
        return "chain-data"
    if event.since != known.rev:  # the tree is right, and yet a commit is missing: one that undid another
        return "chain-since"
    return None
